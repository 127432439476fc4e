"""LLaVA-Bench, in the wild (60 questions, 24 images) and on COCO (90 questions, 30 images).

A judge reads a description of the image, the question, GPT-4's reference answer and the model's answer, and scores both
answers from 1 to 10. A category's figure is 100 * mean(model) / mean(reference). Officially the reference always comes
first; here both orders are judged and averaged, and the official order is a variant. A review that cannot be read is
missing; officially it counts as -1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from airvlm.tasks.answers import (
    ITEMS_FROM_FILE,
    Entry,
    list_keys,
    match_entries,
    read_answers,
    score_by_id,
    score_format,
)
from airvlm.tasks.base import Counts, Item, Metric, Ratio, Scores, TaskDataMissing
from airvlm.tasks.files.reading import Row, read_records
from airvlm.tasks.judges.judge import JudgeQuestion, ask_in_both_orders, make_messages
from airvlm.tasks.judges.task import JudgedTask, score_unjudged

__all__ = ["LLaVABench", "parse_two_scores"]

SYSTEM = "You are a helpful and precise assistant for checking the quality of the answer."
FILES = {  # questions, reference answers, descriptions of the images
    "wild": ("questions.jsonl", "answers_gpt4.jsonl", "context.jsonl"),
    "coco": ("qa90_questions.jsonl", "qa90_gpt4_answer.jsonl", "caps_boxes_coco2014_val_80.jsonl"),
}
WHERE = {
    "wild": "huggingface.co/datasets/liuhaotian/llava-bench-in-the-wild",
    "coco": "github.com/haotian-liu/LLaVA, playground/data/coco2014_val_gpt4_qa_30x3 and llava/eval/table",
}
CATEGORIES = ("conv", "detail", "complex")


@dataclass(frozen=True)
class Relative:
    """100 * mean(model) / mean(reference), the means rounded to three decimals as in the official script."""

    prefix: str = ""

    def __call__(self, counts: Counts) -> Any:
        with np.errstate(divide="ignore", invalid="ignore"):
            model, reference = (
                np.round(np.divide(counts[f"{self.prefix}{name}"], counts[f"{self.prefix}n"]), 3)
                for name in ("model", "reference")
            )
            return model / reference * 100


@dataclass(frozen=True)
class LLaVABench(JudgedTask):
    """LLaVA-Bench from its official files: questions, GPT-4's answers, descriptions of the images, the images."""

    which: Literal["wild", "coco"] = "wild"
    order: Literal["both", "official"] = "both"  # both: each pair is judged twice, in both orders

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
        "Two assistants answered the question about a picture, which the context describes to you. Rate how helpful, "
        "relevant, accurate and detailed each answer is with one overall score from 1 to 10, higher being better.\n"
        "Write first one line with nothing but the two scores, that of Assistant 1 and that of Assistant 2, with a "
        "space between them. Then explain them, without favoring an answer for its place."
    )

    def items(self, limit: int | None = None, split: str = "test") -> list[Item]:
        where = WHERE[self.which]
        folder = self.require_folder(f"{', '.join(FILES[self.which])} and images/ from {where}")
        lacking = [name for name in FILES[self.which] if not (folder / name).is_file()]
        if lacking:
            raise TaskDataMissing(f"llava-bench: {folder} lacks {', '.join(lacking)}; get them from {where}")
        questions, answers, contexts = (read_records(folder / name) for name in FILES[self.which])
        references = {row.read_id("question_id"): row.read_text("text", "answer") for row in answers}
        context = {row.read_id("image"): _describe_image(row) for row in contexts}
        items = []
        for row in questions[:limit]:
            key, image, text = row.read_id("question_id"), row.read_id("image"), row.read_text("text")
            if key not in references or image not in context:
                raise ValueError(f"llava-bench: question {key} of {folder} lacks its answer or its context")
            meta = {"category": _read_category(row), "group": image, "context": context[image]}
            places = [folder / "images" / image, folder / image, folder / "val2014" / f"COCO_val2014_{image}"]
            path = next((path for path in places if path.is_file()), places[0])
            items.append(Item(key, path, text, references[key], meta))
        return items

    def score(self, items: Sequence[Item], answers: Sequence[str | None]) -> Scores:
        asked = [i for i, text in enumerate(answers) if text is not None]
        pairs = [(str(items[i].truth), str(answers[i])) for i in asked]
        judge = self.get_judge()
        found: list[tuple[float, float] | None]
        if self.order == "both":
            both = ask_in_both_orders(judge, pairs, lambda n, a, b: self._make_pair_question(items[asked[n]], a, b))
            found = [None if two is None else (two[0][0], two[1][0]) for two in both]
        else:
            questions = [self._make_pair_question(items[i], a, b) for i, (a, b) in zip(asked, pairs)]
            found = [None if v.value is None else (v.value[0], v.value[1]) for v in judge.ask_all(questions)]
        scores = dict(zip(asked, found))
        return self.aggregate(items, [scores.get(i) for i in range(len(items))], ())

    def _make_pair_question(self, item: Item, first: str, second: str) -> JudgeQuestion[tuple[float, ...]]:
        prompt = self.fill_prompt(context=item.meta["context"], question=item.question, first=first, second=second)
        return JudgeQuestion(make_messages(prompt, SYSTEM), parse_two_scores, temperature=0.2)

    def aggregate(self, items: Sequence[Item], verdicts: Sequence[Any], details: Sequence[Mapping[str, Any]]) -> Scores:
        """Scores from the (reference, model) scores of each question."""

        def count(item: Item, pair: tuple[float, float]) -> tuple[dict[str, float], dict[str, Any]]:
            counts = {"n": 1.0, "model": pair[1], "reference": pair[0]}
            by_category = {f"{item.meta['category']}:{name}": value for name, value in counts.items()}
            return counts | by_category, {"reference_score": pair[0], "score": pair[1]}

        present = {item.meta["category"] for item in items}
        categories = [name for name in CATEGORIES if name in present] + sorted(present - set(CATEGORIES))
        metrics = {"all": Metric(Relative())} | {name: Metric(Relative(f"{name}:")) for name in categories}
        metrics["mean_model"] = Metric(Ratio("model", "n", scale=1.0))
        metrics["mean_reference"] = Metric(Ratio("reference", "n", scale=1.0), "neither")
        return Scores.of(items, verdicts, count, metrics, variant=self.variant_name)


def parse_two_scores(verdict: str) -> tuple[float, ...] | None:
    """The two numbers from 0 to 10 that a verdict's first line consists of."""
    words = verdict.split("\n", 1)[0].replace(",", " ").split()
    try:
        scores = tuple(float(word) for word in words)
    except ValueError:
        return None
    return scores if len(scores) == 2 and all(0 <= score <= 10 for score in scores) else None


def _read_category(row: Row) -> str:
    return row.read_id("category").removeprefix("llava_bench_") if row.get("category") else ""


def _describe_image(row: Row) -> str:
    """What the judge is told about an image: a caption, or COCO's captions and boxes."""
    if row.has("caption"):
        return row["caption"] if isinstance(row["caption"], str) else "\n".join(row.read_texts("caption"))
    boxes = row.get("instances", [])
    if not isinstance(boxes, list) or not all(isinstance(box, dict) for box in boxes):
        raise row.error("instances", "expected a list of objects with category and bbox")
    lines = [f"{box.get('category')}: {box.get('bbox')}" for box in boxes]
    return "\n".join([*row.read_texts("captions", default=[]), "", *lines])


@score_format.register
def score_llava_bench_file(task: LLaVABench, path: Path, truth: Path | None = None, *, lenient: bool = False) -> Scores:
    """Score official reviews (`content` or `tuple`, one per question), or answers by question_id (asks the judge)."""
    source = truth or task.data
    rows = read_records(path)
    if any("tuple" in row or "content" in row for row in rows):
        reviews: list[Entry[Any]] = [Entry(row.read_id("question_id"), _read_review(row), row.line) for row in rows]
        own = {row.read_id("question_id"): {"category": _read_category(row)} for row in rows}
        items = [Item(key, None, "", None, meta) for key, meta in own.items()]
        items = items if source is None else replace(task, data=source).items()
        pairs, coverage = match_entries([item.id for item in items], reviews, path, lenient=lenient)
        notes = (ITEMS_FROM_FILE,) if source is None else ()
        return replace(task.aggregate(items, pairs, ()), coverage=coverage, notes=notes)
    if source is not None:
        return score_by_id(task, path, source, lenient=lenient)
    entries = read_answers(path)
    texts, coverage = match_entries(list_keys(entries), entries, path, lenient=lenient)
    reason = f"to judge them, give --truth FOLDER with {', '.join(FILES[task.which])}"
    scores = score_unjudged(dict(zip(list_keys(entries), texts)), reason)
    return replace(scores, coverage=coverage, notes=(*scores.notes, ITEMS_FROM_FILE))


def _read_review(row: Row) -> tuple[float, float] | None:
    """The scores of (reference, model) in an official review; None if it failed."""
    if row.has("content"):
        scores = parse_two_scores(row.read_text("content"))
        return None if scores is None else (scores[0], scores[1])
    pair = row.read_numbers("tuple", -1, 10)
    if len(pair) != 2:
        raise row.error("tuple", f"expected two scores, not {len(pair)}")
    return None if min(pair) < 0 else (pair[0], pair[1])
