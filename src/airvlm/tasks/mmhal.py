"""MMHal-Bench: 96 open questions of eight kinds, answers rated 0 to 6 by a judge told what is to be seen.

A rating below 3 means hallucination. Where the official script turns an unreadable rating into 0, it is
missing here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from airvlm.tasks.base import Item, Metric, Ratio, Scores, TaskDataMissing, read_records
from airvlm.tasks.judges.judge import Question, say
from airvlm.tasks.judges.judged import JudgedTask, fill, missing, recorded

__all__ = ["MMHal", "read_rating"]

KINDS = ("attribute", "adversarial", "comparison", "counting", "relation", "environment", "holistic", "other")
FILES = ("response_template.json", "mmhal-bench_answer_template.json")
WHERE = "huggingface.co/datasets/Shengcao1006/MMHal-Bench"


@dataclass(frozen=True)
class MMHal(JudgedTask):
    """MMHal-Bench from the official answer template and the pictures its records name (in images/)."""

    name: ClassVar[str] = "mmhal"
    max_new_tokens: ClassVar[int] = 512
    source: ClassVar[str] = f"LLaVA-RLHF; data at {WHERE}"
    judge_prompt: ClassVar[str] = (
        "You rate how well a language model answers a question about a picture that you cannot see. "
        "You are told what is in the "
        "picture, the question, an answer written by a person, and the model's answer.\n"
        "An answer hallucinates if it claims something about the picture that neither the contents "
        "nor the person's answer "
        "support, unless it is common knowledge. Judge, too, how much the answer tells: its analysis "
        "and its use to the asker.\n\n"
        "Ratings:\n6: very informative, with good analysis, no hallucination\n5: very informative, "
        "no hallucination\n"
        "4: somewhat informative, no hallucination\n3: not informative, no hallucination\n"
        "2: very informative, with hallucination\n1: somewhat informative, with hallucination\n"
        "0: not informative, with hallucination\n\n"
        "Contents of the picture: {contents}\nQuestion: {question}\nA person's answer: {reference}\n"
        "The model's answer: {prediction}\n\n"
        "Explain your judgement in a few sentences, then end with one line of the form\nRating: N"
    )

    def items(self, limit: int | None = None, split: str = "test") -> list[Item]:
        folder = self.folder(f"{FILES[0]} and images/ from {WHERE}")
        path = next((folder / name for name in FILES if (folder / name).is_file()), None)
        if path is None:
            raise TaskDataMissing(
                f"mmhal: neither {FILES[0]} nor {FILES[1]} is in {folder}; get one from {WHERE}"
            )
        return [_item(n, record, folder) for n, record in enumerate(read_records(path)[:limit])]

    def parse(self, item: Item, text: str) -> str | None:
        return text.strip() or None

    def score(self, items: Sequence[Item], answers: Sequence[str | None]) -> Scores:
        asked = [i for i, text in enumerate(answers) if text is not None]
        questions = [self._question(items[i], str(answers[i])) for i in asked]
        verdicts = dict(zip(asked, self.the_judge().ask_all(questions)))
        in_order = [verdicts.get(i) for i in range(len(items))]
        return _scores(items, [None if v is None else v.value for v in in_order], recorded(in_order))

    def _question(self, item: Item, answer: str) -> Question[int]:
        contents, reference = item.meta["contents"], str(item.truth)
        prompt = fill(
            self.template(), contents=contents, question=item.question, reference=reference, prediction=answer
        )
        return Question(say(prompt), read_rating)

    def rescore(self, answers: Path, truth: Path | None = None) -> Scores:
        """The official template with model_answer (asks the judge), or the judge's replies, one a question."""
        records = read_records(answers)
        if records and "choices" in records[0]:
            raw = [str(record["choices"][0]["message"]["content"]) for record in records]
            items = [_item(n, {}, None) for n in range(len(records))]
            return _scores(items, [read_rating(text) for text in raw], [{"verdict": text} for text in raw])
        items = [_item(n, record, None) for n, record in enumerate(records)]
        return self.score(items, [record.get("model_answer") for record in records])


def read_rating(verdict: str) -> int | None:
    """The one rating that a verdict names; None if it names none, or several different ones."""
    named = {int(digit) for digit in re.findall(r"rating:\W{0,4}([0-6])\b", verdict.lower())}
    return named.pop() if len(named) == 1 else None


def _item(n: int, record: Mapping[str, Any], folder: Path | None) -> Item:
    image = None
    if folder is not None:
        name = str(record.get("image_src") or record.get("image_id") or "").rsplit("/", 1)[-1]
        places = [
            folder / "images" / name,
            folder / "images" / f"{record.get('image_id')}.jpg",
            folder / name,
        ]
        image = next((place for place in places if place.is_file()), places[0])
    contents = record.get("image_content") or []
    meta = {
        "kind": record.get("question_type")
        or KINDS[n % len(KINDS)],  # the official order goes round the eight kinds
        "contents": contents if isinstance(contents, str) else ", ".join(map(str, contents)),
    }
    return Item(f"{n}", image, str(record.get("question", "")), record.get("gt_answer", ""), meta)


def _scores(items: Sequence[Item], ratings: Sequence[int | None], details: list[dict[str, Any]]) -> Scores:
    per_item = []
    for item, rating in zip(items, ratings):
        if rating is None:
            per_item.append(missing())
            continue
        hallucinates, kind = float(rating < 3), item.meta["kind"]
        counts = {"n": 1.0, "rating": float(rating), "hallucinates": hallucinates}
        per_item.append(counts | {f"{kind}:n": 1.0, f"{kind}:rating": float(rating)})
    kinds = sorted(
        {item.meta["kind"] for item in items},
        key=lambda k: (k not in KINDS, KINDS.index(k) if k in KINDS else 0, k),
    )
    metrics = {
        "rating": Metric(Ratio("rating", "n", scale=1.0)),  # 0 to 6
        "hallucination_rate": Metric(Ratio("hallucinates", "n"), "lower"),
    }
    metrics |= {kind: Metric(Ratio(f"{kind}:rating", f"{kind}:n", scale=1.0)) for kind in kinds}
    named = [{"id": item.id, **detail} for item, detail in zip(items, details)]
    return Scores(per_item, metrics, [item.picture for item in items], named)
