"""HaloQuest: questions with a false premise, without enough context, or hard to see, judged (Wang et al., 2024).

608 questions about photographs and generated images. The official Auto-Eval asks a language model whether an answer is
right, given the question and the reference answers; a question about something that is not there is answered right only
by saying so. Reads haloquest-eval.csv and images/; questions whose image cannot be downloaded any more
(missing_images.json) are left out and counted in the settings.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from airvlm.tasks.answers import read_answers, score_entries, score_format
from airvlm.tasks.base import Item, Metric, Ratio, Scores, TaskDataMissing
from airvlm.tasks.files.reading import Row, read_json, read_table
from airvlm.tasks.judges.judge import JudgeQuestion, make_messages
from airvlm.tasks.judges.task import JudgedTask

__all__ = ["HaloQuest", "parse_verdict"]

FILE = "haloquest-eval.csv"
MISSING = "missing_images.json"
WHERE = "github.com/google/haloquest"
KINDS = {
    "false premises": "false_premise",
    "visual challenge": "visually_challenging",
    "insufficient context": "insufficient_context",
}
IMAGES = ("generated", "real")


@dataclass(frozen=True)
class HaloQuest(JudgedTask):
    """HaloQuest's evaluation set; accuracy by a judge, and by kind of question and of image."""

    name: ClassVar[str] = "haloquest"
    max_new_tokens: ClassVar[int] = 128
    source: ClassVar[str] = f"{WHERE}; --data FOLDER with {FILE} and images/"
    judge_prompt: ClassVar[str] = (
        "Decide whether a model's answer to a question about an image is right. Read the answer as an answer to this "
        "question, and compare its main point with that of the reference answers, any of which will do.\n"
        "- If the reference says that what the question asks about is not in the image or cannot be seen, the answer "
        "is right only if it says so too. Yes, no or nothing is then wrong, because it accepts that it is there.\n"
        "- An answer that declines to help is wrong.\n"
        "- A count is right only if it is exactly that of the reference.\n\n"
        "Question: {question}\nReference answers: {reference}\nAnswer: {prediction}\n\n"
        "State the main point of the answer and of the reference in a sentence each. Then write in a last line nothing "
        "but: Verdict: correct, or Verdict: incorrect."
    )

    def items(self, limit: int | None = None, split: str = "test") -> list[Item]:
        folder = self.require_folder(f"{FILE} and images/ from {WHERE}")
        missing = self._list_missing()
        return [item for item in _read_items(folder / FILE) if item.image.name not in missing][:limit]

    def _list_missing(self) -> frozenset[str]:
        path = Path(self.data) / MISSING if self.data else None
        if path is None or not path.is_file():
            return frozenset()
        names = read_json(path)
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise ValueError(f"{path}: expected a JSON list of names of images")
        return frozenset(names)

    def settings(self) -> dict[str, Any]:
        return super().settings() | {"missing_images": len(self._list_missing())}

    def make_question(self, item: Item, answer: str) -> JudgeQuestion[bool]:
        prompt = self.fill_prompt(question=item.question, reference=str(item.truth), prediction=answer)
        return JudgeQuestion(make_messages(prompt), parse_verdict, max_tokens=512)

    def aggregate(self, items: Sequence[Item], verdicts: Sequence[Any], details: Sequence[Mapping[str, Any]]) -> Scores:
        def count(item: Item, right: bool) -> tuple[dict[str, float], dict[str, Any]]:
            counts = {"n": 1.0, "right": float(right)}
            for group in (item.meta["kind"], item.meta["images"]):
                counts |= {f"{group}:n": 1.0, f"{group}:right": float(right)}
            return counts, {"right": right}

        metrics = {"accuracy": Metric(Ratio("right", "n"))}
        metrics |= {group: Metric(Ratio(f"{group}:right", f"{group}:n")) for group in (*KINDS.values(), *IMAGES)}
        missing = len(self._list_missing())
        notes = (f"left out: the questions about {missing} images that are no longer there",) if missing else ()
        return Scores.of(items, verdicts, count, metrics, notes, self.variant_name, details)


def parse_verdict(verdict: str) -> bool | None:
    """Whether a verdict ends with correct or incorrect; None if it says neither."""
    stated = re.findall(r"verdict\W{0,6}(correct|incorrect)\b", verdict.lower())
    if stated:
        return bool(stated[-1] == "correct")
    words = set(re.findall(r"\b(correct|incorrect)\b", verdict.lower()))
    return words.pop() == "correct" if len(words) == 1 else None


def _read_items(path: Path) -> list[Item]:
    """The questions of the table; images are in images/ beside it."""
    if not path.is_file():
        raise TaskDataMissing(f"haloquest: {path} is not there; get it from {WHERE}")
    return [_make_item(row, path.parent, str(n)) for n, row in enumerate(read_table(path))]


def _make_item(row: Row, folder: Path, key: str) -> Item:
    name = Path(row.read_text("image_name")).name
    kind, images = row.read_choice("hallucination type", choices=KINDS), row.read_choice("image type", choices=IMAGES)
    meta = {"kind": KINDS[kind], "images": images, "group": name}
    # the first column has no name
    key = row.read_id("", default=key)
    return Item(key, folder / "images" / name, row.read_text("question"), row.read_text("groundtruth responses"), meta)


@score_format.register
def score_haloquest_file(task: HaloQuest, path: Path, truth: Path | None = None, *, lenient: bool = False) -> Scores:
    """Score answers by id (asks the judge); truth: haloquest-eval.csv or the folder that has it."""
    place = truth or task.data
    if place is None:
        raise TaskDataMissing(f"haloquest: give --truth {FILE} (from {WHERE})")
    items = _read_items(place / FILE if place.is_dir() else place)
    return score_entries(task, items, read_answers(path), path, lenient=lenient)
