"""LLaVA-Bench, in the wild (60 questions, 24 pictures) and on COCO (90 questions, 30 pictures).

A judge reads a description of the picture, the question, GPT-4's reference answer and the model's answer,
and scores both answers 1 to 10; a category's figure is 100 · mean(model) / mean(reference). Officially the
reference always comes first; here both orders are judged and averaged, and the official order is a variant.
A review that cannot be read is missing, never −1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from airvlm.tasks.base import Counts, Item, Metric, Ratio, Scores, TaskDataMissing, read_records
from airvlm.tasks.files.answers import answers_by_id, in_order_of
from airvlm.tasks.judges.judge import Question, pairwise, say
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


@dataclass(frozen=True)
class LLaVABench(JudgedTask):
    """LLaVA-Bench from its official files: questions, GPT-4's answers, descriptions of the pictures, the pictures."""

    which: Literal["wild", "coco"] = "wild"
    order: Literal["both", "official"] = (
        "both"  # both: each pair is judged twice, the answers changing places
    )

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
        reference = {str(record["question_id"]): record for record in read_records(folder / answers)}
        context = {str(record["image"]): _described(record) for record in read_records(folder / contexts)}
        items = []
        for record in read_records(folder / questions)[:limit]:
            key, image = str(record["question_id"]), str(record["image"])
            truth = reference[key]
            meta = {"category": _category(record["category"]), "picture": image, "context": context[image]}
            items.append(
                Item(
                    key, _picture(folder, image), record["text"], truth.get("text", truth.get("answer")), meta
                )
            )
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

    def _question(self, item: Item, first: str, second: str) -> Question[tuple[float, ...]]:
        values = {
            "context": item.meta["context"],
            "question": item.question,
            "first": first,
            "second": second,
        }
        return Question(say(fill(self.template(), **values), SYSTEM), read_two_scores, temperature=0.2)

    def rescore(self, answers: Path, truth: Path | None = None) -> Scores:
        """Official reviews (content or tuple, one a question), or answers by question_id (asks the judge)."""
        records = read_records(answers)
        if records and ("tuple" in records[0] or "content" in records[0]):
            items = [
                Item(str(r["question_id"]), None, "", None, {"category": _category(r.get("category", ""))})
                for r in records
            ]
            return _scores(items, [_review(record) for record in records])
        by_id = answers_by_id(answers)
        if truth is None and self.data is None:
            return unjudged(by_id, f"to judge them, give --truth FOLDER with {', '.join(FILES[self.which])}")
        task = self if truth is None else type(self)(truth, self.judge, self.which, self.order)
        items = task.items()
        return task.score(items, in_order_of(items, by_id, answers))


def read_two_scores(verdict: str) -> tuple[float, ...] | None:
    """The two numbers that a verdict's first line consists of."""
    words = verdict.split("\n", 1)[0].replace(",", " ").split()
    try:
        scores = tuple(float(word) for word in words)
    except ValueError:
        return None
    return scores if len(scores) == 2 and all(0 <= s <= 10 for s in scores) else None


def _review(record: Mapping[str, Any]) -> tuple[float, float] | None:
    if "content" in record:
        read = read_two_scores(str(record["content"]))
        return None if read is None else (read[0], read[1])
    reference, model = (float(score) for score in record["tuple"])
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
    return Scores(per_item, metrics, [item.picture for item in items], details)


def _category(name: str) -> str:
    return str(name).removeprefix("llava_bench_")


def _described(record: Mapping[str, Any]) -> str:
    """What the judge is told of a picture: a caption, or COCO's captions and boxes."""
    if "caption" in record:
        caption = record["caption"]
        return caption if isinstance(caption, str) else "\n".join(caption)
    boxes = [f"{box['category']}: {box['bbox']}" for box in record.get("instances", [])]
    return "\n".join([*record.get("captions", []), "", *boxes])


def _picture(folder: Path, image: str) -> Path:
    names = [folder / "images" / image, folder / image, folder / "val2014" / f"COCO_val2014_{image}"]
    return next((path for path in names if path.is_file()), names[0])
