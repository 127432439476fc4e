"""MM-Vet: 218 open questions, each answer graded from 0.0 to 1.0 by a judge, reported by the capabilities it needs.

A grade is asked for `runs` times and averaged. Where the official script gives up with 0, the grade is missing here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from airvlm.tasks.answers import (
    ITEMS_FROM_FILE,
    Entry,
    list_keys,
    match_entries,
    read_answers,
    score_entries,
    score_format,
)
from airvlm.tasks.base import Counts, Item, Metric, Ratio, Scores, TaskDataMissing
from airvlm.tasks.files.reading import Row, get_suffix, make_rows, read_json
from airvlm.tasks.judges.judge import JudgeQuestion, make_messages
from airvlm.tasks.judges.task import JudgedTask, score_unjudged

__all__ = ["CAPABILITIES", "MMVet", "parse_grade"]

CAPABILITIES = ("rec", "ocr", "know", "gen", "spat", "math")
FILE = "mm-vet.json"
WHERE = "github.com/yuweihao/MM-Vet/releases"


@dataclass(frozen=True)
class DeviationOfRuns:
    """Standard deviation of the totals of the judge's runs."""

    runs: int

    def __call__(self, counts: Counts) -> Any:
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.std([100 * np.divide(counts[f"run{r}"], counts["n"]) for r in range(self.runs)], axis=0)


@dataclass(frozen=True)
class MMVet(JudgedTask):
    """MM-Vet from mm-vet.json and images/."""

    runs: int = 1  # grades per answer; the benchmark's paper takes 5

    name: ClassVar[str] = "mmvet"
    max_new_tokens: ClassVar[int] = 512
    variants: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "1run": {"runs": 1},
        "3runs": {"runs": 3},
        "5runs": {"runs": 5},
    }
    source: ClassVar[str] = f"yuweihao/MM-Vet; data at {WHERE}"
    judge_prompt: ClassVar[str] = (
        "Compare a prediction with the ground truth to a question, and say how correct the prediction is: a number "
        "from 0.0 (totally wrong) to 1.0 (totally right), in steps of 0.1. Where the ground truth joins parts by "
        "<AND>, the prediction is fully right only if it has all of them, and half of them are worth 0.5; where it "
        "joins them by <OR>, one is enough.\n\n"
        "Question | Ground truth | Prediction | Correctness\n"
        "What is x in the equation? | -1 <AND> -5 | x = 3 | 0.0\n"
        "What is x in the equation? | -1 <AND> -5 | x = -1 | 0.5\n"
        "What is x in the equation? | -1 <AND> -5 | x = -5 or -1 | 1.0\n"
        "What animal is this? | dog <OR> puppy | A puppy on a sofa. | 1.0\n"
        "{question} | {reference} | {prediction} |"
    )

    def items(self, limit: int | None = None, split: str = "test") -> list[Item]:
        folder = self.require_folder(f"{FILE} and images/ from {WHERE}")
        return _read_questions(folder, folder)[:limit]

    def score(self, items: Sequence[Item], answers: Sequence[str | None]) -> Scores:
        asked = [i for i, text in enumerate(answers) if text is not None]
        questions = [self._make_run_question(items[i], str(answers[i]), run) for i in asked for run in range(self.runs)]
        verdicts = self.get_judge().ask_all(questions)
        grades: list[list[float] | None] = [None] * len(items)
        details: list[dict[str, Any]] = [{} for _ in items]
        for n, i in enumerate(asked):
            runs = verdicts[n * self.runs : (n + 1) * self.runs]
            values = [verdict.value for verdict in runs if verdict.value is not None]
            grades[i] = values if len(values) == self.runs else None
            details[i] = {
                "verdict": [verdict.raw for verdict in runs],
                "judge": runs[0].served_by or runs[0].model,
                "prompt": runs[0].prompt_hash,
                "error": next((verdict.error for verdict in runs if verdict.error), None),
            }
        return self.aggregate(items, grades, details)

    def _make_run_question(self, item: Item, answer: str, run: int) -> JudgeQuestion[float]:
        reference = str(item.truth).replace("<AND>", " <AND> ").replace("<OR>", " <OR> ")
        prompt = self.fill_prompt(question=item.question, reference=reference, prediction=" ".join(answer.split()))
        # another prompt per run, so that the verdict of the first run is not taken from the file
        system = f"This is grading {run + 1}." if run else None
        return JudgeQuestion(make_messages(prompt, system), parse_grade, max_tokens=3, warming=0.5)

    def aggregate(self, items: Sequence[Item], verdicts: Sequence[Any], details: Sequence[Mapping[str, Any]]) -> Scores:
        """Scores from the list of grades of each answer."""
        runs = max((len(grades) for grades in verdicts if grades), default=1)
        complete = [grades if grades and len(grades) == runs else None for grades in verdicts]
        present = {group for item, grades in zip(items, complete) if grades for group in _list_groups(item)}

        def count(item: Item, grades: list[float]) -> tuple[dict[str, float], dict[str, Any]]:
            mean = sum(grades) / runs
            counts = {"n": 1.0, "grade": mean} | {f"run{r}": value for r, value in enumerate(grades)}
            for group in _list_groups(item):
                counts |= {f"{group}:n": 1.0, f"{group}:grade": mean}
            return counts, {}

        metrics = {"total": Metric(Ratio("grade", "n")), "std": Metric(DeviationOfRuns(runs), "neither")}
        for group in [f"cap:{name}" for name in CAPABILITIES] + sorted(g for g in present if g.startswith("int:")):
            if group in present:
                metrics[group.removeprefix("cap:")] = Metric(Ratio(f"{group}:grade", f"{group}:n"))
        notes = () if present else (f"no scores by capability: give {FILE} with --truth",)
        return Scores.of(items, complete, count, metrics, notes, self.variant_name, details)


def _list_groups(item: Item) -> list[str]:
    """What a question is counted under: each capability that it needs, and their combination."""
    needed = [name for name in CAPABILITIES if name in item.meta["capabilities"]]
    return [f"cap:{name}" for name in needed] + (["int:" + "+".join(needed)] if needed else [])


def parse_grade(verdict: str) -> float | None:
    """The number from 0 to 1 that a verdict begins with."""
    found = re.match(r"[^\w\-−]{0,3}(\d(?:\.\d+)?)", verdict)  # a minus sign must not be skipped
    grade = float(found[1]) if found else -1.0
    return grade if 0.0 <= grade <= 1.0 else None


def _read_questions(place: Path, folder: Path | None = None) -> list[Item]:
    """The questions of mm-vet.json or of the folder that has it; `folder` has images/."""
    path = place / FILE if place.is_dir() else place
    if not path.is_file():
        raise TaskDataMissing(f"mmvet: {path} is not there; get it from {WHERE}")
    content = read_json(path)
    if not isinstance(content, dict) or not content:
        raise ValueError(f"{path}: expected a JSON object of id -> question, as in {FILE}")
    items = []
    for key, row in zip(content, make_rows(content, path, "entry"), strict=True):
        name, capabilities = row.read_text("imagename"), row.read_texts("capability", default=[])
        unknown = [capability for capability in capabilities if capability not in CAPABILITIES]
        if unknown:
            raise row.error("capability", f"expected some of {', '.join(CAPABILITIES)}, not {unknown[0][:40]!r}")
        image = folder / "images" / name if folder else None
        meta = {"capabilities": capabilities, "group": name}
        items.append(Item(key, image, row.read_text("question"), row.read_text("answer"), meta))
    return items


@score_format.register
def score_mmvet_file(task: MMVet, path: Path, truth: Path | None = None, *, lenient: bool = False) -> Scores:
    """Score official grades ({id: {"content", "score"}}), or answers by id (asks the judge).

    Capabilities come from mm-vet.json: `truth`, or the one in the data folder.
    """
    source = truth or task.data
    content = read_json(path) if get_suffix(path) == ".json" else None
    if isinstance(content, dict) and any(isinstance(value, dict) and "score" in value for value in content.values()):
        entries = [
            Entry(key, (_read_grades(row), {"verdict": row.get("content")}))
            for key, row in zip(content, make_rows(content, path, "entry"), strict=True)
        ]
        own = [Item(key, None, "", None, {"capabilities": []}) for key in content]
        items = own if source is None else _read_questions(source)
        found, coverage = match_entries([item.id for item in items], entries, path, lenient=lenient)
        grades, details = zip(*((None, {"verdict": None}) if pair is None else pair for pair in found), strict=True)
        scores = task.aggregate(items, grades, details)
        notes = scores.notes if source is not None else (*scores.notes, ITEMS_FROM_FILE)
        return replace(scores, coverage=coverage, notes=notes)
    answers = [
        replace(entry, key=entry.key if entry.key.startswith("v1_") else f"v1_{entry.key}")
        for entry in read_answers(path)
    ]
    if source is not None:
        return score_entries(task, _read_questions(source), answers, path, lenient=lenient)
    texts, coverage = match_entries(list_keys(answers), answers, path, lenient=lenient)
    reason = f"to grade them, give --truth {FILE} (from {WHERE})"
    scores = score_unjudged(dict(zip(list_keys(answers), texts, strict=True)), reason)
    return replace(scores, coverage=coverage, notes=(*scores.notes, ITEMS_FROM_FILE))


def _read_grades(row: Row) -> list[float] | None:
    """The grades of one answer; None if one cannot be read from the judge's words, whatever number is there for it."""
    scores = row.read_numbers("score", 0, 1)
    words = row.get("content")
    if words is None:
        return scores
    if not isinstance(words, list):
        raise row.error("content", "expected a list of the judge's replies")
    grades = [parse_grade(str(text)) for text in words]
    return None if not grades or None in grades else [grade for grade in grades if grade is not None]
