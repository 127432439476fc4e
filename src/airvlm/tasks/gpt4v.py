"""Accuracy and detailedness of two methods' answers, by a judge that sees the image (as in VCD's paper).

A judge's scale drifts, so only the difference between two answers in one verdict means anything. Each pair is judged in
both orders and averaged. The other method's answers come from a file.
"""

from __future__ import annotations

import base64
import io
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from PIL import Image

from airvlm.inputs.images import load_image
from airvlm.tasks.answers import match_entries, read_answers, score_format
from airvlm.tasks.base import DESCRIBE, Counts, Item, Metric, Ratio, Scores, TaskDataMissing
from airvlm.tasks.files.reading import read_records
from airvlm.tasks.judges.judge import JudgeQuestion, ask_in_both_orders, make_messages
from airvlm.tasks.judges.task import JudgedTask, score_unjudged

__all__ = ["GPT4V", "parse_aspects"]

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp")
LONGEST_SIDE = 1024  # pixels of the image that the judge sees
ASPECTS = ("accuracy", "detailedness")


@dataclass(frozen=True)
class Gain:
    """The mean score of the answers minus that of the other method's, in points of ten."""

    aspect: str

    def __call__(self, counts: Counts) -> Any:
        return Ratio(self.aspect, "n", 1.0)(counts) - Ratio(f"{self.aspect}_other", "n", 1.0)(counts)


METRICS: Mapping[str, Metric] = {
    **{f"{aspect}_10": Metric(Ratio(aspect, "n", scale=1.0)) for aspect in ASPECTS},
    **{f"{aspect}_10_other": Metric(Ratio(f"{aspect}_other", "n", scale=1.0), "neither") for aspect in ASPECTS},
    **{f"{aspect}_gain": Metric(Gain(aspect)) for aspect in ASPECTS},
}


@dataclass(frozen=True)
class GPT4V(JudgedTask):
    """Descriptions of a folder's images, or answers to its questions.jsonl, compared with another method's."""

    against: Path | None = None  # the other method's answers, e.g. those stored for vanilla
    method: str = ""  # of stored answers: the method to compare with vanilla, if there are several
    images: int = 50  # drawn from a folder without questions
    seed: int = 0

    name: ClassVar[str] = "gpt4v"
    max_new_tokens: ClassVar[int] = 512
    source: ClassVar[str] = "VCD (Leng et al.), prompt as in OPERA; any folder of images, VCD: LLaVA-Bench in the wild"
    judge_prompt: ClassVar[str] = (
        "You see a picture, and what two AI assistants answered when they were asked:\n{question}\n\n"
        "[Assistant 1]\n{first}\n[End of Assistant 1]\n\n[Assistant 2]\n{second}\n[End of Assistant 2]\n\n"
        "Score each answer from 1 to 10, higher being better, in two respects. Pay attention above all to "
        "hallucination: anything an answer says of the picture that is not so, such as things that are not there, or "
        "wrong numbers, places or colors.\nAccuracy: does the answer agree with the picture? Hallucination lowers this "
        "score.\nDetailedness: is the answer rich in details that matter? What is hallucinated is not a detail.\n"
        "The order of the assistants must not influence you. Write exactly:\n"
        "Accuracy: <score of Assistant 1> <score of Assistant 2>\nReason:\n"
        "Detailedness: <score of Assistant 1> <score of Assistant 2>\nReason:"
    )

    def items(self, limit: int | None = None, split: str = "test") -> list[Item]:
        folder = self.require_folder("images to describe, or questions.jsonl (question_id, image, text) with images/")
        if (folder / "questions.jsonl").is_file():
            return [
                Item(
                    row.read_id("question_id"),
                    folder / "images" / row.read_text("image"),
                    row.read_text("text"),
                    None,
                    {"group": row.read_text("image")},
                )
                for row in read_records(folder / "questions.jsonl")[:limit]
            ]
        paths = sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES)
        if not paths:
            raise TaskDataMissing(f"gpt4v: no images ({', '.join(SUFFIXES)}) and no questions.jsonl in {folder}")
        drawn = sorted(random.Random(self.seed).sample(paths, min(self.images, len(paths))))
        return [Item(path.stem, path, DESCRIBE) for path in drawn[:limit]]

    def score(self, items: Sequence[Item], answers: Sequence[str | None]) -> Scores:
        if self.against is None:
            reason = "this benchmark compares two methods: airvlm score gpt4v RUN --data IMAGES --set method=NAME"
            return score_unjudged({item.id: text for item, text in zip(items, answers, strict=True)}, reason)
        # of stored answers, those without a method
        others = read_answers(self.against, keep=lambda record: record.get("method") is None)
        return self.compare(items, answers, match_entries([item.id for item in items], others, self.against)[0])

    def compare(self, items: Sequence[Item], answers: Sequence[str | None], others: Sequence[str | None]) -> Scores:
        """Scores of `answers` beside `others`; an item that lacks either, or a verdict, is missing."""
        asked = [i for i in range(len(items)) if answers[i] is not None and others[i] is not None]
        images = {i: _encode_image(items[i].image) for i in asked}

        def ask(n: int, first: str, second: str) -> JudgeQuestion[tuple[float, ...]]:
            prompt = self.fill_prompt(question=self.prompt(items[asked[n]]), first=first, second=second)
            return JudgeQuestion(make_messages(prompt, image=images[asked[n]]), parse_aspects, max_tokens=512)

        def count(item: Item, verdict: tuple[tuple[float, ...], ...]) -> tuple[dict[str, float], dict[str, Any]]:
            own, other = (dict(zip(ASPECTS, values, strict=True)) for values in verdict)
            counts = {"n": 1.0} | own | {f"{aspect}_other": value for aspect, value in other.items()}
            return counts, counts

        pairs = [(str(answers[i]), str(others[i])) for i in asked]
        verdicts = dict(zip(asked, ask_in_both_orders(self.get_judge(), pairs, ask), strict=True))
        return Scores.of(items, [verdicts.get(i) for i in range(len(items))], count, METRICS)


def parse_aspects(verdict: str) -> tuple[float, ...] | None:
    """(accuracy 1, accuracy 2, detailedness 1, detailedness 2) of a verdict, if it has all four, from 1 to 10."""
    scores: list[float] = []
    for aspect in ASPECTS:
        found = re.search(rf"{aspect}\W*?:?\s*\**\s*(\d+(?:\.\d+)?)[\s,/]+(\d+(?:\.\d+)?)", verdict, re.IGNORECASE)
        if found is None:
            return None
        scores += [float(found[1]), float(found[2])]
    return tuple(scores) if all(1 <= score <= 10 for score in scores) else None


def _encode_image(image: Any) -> str:
    """An image as a data URL."""
    shown: Image.Image = load_image(image)
    shown.thumbnail((LONGEST_SIDE, LONGEST_SIDE))
    data = io.BytesIO()
    shown.save(data, "JPEG", quality=90)
    return "data:image/jpeg;base64," + base64.b64encode(data.getvalue()).decode()


@score_format.register
def score_gpt4v_file(task: GPT4V, path: Path, truth: Path | None = None, *, lenient: bool = False) -> Scores:
    """Compare answers by id with those in `truth`; or, of a run's folder, its method with vanilla."""
    path = path / "answers.jsonl" if path.is_dir() else path
    stored = any("fingerprint" in record for record in read_records(path)[:1])
    against = truth or task.against or (path if stored else None)
    if against is None:
        raise TaskDataMissing("gpt4v compares two files of answers: give the other one as --truth")

    def is_compared(record: Mapping[str, Any]) -> bool:
        method = record.get("method")
        return "fingerprint" not in record or (method is not None and task.method in ("", method.get("name")))

    items = task.items()
    texts, coverage = match_entries([item.id for item in items], read_answers(path, is_compared), path, lenient=lenient)
    return replace(replace(task, against=against).score(items, texts), coverage=coverage)
