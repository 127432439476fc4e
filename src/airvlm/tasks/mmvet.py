"""MM-Vet: 218 open questions, each answer graded 0.0 to 1.0 by a judge, reported by the capabilities a
question needs.

A grade is asked for `runs` times and averaged. Where the official script gives up with 0, the grade is
missing here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from airvlm.tasks.base import Counts, Item, Metric, Ratio, Scores, TaskDataMissing
from airvlm.tasks.coverage import Given, match
from airvlm.tasks.files.answers import given_answers, in_order_of
from airvlm.tasks.files.reading import kind_of, read_json, read_table
from airvlm.tasks.files.records import Checked, Text, checked
from airvlm.tasks.judges.judge import JudgeQuestion, say
from airvlm.tasks.judges.judged import JudgedTask, fill, missing, unjudged

__all__ = ["CAPABILITIES", "MMVet", "read_grade"]

CAPABILITIES = ("rec", "ocr", "know", "gen", "spat", "math")
FILE = "mm-vet.json"
WHERE = "github.com/yuweihao/MM-Vet/releases"


@dataclass(frozen=True)
class SpreadOfRuns:
    """Standard deviation of the totals of the judge's runs."""

    runs: int

    def __call__(self, counts: Counts) -> Any:
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.std([100 * np.divide(counts[f"run{r}"], counts["n"]) for r in range(self.runs)], axis=0)


@dataclass(frozen=True)
class FromFile:
    """A figure that somebody else computed."""

    name: str

    def __call__(self, counts: Counts) -> Any:
        return counts[self.name]


@dataclass(frozen=True)
class MMVet(JudgedTask):
    """MM-Vet from mm-vet.json and images/."""

    runs: int = 1  # grades asked for each answer; the benchmark's paper takes 5

    name: ClassVar[str] = "mmvet"
    max_new_tokens: ClassVar[int] = 512
    variants: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "1run": {"runs": 1},
        "3runs": {"runs": 3},
        "5runs": {"runs": 5},
    }
    source: ClassVar[str] = f"yuweihao/MM-Vet; data at {WHERE}"
    judge_prompt: ClassVar[str] = (
        "Compare a prediction with the ground truth to a question, and say how correct the "
        "prediction is: a number from 0.0 "
        "(totally wrong) to 1.0 (totally right), in steps of 0.1. Where the ground truth joins parts "
        "by <AND>, the prediction is "
        "fully right only if it has all of them, and half of them are worth 0.5; where it joins them "
        "by <OR>, one is enough.\n\n"
        "Question | Ground truth | Prediction | Correctness\n"
        "What is x in the equation? | -1 <AND> -5 | x = 3 | 0.0\n"
        "What is x in the equation? | -1 <AND> -5 | x = -1 | 0.5\n"
        "What is x in the equation? | -1 <AND> -5 | x = -5 or -1 | 1.0\n"
        "What animal is this? | dog <OR> puppy | A puppy on a sofa. | 1.0\n"
        "{question} | {reference} | {prediction} |"
    )

    def items(self, limit: int | None = None, split: str = "test") -> list[Item]:
        folder = self.folder(f"{FILE} and images/ from {WHERE}")
        if not (folder / FILE).is_file():
            raise TaskDataMissing(f"mmvet: {folder / FILE} is not there; get it from {WHERE}")
        return _items(folder / FILE, folder)[:limit]

    def parse(self, item: Item, text: str) -> str | None:
        return text.strip() or None

    def score(self, items: Sequence[Item], answers: Sequence[str | None]) -> Scores:
        asked = [i for i, text in enumerate(answers) if text is not None]
        questions = [self._question(items[i], str(answers[i]), run) for i in asked for run in range(self.runs)]
        verdicts = self.the_judge().ask_all(questions)
        grades: list[list[float] | None] = [None] * len(items)
        details: list[dict[str, Any]] = [{} for _ in items]
        for n, i in enumerate(asked):
            mine = verdicts[n * self.runs : (n + 1) * self.runs]
            values = [v.value for v in mine if v.value is not None]
            grades[i] = values if len(values) == self.runs else None
            details[i] = {"verdict": [v.raw for v in mine], "judge": mine[0].served_by or mine[0].model}
            details[i] |= {
                "prompt": mine[0].prompt_hash,
                "error": next((v.error for v in mine if v.error), None),
            }
        return _scores(items, grades, details)

    def _question(self, item: Item, answer: str, run: int) -> JudgeQuestion[float]:
        spaced = str(item.truth).replace("<AND>", " <AND> ").replace("<OR>", " <OR> ")
        one_line = " ".join(answer.split())
        prompt = fill(self.template(), question=item.question, reference=spaced, prediction=one_line)
        system = (
            f"This is grading {run + 1}." if run else None
        )  # another prompt, so that a run is not a repetition of the file's
        return JudgeQuestion(say(prompt, system), read_grade, max_tokens=3, warming=0.5)

    def rescore(self, answers: Path, truth: Path | None = None, *, lenient: bool = False) -> Scores:
        """The official grades ({id: {"content", "score"}}), its tables of scores (.csv), or answers (asks the judge).

        Capabilities come from mm-vet.json: the truth file, or the data folder's.
        """
        if kind_of(answers) == ".csv":
            return _printed(answers)
        folder = Path(self.data) if self.data else None
        known = truth or (folder / FILE if folder else None)
        if kind_of(answers) == ".json":
            content = read_json(answers)
            if isinstance(content, dict) and any(isinstance(v, dict) and "score" in v for v in content.values()):
                return _graded(content, known, answers, lenient)
        given = [
            replace(one, key=one.key if one.key.startswith("v1_") else f"v1_{one.key}")
            for one in given_answers(answers)
        ]
        if known is None or not known.is_file():
            texts, coverage = match(list(dict.fromkeys(one.key for one in given)), given, answers, lenient=lenient)
            by_id = dict(zip(dict.fromkeys(one.key for one in given), texts))
            scores = unjudged(by_id, f"to grade them, give --truth {FILE} (from {WHERE})")
            return replace(scores, coverage=coverage)
        items = _items(known, None)
        texts, coverage = in_order_of(items, given, answers, lenient=lenient)
        return replace(self.score(items, texts), coverage=coverage)


class MMVetQuestion(Checked):
    """A question of mm-vet.json."""

    imagename: Text
    question: Text
    answer: Text
    capability: list[Literal["rec", "ocr", "know", "gen", "spat", "math"]] = Field(default_factory=list)


class Grades(Checked):
    """What the official script keeps of one answer: the judge's words, and the grade it read from each."""

    content: list[Any] | None = None
    score: Annotated[list[Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]], Field(min_length=1)]


def read_grade(verdict: str) -> float | None:
    """The number between 0 and 1 that a verdict opens with."""
    found = re.match(r"[^\w\-−]{0,3}(\d(?:\.\d+)?)", verdict)  # a minus is no decoration
    grade = float(found[1]) if found else -1.0
    return grade if 0.0 <= grade <= 1.0 else None


def _items(path: Path, folder: Path | None) -> list[Item]:
    content = read_json(path)
    if not isinstance(content, dict) or not all(isinstance(record, dict) for record in content.values()):
        raise ValueError(f"{path}: expected a JSON object of id -> question, as in {FILE}")
    items = []
    for key, record in zip(content, checked(MMVetQuestion, content.values(), path, what="entry")):
        image = folder / "images" / record.imagename if folder else None
        meta = {"capabilities": list(record.capability), "group": record.imagename}
        items.append(Item(key, image, record.question, record.answer, meta))
    if not items:
        raise ValueError(f"{path} holds no questions")
    return items


def _graded(content: Mapping[str, Any], known: Path | None, path: Path, lenient: bool) -> Scores:
    """Official grades: what cannot be read as a grade is missing, whatever number was put in its place."""
    wrong = next((key for key, record in content.items() if not isinstance(record, dict)), None)
    if wrong is not None:
        raise ValueError(f"{path}, field {wrong}: expected an object with content and score")
    records = dict(zip(content, checked(Grades, content.values(), path, what="entry")))
    if known and known.is_file():
        items = _items(known, None)
    else:
        items = [Item(key, None, "", None, {"capabilities": []}) for key in records]
    given = [Given(key, record) for key, record in records.items()]
    found, coverage = match([item.id for item in items], given, path, lenient=lenient)
    grades: list[list[float] | None] = []
    for record in found:
        texts = [] if record is None else record.score if record.content is None else record.content
        said = [read_grade(str(text)) for text in texts]
        values = [grade for grade in said if grade is not None]
        grades.append(values if values and len(values) == len(said) else None)
    details = [{"verdict": None if record is None else record.content} for record in found]
    return replace(_scores(items, grades, details), coverage=coverage)


def _scores(items: Sequence[Item], grades: Sequence[list[float] | None], details: list[dict[str, Any]]) -> Scores:
    runs = max((len(g) for g in grades if g), default=1)
    per_item, combinations = [], set()
    for item, grade in zip(items, grades):
        if grade is None or len(grade) != runs:
            per_item.append(missing())
            continue
        mean = sum(grade) / runs
        counts = {"n": 1.0, "grade": mean} | {f"run{r}": value for r, value in enumerate(grade)}
        for group in _groups(item):
            counts |= {f"{group}:n": 1.0, f"{group}:grade": mean}
            combinations.add(group)
        per_item.append(counts)
    metrics = {"total": Metric(Ratio("grade", "n")), "std": Metric(SpreadOfRuns(runs), "neither")}
    order = [f"cap:{c}" for c in CAPABILITIES] + sorted(g for g in combinations if g.startswith("int:"))
    metrics |= {g.split(":", 1)[1] if g.startswith("cap:") else g: _ratio(g) for g in order if g in combinations}
    notes = () if combinations else (f"no scores by capability: give {FILE} as the truth",)
    named = [{"id": item.id, **detail} for item, detail in zip(items, details)]
    return Scores(per_item, metrics, [item.group for item in items], named, notes)


def _groups(item: Item) -> list[str]:
    needed = [c for c in CAPABILITIES if c in item.meta["capabilities"]]
    return [f"cap:{c}" for c in needed] + (["int:" + "+".join(needed)] if needed else [])


def _ratio(group: str) -> Metric:
    return Metric(Ratio(f"{group}:grade", f"{group}:n"))


def _printed(path: Path) -> Scores:
    """A table of scores as the official script writes it; its totals are checked against its runs."""
    counts: dict[str, float] = {}
    notes = ["figures as printed in the file; without grades they cannot be resampled"]
    for row in read_table(path):
        model = row.get("", "")
        for name, cell in row.items():
            if name in ("", "runs") or not cell:
                continue
            counts[f"{model}/{name}"] = _number(cell, path, row, name)
        runs = [
            _number(part, path, row, "runs") for part in row.get("runs", "").strip("[] ").split(",") if part.strip()
        ]
        if runs and "total" in row and abs(sum(runs) / len(runs) - _number(row["total"], path, row, "total")) > 0.051:
            notes.append(f"{model}: the total {row['total']} is not the mean of its runs {runs}")
    if not counts:
        raise ValueError(
            f"{path}: not a table of MM-Vet scores (first column the model, then capabilities, total, std, runs)"
        )
    return Scores([counts], {name: Metric(FromFile(name)) for name in counts}, [path.name], [], tuple(notes))


def _number(cell: str, path: Path, row: Mapping[str, str], name: str) -> float:
    try:
        value = float(cell)
    except ValueError:
        value = float("nan")
    if not 0 <= value <= 100:
        line = getattr(row, "line", 0)
        raise ValueError(f"{path}, line {line}, field {name}: expected a figure from 0 to 100, not {cell[:40]!r}")
    return value
