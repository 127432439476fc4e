"""LLaVA-Bench, in the wild (60 questions, 24 images) and on COCO (90 questions, 30 images).

A judge reads a description of the image, the question, GPT-4's reference answer and the model's answer,
and scores both answers 1 to 10; a category's figure is 100 · mean(model) / mean(reference). Officially the
reference always comes first; here both orders are judged and averaged, and the official order is a variant.
A review that cannot be read is missing, never −1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from airvlm.tasks.base import Counts, Item, Metric, Ratio, Scores, TaskDataMissing
from airvlm.tasks.coverage import Given, match
from airvlm.tasks.files.answers import given_answers, in_order_of
from airvlm.tasks.files.reading import read_records
from airvlm.tasks.files.records import Checked, Id, Text, checked
from airvlm.tasks.judges.judge import JudgeQuestion, pairwise, say
from airvlm.tasks.judges.judged import JudgedTask, fill, missing, unjudged

__all__ = ["LLaVABench", "read_two_scores"]

SYSTEM = "You are a helpful and precise assistant for checking the quality of the answer."
FILES = {
    "wild": ("questions.jsonl", "answers_gpt4.jsonl", "context.jsonl"),
    "coco": ("qa90_questions.jsonl", "qa90_gpt4_answer.jsonl", "caps_boxes_coco2014_val_80.jsonl"),
}
WHERE = {
    "wild": "huggingface.co/datasets/liuhaotian/llava-bench-in-the-wild",
    "coco": "github.com/haotian-liu/LLaVA, playground/data/coco2014_val_gpt4_qa_30x3 and llava/eval/table",
}
CATEGORIES = ("conv", "detail", "complex")
Score = Annotated[float, Field(ge=-1, le=10, allow_inf_nan=False)]


@dataclass(frozen=True)
class LLaVABench(JudgedTask):
    """LLaVA-Bench from its official files: questions, GPT-4's answers, descriptions of the images, the images."""

    which: Literal["wild", "coco"] = "wild"
    order: Literal["both", "official"] = "both"  # both: each pair is judged twice, the answers changing places

    name: ClassVar[str] = "llava-bench"
    max_new_tokens: ClassVar[int] = 1024
    variants: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "wild": {"which": "wild"},
        "coco": {"which": "coco"},
        "official": {"order": "official"},
        "coco-official": {"which": "coco", "order": "official"},
    }
    source: ClassVar[str] = f"haotian-liu/LLaVA; data at {WHERE['wild']}"
    judge_prompt: ClassVar[str] = (
        "[Context]\n{context}\n\n[Question]\n{question}\n\n[Assistant 1]\n{first}\n\n[End of Assistant 1]\n\n"
        "[Assistant 2]\n{second}\n\n[End of Assistant 2]\n\n[System]\n"
        "Two assistants answered the question about a picture, which the context describes to you. "
        "Rate how helpful, relevant, "
        "accurate and detailed each answer is with one overall score from 1 to 10, higher being better.\n"
        "Write first one line with nothing but the two scores, that of Assistant 1 and that of "
        "Assistant 2, with a space "
        "between them. Then explain them, without favouring an answer for its place."
    )

    def items(self, limit: int | None = None, split: str = "test") -> list[Item]:
        questions, answers, contexts = FILES[self.which]
        folder = self.folder(f"{questions}, {answers}, {contexts} and images/ from {WHERE[self.which]}")
        lacking = [name for name in FILES[self.which] if not (folder / name).is_file()]
        if lacking:
            raise TaskDataMissing(
                f"llava-bench: {folder} lacks {', '.join(lacking)}; get them from {WHERE[self.which]}"
            )
        said = checked(TextRecord, read_records(folder / answers), folder / answers)
        reference = {one.question_id: one.text or one.answer for one in said}
        told = checked(CaptionRecord, read_records(folder / contexts), folder / contexts)
        context = {one.image: _described(one) for one in told}
        items = []
        for record in checked(TextRecord, read_records(folder / questions), folder / questions)[:limit]:
            key, image = record.question_id, record.image or ""
            if key not in reference or image not in context or record.text is None:
                raise ValueError(f"llava-bench: question {key} of {folder} lacks its answer, its context or its text")
            meta = {"category": _category(str(record.category)), "group": image, "context": context[image]}
            items.append(Item(key, _image(folder, image), record.text, reference[key], meta))
        return items

    def parse(self, item: Item, text: str) -> str | None:
        return text.strip() or None

    def score(self, items: Sequence[Item], answers: Sequence[str | None]) -> Scores:
        asked = [i for i, text in enumerate(answers) if text is not None]
        pairs = [(str(items[i].truth), str(answers[i])) for i in asked]
        judge = self.the_judge()
        found: list[tuple[float, float] | None]
        if self.order == "both":
            both = pairwise(judge, pairs, lambda n, a, b: self._question(items[asked[n]], a, b))
            found = [None if two is None else (two[0][0], two[1][0]) for two in both]
        else:
            questions = [self._question(items[i], a, b) for i, (a, b) in zip(asked, pairs)]
            found = [None if v.value is None else (v.value[0], v.value[1]) for v in judge.ask_all(questions)]
        scores = dict(zip(asked, found))
        return _scores(items, [scores.get(i) for i in range(len(items))])

    def _question(self, item: Item, first: str, second: str) -> JudgeQuestion[tuple[float, ...]]:
        values = {
            "context": item.meta["context"],
            "question": item.question,
            "first": first,
            "second": second,
        }
        return JudgeQuestion(say(fill(self.template(), **values), SYSTEM), read_two_scores, temperature=0.2)

    def rescore(self, answers: Path, truth: Path | None = None, *, lenient: bool = False) -> Scores:
        """Official reviews (content or tuple, one a question), or answers by question_id (asks the judge)."""
        records = read_records(answers)
        if any("tuple" in record or "content" in record for record in records):
            reviews = checked(Review, records, answers)
            unique = list(dict.fromkeys(one.question_id for one in reviews))
            given = [Given(one.question_id, one, one.line) for one in reviews]
            found, coverage = match(unique, given, answers, lenient=lenient)
            kept = [one for one in found if one is not None]
            items = [Item(r.question_id, None, "", None, {"category": _category(r.category)}) for r in kept]
            return replace(_scores(items, [_review(one) for one in kept]), coverage=coverage)
        said = given_answers(answers)
        if truth is None and self.data is None:
            unique = list(dict.fromkeys(one.key for one in said))
            texts, coverage = match(unique, said, answers, lenient=lenient)
            how = f"to judge them, give --truth FOLDER with {', '.join(FILES[self.which])}"
            return replace(unjudged(dict(zip(unique, texts)), how), coverage=coverage)
        task = self if truth is None else type(self)(truth, self.judge, self.which, self.order)
        items = task.items()
        texts, coverage = in_order_of(items, said, answers, lenient=lenient)
        return replace(task.score(items, texts), coverage=coverage)


class Review(Checked):
    """A judge's review of one question."""

    question_id: Id
    category: str | int = ""
    content: Text | None = None
    scores: tuple[Score, Score] | None = Field(default=None, validation_alias="tuple")

    @model_validator(mode="before")
    @classmethod
    def _scores_are_a_pair(cls, record: Any) -> Any:
        pair = record.get("tuple")
        return {**record, "tuple": tuple(pair)} if isinstance(pair, list) else record

    @model_validator(mode="after")
    def _says_something(self) -> Review:
        if self.content is None and self.scores is None:
            raise ValueError("a review has content or a tuple of two scores")
        return self


class TextRecord(Checked):
    """A question, a reference answer or a description, each in a file of its own."""

    question_id: Id
    image: Id | None = None
    category: str | int = ""
    text: Text | None = None
    answer: Text | None = None


class CaptionRecord(Checked):
    """What the judge is told of an image: a caption, or COCO's captions and boxes."""

    image: Id
    caption: str | list[str] | None = None
    captions: list[str] = Field(default_factory=list)
    instances: list[dict[str, Any]] = Field(default_factory=list)


def read_two_scores(verdict: str) -> tuple[float, ...] | None:
    """The two numbers that a verdict's first line consists of."""
    words = verdict.split("\n", 1)[0].replace(",", " ").split()
    try:
        scores = tuple(float(word) for word in words)
    except ValueError:
        return None
    return scores if len(scores) == 2 and all(0 <= s <= 10 for s in scores) else None


def _review(record: Review) -> tuple[float, float] | None:
    if record.content is not None:
        read = read_two_scores(record.content)
        return None if read is None else (read[0], read[1])
    assert record.scores is not None
    reference, model = record.scores
    return None if reference < 0 or model < 0 else (reference, model)


@dataclass(frozen=True)
class Relative:
    """100 · mean(model) / mean(reference), the means rounded to three decimals as the official script does."""

    prefix: str = ""

    def __call__(self, counts: Counts) -> Any:
        with np.errstate(divide="ignore", invalid="ignore"):
            model, reference = (
                np.round(np.divide(counts[f"{self.prefix}{who}"], counts[f"{self.prefix}n"]), 3)
                for who in ("model", "reference")
            )
            return model / reference * 100


def _scores(items: Sequence[Item], found: Sequence[tuple[float, float] | None]) -> Scores:
    """(reference, model) of each question, None where there is no verdict."""
    per_item: list[dict[str, float]] = []
    for item, pair in zip(items, found):
        if pair is None:
            per_item.append(missing())
            continue
        reference, model = pair
        c = item.meta["category"]
        counts = {"n": 1.0, "model": model, "reference": reference}
        per_item.append(counts | {f"{c}:{name}": value for name, value in counts.items()})
    known, present = list(CATEGORIES), {item.meta["category"] for item in items}
    metrics = {"all": Metric(Relative())}
    metrics |= {c: Metric(Relative(f"{c}:")) for c in [*known, *sorted(present - set(known))] if c in present}
    metrics["mean_model"] = Metric(Ratio("model", "n", scale=1.0))
    metrics["mean_reference"] = Metric(Ratio("reference", "n", scale=1.0), "neither")
    details = [
        {"id": item.id} | ({} if pair is None else {"reference_score": pair[0], "score": pair[1]})
        for item, pair in zip(items, found)
    ]
    return Scores(per_item, metrics, [item.group for item in items], details)


def _category(name: str | int) -> str:
    return str(name).removeprefix("llava_bench_")


def _described(record: CaptionRecord) -> str:
    """What the judge is told of an image."""
    if record.caption is not None:
        return record.caption if isinstance(record.caption, str) else "\n".join(record.caption)
    boxes = [f"{box.get('category')}: {box.get('bbox')}" for box in record.instances]
    return "\n".join([*record.captions, "", *boxes])


def _image(folder: Path, image: str) -> Path:
    names = [folder / "images" / image, folder / image, folder / "val2014" / f"COCO_val2014_{image}"]
    return next((path for path in names if path.is_file()), names[0])
