"""MMBench: multiple choice, asked once for every rotation of the options; a question counts if every
rotation is right.

The official table is read in files/mmbench_table.py. Knows nothing of models; without a judge, an answer that
means no option is wrong and counted as unparsed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from airvlm.tasks.base import MISSING, UNPARSED, Item, Metric, Ratio, Scores, Task, TaskDataMissing
from airvlm.tasks.coverage import Given, match
from airvlm.tasks.files.answers import given_answers, in_order_of
from airvlm.tasks.files.mmbench_table import ABILITIES, CIRCLE, LETTERS, circled, image_file, item_of, rotated
from airvlm.tasks.files.reading import kind_of, read_json, read_records, read_table
from airvlm.tasks.files.records import Checked, Id, Text, checked
from airvlm.tasks.files.spreadsheet import read_spreadsheet
from airvlm.tasks.words.options import infer_option

__all__ = ["MMBench"]


@dataclass(frozen=True)
class MMBench(Task):
    """MMBench dev. The two published dev tables differ (1164 and 1176 questions): the file's name is in the record."""

    instruction: Literal["vlmevalkit", "llava"] = "vlmevalkit"
    table: str = "MMBench_DEV_EN.tsv"  # the file in the data folder; mmbench_dev_20230712.tsv is LLaVA's

    name: ClassVar[str] = "mmbench"
    kind: ClassVar[Literal["caption", "yesno", "choice", "judged"]] = "choice"
    max_new_tokens: ClassVar[int] = 32
    variants: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "vlmevalkit": {},
        "llava": {"instruction": "llava", "table": "mmbench_dev_20230712.tsv"},
    }
    source: ClassVar[str] = "open-compass/VLMEvalKit; tables at opencompass.openxlab.space/utils/MMBench"

    def items(self, limit: int | None = None, split: str = "test") -> list[Item]:
        folder = self.folder(f"MMBench's table {self.table} (opencompass.openxlab.space/utils/MMBench)")
        path = folder / self.table
        if not path.is_file():
            raise TaskDataMissing(f"mmbench: {path} is not there; get it from opencompass.openxlab.space/utils/MMBench")
        rows = circled(read_table(path), path)[:limit]
        images = {row["index"]: row.get("image", "") for row in rows}
        return [item_of(row, image_file(row, images, folder / f"{path.stem}_images"), path) for row in rows]

    def prompt(self, item: Item) -> str:
        hint, options = item.meta["hint"], item.meta["options"]
        lettered = "".join(f"{letter}. {text}\n" for letter, text in options.items())
        if self.instruction == "llava":
            head = f"{hint}\n{item.question}\n" if hint else f"{item.question}\n"
            return head + lettered + "Answer with the option's letter from the given choices directly."
        head = (f"Hint: {hint}\n" if hint else "") + f"Question: {item.question}\n"
        return head + f"Options:\n{lettered}Please select the correct answer from the options above. \n"

    def parse(self, item: Item, text: str) -> str | None:
        return infer_option(text, item.meta["options"])

    def score(self, items: Sequence[Item], answers: Sequence[str | None]) -> Scores:
        said = self.parse_all(items, answers)
        circles: dict[str, list[int]] = defaultdict(list)
        for i, item in enumerate(items):
            circles[item.group].append(i)
        per_item: list[dict[str, float]] = []
        for item, text, letter in zip(items, answers, said):
            counts = {"rows": 1.0, "rows_right": float(letter == item.truth)}
            per_item.append({MISSING: 1.0} if text is None else counts | ({UNPARSED: 1.0} if letter is None else {}))
        abilities: set[str] = set()
        for circle in circles.values():
            ability = items[circle[0]].meta["ability"]
            abilities.add(ability)
            if any(answers[i] is None for i in circle):
                continue  # a circle with a missing answer is neither right nor wrong
            hit = float(all(said[i] == items[i].truth for i in circle))
            first = float(said[circle[0]] == items[circle[0]].truth)
            per_item[circle[0]] |= {"circles": 1.0, "hits": hit, "first": first}
            per_item[circle[0]] |= {f"{ability}:circles": 1.0, f"{ability}:hits": hit}
        metrics = {
            "accuracy": Metric(Ratio("hits", "circles")),  # circular: the benchmark's figure
            "vanilla": Metric(Ratio("first", "circles")),  # the unrotated question alone
            "rows": Metric(Ratio("rows_right", "rows")),
        }
        order = [*ABILITIES.values(), *sorted(abilities - set(ABILITIES.values()) - {""})]
        metrics |= {a: Metric(Ratio(f"{a}:hits", f"{a}:circles")) for a in order if a in abilities}
        details = [
            {"id": item.id, "parsed": letter, "right": letter == item.truth} for item, letter in zip(items, said)
        ]
        return Scores(per_item, metrics, [item.group for item in items], details)

    def rescore(self, answers: Path, truth: Path | None = None, *, lenient: bool = False) -> Scores:
        """A table (.tsv, .csv, .xlsx) with predictions; ids and answers (truth: the table); circles as JSON."""
        kind = kind_of(answers)
        if kind in (".tsv", ".csv", ".xlsx"):
            rows = read_spreadsheet(answers) if kind == ".xlsx" else read_table(answers)
            if rows and {"answer", "prediction"} <= set(rows[0]):
                return self._predictions(rows, answers, lenient)
            if truth is None and self.data is None:
                raise ValueError(f"{answers}: expected a table with index, question, A, B, …, answer and prediction")
        elif kind == ".json":
            content = read_json(answers)
            if isinstance(content, dict) and {"choices", "cases"} <= set(content):
                return self._inference_cases(checked(Cases, [content], answers)[0])
            if isinstance(content, list) and content and isinstance(content[0], dict) and "predictions" in content[0]:
                circles = checked(Circle, read_records(answers), answers)
                return self._circles(circles, _choices_beside(answers, truth), answers)
        if truth is not None:
            rows = read_spreadsheet(truth) if kind_of(truth) == ".xlsx" else read_table(truth)
            items = [item_of(row, None, truth) for row in circled(rows, truth)]
            if not items:
                raise ValueError(f"{truth} holds no questions")
        else:
            items = self.items()
        texts, coverage = in_order_of(items, given_answers(answers), answers, lenient=lenient)
        scores = replace(self.score(items, texts), coverage=coverage)
        return scores if truth is None else replace(scores, record={"table": truth.name})

    def _predictions(self, rows: Sequence[Mapping[str, str]], path: Path, lenient: bool) -> Scores:
        """A table that holds questions, right answers and predictions."""
        items = [item_of(row, None, path) for row in rows]
        given = [Given(item.id, row["prediction"], getattr(row, "line", 0)) for item, row in zip(items, rows)]
        unique = {item.id: item for item in items}
        ordered = sorted(unique.values(), key=lambda item: (int(item.group), int(item.id)))
        texts, coverage = match([item.id for item in ordered], given, path, lenient=lenient)
        circles: dict[str, list[Item]] = defaultdict(list)
        for item in ordered:
            circles[item.group].append(item)
        headless = [key for key, circle in circles.items() if int(circle[0].id) >= CIRCLE]
        if headless and not lenient:
            raise ValueError(f"{path}: question {headless[0]} lacks its unrotated row; --lenient counts what there is")
        notes = []
        short = [key for key, circle in circles.items() if len(circle) < len(circle[0].meta["options"])]
        if short:
            notes.append(
                f"{len(short)} of {len(circles)} questions lack rotations (the first is {short[0]}): they are hits "
                "if the rows that are there are right, as in the official script, which is easier than all rotations"
            )
        scores = self.score(ordered, texts)
        return replace(scores, coverage=coverage, notes=(*notes, *scores.notes), record={"table": path.name})

    def _inference_cases(self, content: Cases) -> Scores:
        """{"choices", "cases": [{"prediction", "can_infer"}]}: how often our reading equals the one in the file."""
        items = [
            Item(str(n), None, "", case.can_infer or None, {"options": content.choices})
            for n, case in enumerate(content.cases)
        ]
        read = [self.parse(item, case.prediction) for item, case in zip(items, content.cases)]
        per_item = [{"cases": 1.0, "equal": float(r == item.truth)} for r, item in zip(read, items)]
        details = [{"id": item.id, "parsed": r, "right": r == item.truth} for r, item in zip(read, items)]
        return Scores(per_item, {"agreement": Metric(Ratio("equal", "cases"))}, [i.id for i in items], details)

    def _circles(self, circles: Sequence[Circle], choices: Mapping[str, str], path: Path) -> Scores:
        """[{"name", "predictions", "GT"}]: the answers to the rotations of one question each."""
        items, said = [], []
        names = [circle.name for circle in circles]
        if len(set(names)) < len(names):
            raise ValueError(f"{path}: the circle {next(n for n in names if names.count(n) > 1)!r} stands there twice")
        for circle in circles:
            options = dict(choices)
            for k, (text, truth) in enumerate(zip(circle.predictions, circle.GT, strict=True)):
                meta = {"options": options, "group": circle.name, "ability": "", "hint": ""}
                items.append(Item(f"{circle.name}/{k}", None, "", truth, meta))
                said.append(text)
                options = rotated(options)
        return self.score(items, said)


class Case(Checked):
    prediction: Text
    can_infer: str | bool | None


class Cases(Checked):
    choices: dict[str, str]
    cases: Annotated[list[Case], Field(min_length=1)]


class Choices(Checked):
    choices: dict[str, str]


class Circle(Checked):
    name: Id
    predictions: Annotated[list[str], Field(min_length=1)]
    GT: list[Literal["A", "B", "C", "D"]]

    @model_validator(mode="after")
    def _of_one_length(self) -> Circle:
        if len(self.predictions) != len(self.GT):
            raise ValueError(f"{len(self.predictions)} predictions and {len(self.GT)} right answers")
        return self


def _choices_beside(answers: Path, truth: Path | None) -> dict[str, str]:
    """The options' texts, from the truth file or can_infer.json beside the answers; else letters alone."""
    path = truth or answers.with_name("can_infer.json")
    if path.is_file():
        return checked(Choices, [read_json(path)], path)[0].choices
    return {letter: f"option {letter}" for letter in LETTERS}
