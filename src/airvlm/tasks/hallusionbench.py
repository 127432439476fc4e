"""HallusionBench: yes/no questions on figures and on altered ones; every way of counting its accuracy.

What is called easy and hard accuracy is, as in the official script, not a question's: it is that of a
question over its unaltered (easy) or altered (hard) figures, all of which must be right. Graded by a judge
(official) or by yes and no as words.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import BeforeValidator

from airvlm.tasks.base import UNPARSED, Counts, Item, Metric, Ratio, Scores, TaskDataMissing
from airvlm.tasks.coverage import Given, match
from airvlm.tasks.files.reading import Row, read_records
from airvlm.tasks.files.records import Checked, Id, Text, checked, first_of
from airvlm.tasks.judges.judge import JudgeQuestion, say
from airvlm.tasks.judges.judged import JudgedTask, fill, missing, recorded

__all__ = ["HallusionBench"]

WRONG, RIGHT, UNCLEAR = 0, 1, 2
FILE = "HallusionBench.json"
WHERE = "github.com/tianyi-lab/HallusionBench"
KEYS = ("category", "subcategory", "visual_input", "set_id", "figure_id", "question_id")
IMAGE_FREE = ("VS", "0")  # category and figure of the questions asked without an image


@dataclass(frozen=True)
class Graded:
    """One question's verdict, and whether its answer agrees with the one to the unaltered figure."""

    verdict: int
    same: bool | None = None  # None: nobody looked


@dataclass(frozen=True)
class HallusionBench(JudgedTask):
    """All 1129 questions, 178 of them without an image; `images_only` leaves those out, as other harnesses do."""

    grading: Literal["judge", "string"] = "judge"
    images_only: bool = False  # 951 questions: lmms-eval and VLMEvalKit

    name: ClassVar[str] = "hallusionbench"
    max_new_tokens: ClassVar[int] = 128
    renamed: ClassVar[Mapping[str, str]] = {"pictures_only": "images_only"}
    variants: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "judge": {"grading": "judge"},
        "string": {"grading": "string"},
        "string-951": {"grading": "string", "images_only": True},
    }
    source: ClassVar[str] = f"{WHERE}; questions in its repository, figures at the address in its README"
    judge_prompt: ClassVar[str] = (
        "You are a careful teacher who grades an answer. Read the question, the reference answer and "
        "the predicted answer. "
        "If the prediction does not contradict the reference, write: correct. If it contradicts the "
        "reference, write: incorrect. "
        "If the prediction leaves open what it answers, write: unclear.\n\n"
        "Question: {question}\nReference answer: {reference}\nPredicted answer: {prediction}\nOutput:"
    )

    def items(self, limit: int | None = None, split: str = "test") -> list[Item]:
        folder = self.folder(f"{FILE} and the figures (hallusion_bench/VD/… and VS/…), from {WHERE}")
        if not (folder / FILE).is_file():
            raise TaskDataMissing(f"hallusionbench: {folder / FILE} is not there; get it from {WHERE}")
        items = [_item(record, folder) for record in checked(Truth, read_records(folder / FILE), folder / FILE)]
        return [item for item in items if item.image or not self.images_only][:limit]

    def parse(self, item: Item, text: str) -> str | None:
        """yes or no, if exactly one of the two is said."""
        said = set(re.findall(r"\b(yes|no)\b", text.lower()))
        return said.pop() if len(said) == 1 else None

    def score(self, items: Sequence[Item], answers: Sequence[str | None]) -> Scores:
        if self.grading == "string":
            return self._by_words(items, answers)
        asked = [i for i, text in enumerate(answers) if text is not None]
        questions = [self._question(items[i], str(answers[i])) for i in asked]
        verdicts = dict(zip(asked, self.the_judge().ask_all(questions)))
        values = [verdicts[i].value if i in verdicts else None for i in range(len(items))]
        graded = [None if value is None else Graded(value) for value in values]
        return _scores(items, graded, recorded([verdicts.get(i) for i in range(len(items))]))

    def _question(self, item: Item, answer: str) -> JudgeQuestion[int]:
        reference = item.meta["reference"] or ("Yes." if item.truth == "yes" else "No.")
        prompt = fill(self.template(), question=item.question, reference=reference, prediction=answer)
        return JudgeQuestion(say(prompt), _read)

    def _by_words(self, items: Sequence[Item], answers: Sequence[str | None]) -> Scores:
        said = self.parse_all(items, answers)
        original = {_pair(item): word for item, word in zip(items, said) if item.meta["figure_id"] == "0"}
        graded: list[Graded | None] = []
        for item, text, word in zip(items, answers, said):
            verdict = UNCLEAR if word is None else RIGHT if word == item.truth else WRONG
            graded.append(None if text is None else Graded(verdict, word == original.get(_pair(item))))
        return _scores(items, graded, [{"parsed": word} for word in said], unparsed=[word is None for word in said])

    def rescore(self, answers: Path, truth: Path | None = None, *, lenient: bool = False) -> Scores:
        """Official records: with the verdict of a judge (…_gpt_check), or with model_prediction to be graded."""
        records = read_records(answers)
        if not records:
            raise ValueError(f"{answers} holds no answers")
        check = next((key for record in records for key in record if key.endswith("gpt_check")), None)
        known = [_item(one, None) for one in checked(HallusionBenchQuestion, records, answers)]
        lines = [getattr(record, "line", 0) for record in records]
        if check is not None:
            judged = {"verdict": check, "same": "same"}
            rows = [Row.at({k: record.get(v) for k, v in judged.items()}, n) for record, n in zip(records, lines)]
            verdicts = [_recorded_grade(one) for one in checked(Judged, rows, answers)]
            truths = [_item(one, None) for one in checked(Truth, records, answers)]
            given = [Given(item.id, n, line) for n, (item, line) in enumerate(zip(known, lines))]
            places, coverage = match(list(dict.fromkeys(i.id for i in known)), given, answers, lenient=lenient)
            kept = [n for n in places if n is not None]
            details = [{"verdict": records[n].get(check)} for n in kept]
            scores = _scores([truths[n] for n in kept], [verdicts[n] for n in kept], details)
            return replace(scores, coverage=coverage)
        said = checked(HallusionBenchAnswer, records, answers)
        texts = [Given(item.id, one.text, one.line) for item, one in zip(known, said)]
        if truth is not None or not all("question" in record for record in records):
            path = truth if truth and truth.is_file() else Path(truth or self.folder(FILE)) / FILE
            items = [_item(one, None) for one in checked(Truth, read_records(path), path)]
            items = [item for item in items if item.meta["visual_input"] != "0" or not self.images_only]
            if len({item.id for item in items}) < len(items) or not items:
                raise ValueError(f"{path}: {'a question stands there twice' if items else 'it holds no questions'}")
        else:
            items = list({i.id: i for i in (_item(one, None) for one in checked(Truth, records, answers))}.values())
        in_order, coverage = match([item.id for item in items], texts, answers, lenient=lenient)
        return replace(self.score(items, in_order), coverage=coverage)


class HallusionBenchQuestion(Checked):
    """The six fields that name a question."""

    category: Literal["VD", "VS"]
    subcategory: Id
    visual_input: Id
    set_id: Id
    figure_id: Id
    question_id: Id
    question: Text = ""
    filename: str | None = None
    gt_answer: Any = None
    gt_answer_details: str | None = None


class Truth(HallusionBenchQuestion):
    """A question with its right answer."""

    gt_answer: Annotated[Literal["0", "1"], BeforeValidator(lambda value: value if value is None else str(value))]


class Judged(Checked):
    """A judge's verdict; whatever is none is missing."""

    verdict: Any = None
    same: Any = None


class HallusionBenchAnswer(Checked):
    text: Text = first_of("model_prediction", "prediction")


def _read(verdict: str) -> int | None:
    said = verdict.lower()
    for word, grade in (
        ("incorrect", WRONG),
        ("correct", RIGHT),
        ("unclear", UNCLEAR),
    ):  # incorrect holds correct
        if word in said:
            return grade
    return None


def _recorded_grade(record: Judged) -> Graded | None:
    if str(record.verdict) not in ("0", "1", "2"):
        return None
    return Graded(int(record.verdict), None if record.same is None else str(record.same) == "1")


def _item(record: HallusionBenchQuestion, folder: Path | None) -> Item:
    meta = {name: str(getattr(record, name)) for name in KEYS}
    key = "_".join(meta[name] for name in KEYS)
    meta["group"] = "_".join(meta[name] for name in ("category", "subcategory", "set_id"))  # sets are drawn whole
    meta["reference"] = record.gt_answer_details or ""
    image = None
    if folder is not None and meta["visual_input"] != "0":
        name = (record.filename or "").removeprefix("./")
        places = [folder / "hallusion_bench" / name, folder / name]
        image = next((place for place in places if place.is_file()), places[0])
    return Item(key, image, record.question, "yes" if record.gt_answer == "1" else "no", meta)


def _pair(item: Item) -> tuple[str, ...]:
    return tuple(item.meta[name] for name in ("category", "subcategory", "set_id", "question_id"))


def _figure(item: Item) -> tuple[str, ...]:
    return tuple(item.meta[name] for name in ("category", "subcategory", "set_id", "figure_id"))


def _image_free(item: Item) -> bool:
    return (item.meta["category"], item.meta["figure_id"]) == IMAGE_FREE


def _right(item: Item, grade: Graded) -> bool:
    """Not knowing is the right answer to a question about an image that was not shown."""
    return grade.verdict == RIGHT or (grade.verdict == UNCLEAR and _image_free(item))


def _blame(item: Item, grade: Graded, original: Graded) -> str | None:
    """Why an answer is wrong: language (LH), vision (VI), or either (Mixed); None if it is not."""
    if _right(item, grade):
        return None
    if item.meta["figure_id"] == "0":
        return "VI" if item.meta["category"] == "VD" else "LH"
    if grade.verdict == UNCLEAR:
        return "Mixed" if item.meta["category"] == "VS" and original.verdict == WRONG else "VI"
    if item.meta["category"] == "VD":
        return "Mixed" if original.verdict == RIGHT and grade.same else "VI"
    if original.verdict == WRONG:
        return "LH" if grade.same else "Mixed"
    if original.verdict == RIGHT and item.meta["visual_input"] == "2" and grade.same:
        return "LH"
    return "VI"


def _scores(
    items: Sequence[Item],
    graded: Sequence[Graded | None],
    details: list[dict[str, Any]],
    unparsed: Sequence[bool] | None = None,
) -> Scores:
    per_item = [missing() if grade is None else {} for grade in graded]
    originals = {_pair(item): grade for item, grade in zip(items, graded) if item.meta["figure_id"] == "0"}
    for i, (item, grade) in enumerate(zip(items, graded)):
        if grade is None:
            continue
        right, truth = _right(item, grade), item.truth == "yes"
        per_item[i] = {
            "n": 1.0,
            "right": float(right),
            "truth_yes": float(truth),
            "said_yes": float(right == truth),
        }
        per_item[i] |= {"wrong": float(not right), "false_yes": float(not right and not truth)}
        original = originals.get(_pair(item))
        if grade.same is not None and original is not None and (blame := _blame(item, grade, original)):
            per_item[i] |= {blame: 1.0, "blamed": 1.0}
        if unparsed and unparsed[i] and not _image_free(item):
            per_item[i][UNPARSED] = 1.0
        details[i]["right"] = right
    altered = [item.meta["visual_input"] == "2" for item in items]
    _count_groups(per_item, items, graded, "pair", _pair, [True] * len(items))
    _count_groups(per_item, items, graded, "easy", _pair, [not a for a in altered])
    _count_groups(per_item, items, graded, "hard", _pair, altered)
    _count_groups(per_item, items, graded, "figure", _figure, [not _image_free(item) for item in items])
    named = [{"id": item.id, **detail} for item, detail in zip(items, details)]
    return Scores(per_item, _METRICS, [item.group for item in items], named)


def _count_groups(
    per_item: list[dict[str, float]],
    items: Sequence[Item],
    graded: Sequence[Graded | None],
    name: str,
    group_of: Callable[[Item], tuple[str, ...]],
    included: Sequence[bool],
) -> None:
    """Adds each group's outcome to its first item; a group with a missing verdict is left out."""
    groups: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for i, item in enumerate(items):
        if included[i]:
            groups[group_of(item)].append(i)
    for group in groups.values():
        grades = [(items[i], graded[i]) for i in group]
        right = [_right(item, grade) for item, grade in grades if grade is not None]
        if len(right) == len(group):
            outcome = {"right": all(right), "none": not any(right), "some": any(right) and not all(right)}
            per_item[group[0]] |= {f"{name}s": 1.0} | {f"{name}_{k}": float(v) for k, v in outcome.items()}


def _yes_difference(counts: Counts) -> Any:
    with np.errstate(divide="ignore", invalid="ignore"):
        return 100 * np.divide(counts["said_yes"] - counts["truth_yes"], counts["n"])


_METRICS = {
    "aAcc": Metric(Ratio("right", "n")),
    "fAcc": Metric(Ratio("figure_right", "figures")),
    "qAcc": Metric(Ratio("pair_right", "pairs")),
    "easy": Metric(Ratio("easy_right", "easys")),
    "hard": Metric(Ratio("hard_right", "hards")),
    "accuracy": Metric(Ratio("right", "n")),  # aAcc under the name that all tasks share
    "yes_difference": Metric(_yes_difference, "neither"),  # said yes minus truly yes
    "false_yes": Metric(Ratio("false_yes", "wrong"), "neither"),  # of the wrong answers, those to a no
    "figure_inconsistent": Metric(Ratio("figure_some", "figures"), "lower"),
    "figure_wrong": Metric(Ratio("figure_none", "figures"), "lower"),
    "LH": Metric(Ratio("LH", "blamed"), "neither"),
    "VI": Metric(Ratio("VI", "blamed"), "neither"),
    "Mixed": Metric(Ratio("Mixed", "blamed"), "neither"),
}
