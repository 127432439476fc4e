"""BLEU of descriptions against reference captions.

Papers that report CHAIR print a "BLEU" without saying which. Two are in use, and both are reported: `BLEU-n`, where
n-gram counts are summed over all images first, and `BLEU`, the mean over images of (BLEU-1 + .. + BLEU-4) / 4.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from airvlm.tasks.answers import match_entries, score_format
from airvlm.tasks.base import UNPARSED, Counts, Item, Metric, Ratio, Scores, Task, TaskDataMissing
from airvlm.tasks.files.coco import choose_expected_images, read_descriptions, read_references
from airvlm.tasks.files.reading import get_suffix, read_json
from airvlm.tasks.words.ptb import tokenize_ptb

__all__ = ["BLEU_METRICS", "Bleu", "count_bleu"]

N = 4  # longest n-gram
# The official scorer's guards against division by zero, which make a precision without matches 1e-15 instead of 0.
_TINY, _SMALL = 1e-15, 1e-9


def _count_ngrams(words: Sequence[str], n: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))


def count_bleu(text: str, references: Sequence[str]) -> dict[str, float]:
    """What one description contributes: clipped matches, n-grams, lengths, and its own BLEU."""
    words, others = tokenize_ptb(text), [tokenize_ptb(reference) for reference in references]
    closest = min((abs(len(other) - len(words)), len(other)) for other in others)[1]
    counts: dict[str, float] = {"bleu_words": len(words), "bleu_reference": closest, "bleu_images": 1}
    for n in range(1, N + 1):
        own, best = _count_ngrams(words, n), Counter[tuple[str, ...]]()
        for other in others:
            best |= _count_ngrams(other, n)
        counts[f"bleu_match_{n}"] = sum((own & best).values())
        counts[f"bleu_total_{n}"] = max(0, len(words) - n + 1)
    alone = [float(_make_bleu(n)(counts)) for n in range(1, N + 1)]
    counts |= {f"bleu_own_{n}": value / 100 for n, value in enumerate(alone, 1)}
    counts["bleu_own"] = sum(alone) / N / 100
    return counts


def _make_bleu(n: int) -> Callable[[Counts], Any]:
    def formula(counts: Counts) -> Any:
        product: Any = 1.0
        for k in range(1, n + 1):
            match, total = np.asarray(counts[f"bleu_match_{k}"]), np.asarray(counts[f"bleu_total_{k}"])
            product = product * (match + _TINY) / (total + _SMALL)
        length, reference = np.asarray(counts["bleu_words"]), np.asarray(counts["bleu_reference"])
        ratio = (length + _TINY) / (reference + _SMALL)
        with np.errstate(over="ignore", divide="ignore"):
            brevity = np.where(ratio < 1, np.exp(1 - 1 / np.maximum(ratio, 1e-12)), 1.0)
        return 100 * product ** (1 / n) * brevity

    return formula


BLEU_METRICS: dict[str, Metric] = {
    **{f"BLEU-{n}": Metric(_make_bleu(n)) for n in range(1, N + 1)},
    "BLEU": Metric(Ratio("bleu_own", "bleu_images")),
    **{f"BLEU-{n}-image": Metric(Ratio(f"bleu_own_{n}", "bleu_images")) for n in range(1, N + 1)},
}


@dataclass(frozen=True)
class Bleu(Task):
    """BLEU alone, of a file of descriptions; `chair` reports it with everything else."""

    name: ClassVar[str] = "bleu"
    kind = "caption"
    source: ClassVar[str] = "COCO caption evaluation; mean over images as in HALC and Nullu"

    def items(self, limit: int | None = None, split: str = "test") -> list[Item]:
        raise TaskDataMissing(
            "bleu scores descriptions that you already have: airvlm score bleu FILE; `evaluate chair` reports BLEU too"
        )

    def parse(self, item: Item, text: str) -> list[str]:
        return tokenize_ptb(text)

    def score(self, items: Sequence[Item], answers: Sequence[str | None]) -> Scores:
        """Each item's truth is its list of reference captions."""

        def count(item: Item, text: str) -> tuple[dict[str, float], dict[str, Any]]:
            counts = count_bleu(text, item.truth) | ({} if text.strip() else {UNPARSED: 1.0})
            return counts, {f"BLEU-{n}": 100 * counts[f"bleu_own_{n}"] for n in range(1, N + 1)}

        return Scores.of(items, answers, count, BLEU_METRICS)


@score_format.register
def score_bleu_file(task: Bleu, path: Path, truth: Path | None = None, *, lenient: bool = False) -> Scores:
    """Score a JSON object with `hyp` {image: text} and `refs` {image: texts}, or descriptions against references."""
    entries = read_descriptions(path)
    references: dict[str, list[str]] = {}
    if truth is not None:
        references = read_references(truth)
    elif get_suffix(path) == ".json" and isinstance(content := read_json(path), dict) and "refs" in content:
        references = read_references(path)
    if not any(entry.key in references for entry in entries):
        raise ValueError(
            f"{path}: there are no reference captions for its images, e.g. {entries[0].key or '(no image)'}; "
            "give them with --truth (a COCO annotations folder, or JSON of image -> captions)"
        )
    if all(not entry.value.strip() for entry in entries):
        raise ValueError(f"{path}: all {len(entries)} descriptions are empty")
    expected = choose_expected_images(references, (entry.key for entry in entries))
    images = [image for image in references if image in expected]
    texts, coverage = match_entries(images, entries, path, lenient=lenient)
    described = [(image, text) for image, text in zip(images, texts, strict=True) if text is not None]
    items = [Item(image, None, "", references[image]) for image, _ in described]
    return replace(task.score(items, [text for _, text in described]), coverage=coverage)
