"""HallusionBench: yes/no questions about figures and altered figures, and every way to count its accuracy.

As in the official script, easy and hard accuracy are not per question: they are the share of questions that are right
on all of their unaltered (easy) or altered (hard) figures. Answers are graded by a judge (official) or by the words yes
and no.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from airvlm.tasks.answers import (
    Entry,
    match_entries,
    require_rows,
    score_by_id,
    score_entries,
    score_format,
)
from airvlm.tasks.base import MISSING, UNPARSED, Counts, Item, Metric, Ratio, Scores, TaskDataMissing, parse_answers
from airvlm.tasks.files.reading import Row, read_records
from airvlm.tasks.judges.judge import JudgeQuestion, make_messages
from airvlm.tasks.judges.task import JudgedTask

__all__ = ["HallusionBench"]

WRONG, RIGHT, UNCLEAR = 0, 1, 2
FILE = "HallusionBench.json"
WHERE = "github.com/tianyi-lab/HallusionBench"
QUESTIONS, WITH_IMAGE = 1129, 951  # of the benchmark
KEYS = ("category", "subcategory", "visual_input", "set_id", "figure_id", "question_id")


@dataclass(frozen=True)
class Grade:
    """The verdict on an answer, and whether it agrees with the answer about the unaltered figure (None: unknown)."""

    verdict: int
    same: bool | None = None


def _count_yes_difference(counts: Counts) -> Any:
    with np.errstate(divide="ignore", invalid="ignore"):
        return 100 * np.divide(counts["said_yes"] - counts["truth_yes"], counts["n"])


METRICS = {
    "aAcc": Metric(Ratio("right", "n")),
    "fAcc": Metric(Ratio("figure_right", "figures")),
    "qAcc": Metric(Ratio("pair_right", "pairs")),
    "easy": Metric(Ratio("easy_right", "easys")),
    "hard": Metric(Ratio("hard_right", "hards")),
    "accuracy": Metric(Ratio("right", "n")),  # aAcc under the name that all tasks share
    "yes_ratio": Metric(Ratio("said_yes", "n"), "neither"),
    "yes_difference": Metric(_count_yes_difference, "neither"),  # answered yes minus truly yes
    "false_yes": Metric(Ratio("false_yes", "wrong"), "neither"),  # of the wrong answers, those where no is right
    "figure_inconsistent": Metric(Ratio("figure_some", "figures"), "lower"),
    "figure_wrong": Metric(Ratio("figure_none", "figures"), "lower"),
    "LH": Metric(Ratio("LH", "blamed"), "neither"),
    "VI": Metric(Ratio("VI", "blamed"), "neither"),
    "Mixed": Metric(Ratio("Mixed", "blamed"), "neither"),
}


@dataclass(frozen=True)
class HallusionBench(JudgedTask):
    """All questions; `images_only` leaves out the 178 without an image, as other harnesses do."""

    grading: Literal["judge", "string"] = "judge"
    images_only: bool = False  # as lmms-eval and VLMEvalKit

    name: ClassVar[str] = "hallusionbench"
    max_new_tokens: ClassVar[int] = 128
    variants: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "judge": {"grading": "judge"},
        "string": {"grading": "string"},
        "string-951": {"grading": "string", "images_only": True},
    }
    source: ClassVar[str] = f"{WHERE}; questions in its repository, figures at the address in its README"
    judge_prompt: ClassVar[str] = (
        "You are a careful teacher who grades an answer. Read the question, the reference answer and the predicted "
        "answer. If the prediction does not contradict the reference, write: correct. If it contradicts the reference, "
        "write: incorrect. If the prediction leaves open what it answers, write: unclear.\n\n"
        "Question: {question}\nReference answer: {reference}\nPredicted answer: {prediction}\nOutput:"
    )

    def items(self, limit: int | None = None, split: str = "test") -> list[Item]:
        folder = self.require_folder(f"{FILE} and the figures (hallusion_bench/VD/... and VS/...), from {WHERE}")
        return self.read_questions(folder, folder)[:limit]

    def read_questions(self, path: Path, folder: Path | None = None) -> list[Item]:
        """The questions of HallusionBench.json or of the folder that has it; `folder` has the figures."""
        path = path / FILE if path.is_dir() else path
        if not path.is_file():
            raise TaskDataMissing(f"hallusionbench: {path} is not there; get it from {WHERE}")
        items = [_make_item(row, folder) for row in require_rows(read_records(path), path, "questions")]
        keys = [item.id for item in items]
        if len(set(keys)) < len(keys):
            raise ValueError(f"{path}: duplicate question {next(key for key in keys if keys.count(key) > 1)}")
        return self.select_questions(items)

    def select_questions(self, items: Sequence[Item]) -> list[Item]:
        """The questions that are asked."""
        return [item for item in items if item.meta["visual_input"] != "0" or not self.images_only]

    def parse(self, item: Item, text: str) -> str | None:
        """yes or no, if the answer has exactly one of the two words."""
        words = set(re.findall(r"\b(yes|no)\b", text.lower()))
        return words.pop() if len(words) == 1 else None

    def make_question(self, item: Item, answer: str) -> JudgeQuestion[int]:
        reference = item.meta["reference"] or ("Yes." if item.truth == "yes" else "No.")
        prompt = self.fill_prompt(question=item.question, reference=reference, prediction=answer)
        return JudgeQuestion(make_messages(prompt), _parse_verdict)

    def score(self, items: Sequence[Item], answers: Sequence[str | None]) -> Scores:
        if self.grading == "judge":
            return super().score(items, answers)
        parsed = parse_answers(self, items, answers)
        original = {_get_pair(item): word for item, word in zip(items, parsed) if item.meta["figure_id"] == "0"}
        grades: list[Grade | None] = []
        for item, text, word in zip(items, answers, parsed):
            verdict = UNCLEAR if word is None else RIGHT if word == item.truth else WRONG
            grades.append(None if text is None else Grade(verdict, word == original.get(_get_pair(item))))
        return self.aggregate(items, grades, [{"parsed": word} for word in parsed])

    def aggregate(self, items: Sequence[Item], verdicts: Sequence[Any], details: Sequence[Mapping[str, Any]]) -> Scores:
        """Scores from grades, or from verdicts without knowing which answers agree."""
        grades = [Grade(verdict) if isinstance(verdict, int) else verdict for verdict in verdicts]
        originals = {_get_pair(item): grade for item, grade in zip(items, grades) if item.meta["figure_id"] == "0"}
        right = [None if grade is None else _is_right(item, grade) for item, grade in zip(items, grades)]
        per_item: list[dict[str, float]] = []
        for item, grade, is_right, detail in zip(items, grades, right, details):
            if grade is None or is_right is None:
                per_item.append({MISSING: 1.0})
                continue
            truth, original = item.truth == "yes", originals.get(_get_pair(item))
            counts = {
                "n": 1.0,
                "right": float(is_right),
                "truth_yes": float(truth),
                "said_yes": float(is_right == truth),
                "wrong": float(not is_right),
                "false_yes": float(not is_right and not truth),
            }
            if grade.same is not None and original is not None and (cause := _find_cause(item, grade, original)):
                counts |= {cause: 1.0, "blamed": 1.0}
            if detail.get("parsed", "") is None and not _is_image_free(item):
                counts[UNPARSED] = 1.0
            per_item.append(counts)
        altered = [item.meta["visual_input"] == "2" for item in items]
        for name, get_group, included in (
            ("pair", _get_pair, [True] * len(items)),
            ("easy", _get_pair, [not is_altered for is_altered in altered]),
            ("hard", _get_pair, altered),
            ("figure", _get_figure, [not _is_image_free(item) for item in items]),
        ):
            _count_groups(per_item, items, right, name, get_group, included)
        rows = [
            {"id": item.id, **detail} | ({} if is_right is None else {"right": is_right})
            for item, detail, is_right in zip(items, details, right)
        ]
        return Scores(per_item, METRICS, [item.group for item in items], rows, variant=self.variant_name)


def _count_groups(
    per_item: list[dict[str, float]],
    items: Sequence[Item],
    right: Sequence[bool | None],
    name: str,
    get_group: Callable[[Item], tuple[str, ...]],
    included: Sequence[bool],
) -> None:
    """Add the outcome of each group to its first item; a group with a missing verdict is left out."""
    groups: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for i, item in enumerate(items):
        if included[i]:
            groups[get_group(item)].append(i)
    for group in groups.values():
        outcomes = [right[i] for i in group]
        if None not in outcomes:
            counts = {"right": all(outcomes), "none": not any(outcomes), "some": any(outcomes) and not all(outcomes)}
            per_item[group[0]] |= {f"{name}s": 1.0} | {f"{name}_{k}": float(v) for k, v in counts.items()}


def _parse_verdict(verdict: str) -> int | None:
    # "incorrect" contains "correct"
    for word, grade in (("incorrect", WRONG), ("correct", RIGHT), ("unclear", UNCLEAR)):
        if word in verdict.lower():
            return grade
    return None


def _make_item(row: Row, folder: Path | None = None, *, has_truth: bool = True) -> Item:
    meta = {name: row.read_id(name) for name in KEYS}
    row.read_choice("category", choices=("VD", "VS"))
    key = "_".join(meta[name] for name in KEYS)
    meta["group"] = "_".join(meta[name] for name in ("category", "subcategory", "set_id"))  # sets are drawn whole
    meta["reference"] = row.read_text("gt_answer_details") if row.has("gt_answer_details") else ""
    image = None
    name = row.read_text("filename").removeprefix("./") if row.has("filename") else ""
    if folder is not None and meta["visual_input"] != "0":
        places = [folder / "hallusion_bench" / name, folder / name]
        image = next((place for place in places if place.is_file()), places[0])
    if has_truth and str(row.find("gt_answer")[1]) not in ("0", "1"):
        raise row.error("gt_answer", f"expected 0 or 1, not {str(row['gt_answer'])[:40]!r}")
    truth = "yes" if str(row.get("gt_answer")) == "1" else "no"
    return Item(key, image, row.read_text("question", default=""), truth, meta)


def _get_pair(item: Item) -> tuple[str, ...]:
    """A question with all of its figures."""
    return tuple(item.meta[name] for name in ("category", "subcategory", "set_id", "question_id"))


def _get_figure(item: Item) -> tuple[str, ...]:
    """A figure with all of its questions."""
    return tuple(item.meta[name] for name in ("category", "subcategory", "set_id", "figure_id"))


def _is_image_free(item: Item) -> bool:
    return item.meta["category"] == "VS" and item.meta["figure_id"] == "0"


def _is_right(item: Item, grade: Grade) -> bool:
    """An unclear answer is right if the image that the question is about was not shown."""
    return grade.verdict == RIGHT or (grade.verdict == UNCLEAR and _is_image_free(item))


def _find_cause(item: Item, grade: Grade, original: Grade) -> str | None:
    """Why an answer is wrong: language (LH), vision (VI), or either (Mixed); None if it is right."""
    category = item.meta["category"]
    if _is_right(item, grade):
        return None
    if item.meta["figure_id"] == "0":
        return "VI" if category == "VD" else "LH"
    if grade.verdict == UNCLEAR:
        return "Mixed" if category == "VS" and original.verdict == WRONG else "VI"
    if category == "VD":
        return "Mixed" if original.verdict == RIGHT and grade.same else "VI"
    if original.verdict == WRONG:
        return "LH" if grade.same else "Mixed"
    if original.verdict == RIGHT and item.meta["visual_input"] == "2" and grade.same:
        return "LH"
    return "VI"


@score_format.register
def score_hallusionbench_file(
    task: HallusionBench, path: Path, truth: Path | None = None, *, lenient: bool = False
) -> Scores:
    """Score official records that have a judge's verdict (a field that ends in gpt_check) or `model_prediction`.

    The questions are those of `truth` or of the task's data folder, and otherwise those of the file itself: then the
    benchmark's number of questions shows how many have no answer.
    """
    rows = require_rows(read_records(path), path)
    source = truth or task.data
    if source is not None and not any("category" in row for row in rows):
        return score_by_id(task, path, source if source.is_dir() else source.parent, lenient=lenient)
    check = next((key for row in rows for key in row if key.endswith("gpt_check")), None)
    if source is None and check is None and not all("question" in row for row in rows):
        raise TaskDataMissing(f"hallusionbench: the records have no questions; give --truth {FILE} (from {WHERE})")
    own = [_make_item(row, has_truth=source is None) for row in rows]
    if source is not None:
        items = task.read_questions(source)
    else:
        items = task.select_questions(list({item.id: item for item in own}.values()))
        expected = WITH_IMAGE if task.images_only else QUESTIONS
        if len(items) > expected:
            raise ValueError(f"{path} has {len(items)} questions, the benchmark {expected}; give --truth {FILE}")
    if check is None:
        texts = [row.read_text("model_prediction", "prediction") for row in rows]
        entries = [Entry(item.id, text, row.line) for item, text, row in zip(own, texts, rows)]
        scores = score_entries(task, items, entries, path, lenient=lenient)
    else:
        graded = [Entry(item.id, row, row.line) for item, row in zip(own, rows)]
        found, coverage = match_entries([item.id for item in items], graded, path, lenient=lenient)
        grades = [None if row is None else _read_grade(row, check) for row in found]
        verdicts = [{} if row is None else {"verdict": row.get(check)} for row in found]
        scores = replace(task.aggregate(items, grades, verdicts), coverage=coverage)
    if source is not None:
        return scores
    note = f"the questions are those of the file itself, which should have {expected} (--truth gives others)"
    return replace(scores, coverage=replace(scores.coverage, expected=expected), notes=(note, *scores.notes))


def _read_grade(row: Row, check: str) -> Grade | None:
    """The verdict of an official record; None if it is not one of the three numbers."""
    if str(row.get(check)) not in ("0", "1", "2"):
        return None
    return Grade(int(row[check]), str(row["same"]) == "1" if row.has("same") else None)
