"""BLEU of descriptions against reference captions: BLEU-1..4 over the corpus, and the mean over images.

Knows nothing about objects or models. The CHAIR papers print a "BLEU" without saying which; two families are about,
and both are reported: `BLEU-n`, where n-gram counts are summed over all images first, and `BLEU`, where each image's
(BLEU-1 + .. + BLEU-4) / 4 is averaged over the images.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from airvlm.tasks.base import UNPARSED, Counts, Item, Metric, Ratio, Scores, Task, TaskDataMissing
from airvlm.tasks.coverage import known_images, match
from airvlm.tasks.files.labels import image_key
from airvlm.tasks.files.reading import kind_of, read_json
from airvlm.tasks.words.ptb import ptb_tokens

__all__ = ["BLEU_METRICS", "Bleu", "bleu_counts"]

N = 4  # longest n-gram
# The official scorer's guards against division by zero; kept, because a missing n-gram is then 1e-15 and not 0.
_TINY, _SMALL = 1e-15, 1e-9


def _ngrams(words: Sequence[str], n: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))


def bleu_counts(text: str, references: Sequence[str]) -> dict[str, float]:
    """What one description contributes: clipped matches, n-grams, lengths, and its own mean BLEU."""
    words, others = ptb_tokens(text), [ptb_tokens(reference) for reference in references]
    closest = min((abs(len(other) - len(words)), len(other)) for other in others)[1]
    counts: dict[str, float] = {"bleu_words": len(words), "bleu_reference": closest, "bleu_images": 1}
    for n in range(1, N + 1):
        own, best = _ngrams(words, n), Counter[tuple[str, ...]]()
        for other in others:
            best |= _ngrams(other, n)
        counts[f"bleu_match_{n}"] = sum((own & best).values())
        counts[f"bleu_total_{n}"] = max(0, len(words) - n + 1)
    alone = [float(_bleu(n)(counts)) for n in range(1, N + 1)]
    counts |= {f"bleu_own_{n}": value / 100 for n, value in enumerate(alone, 1)}
    counts["bleu_own"] = sum(alone) / N / 100
    return counts


def _bleu(n: int) -> Callable[[Counts], Any]:
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
    **{f"BLEU-{n}": Metric(_bleu(n)) for n in range(1, N + 1)},
    "BLEU": Metric(Ratio("bleu_own", "bleu_images")),
    **{f"BLEU-{n}-image": Metric(Ratio(f"bleu_own_{n}", "bleu_images")) for n in range(1, N + 1)},
}


@dataclass(frozen=True)
class Bleu(Task):
    """BLEU alone, of a file that has descriptions and references; `chair` reports it with everything else."""

    name: ClassVar[str] = "bleu"
    kind = "caption"
    source: ClassVar[str] = "COCO caption evaluation; mean over images as in HALC and Nullu"

    def parse(self, item: Item, text: str) -> list[str]:
        return ptb_tokens(text)

    def score(self, items: Sequence[Item], answers: Sequence[str | None]) -> Scores:
        """Each item's truth is its list of reference captions."""

        def count(item: Item, text: str) -> tuple[dict[str, float], dict[str, Any]]:
            counts = bleu_counts(text, item.truth) | ({} if text.strip() else {UNPARSED: 1.0})
            return counts, {f"BLEU-{n}": 100 * counts[f"bleu_own_{n}"] for n in range(1, N + 1)}

        return Scores.of(items, answers, count, BLEU_METRICS)

    def items(self, limit: int | None = None, split: str = "test") -> list[Item]:
        raise TaskDataMissing(
            "bleu scores descriptions that you already have: airvlm score bleu FILE; `evaluate chair` reports BLEU too"
        )

    def rescore(self, answers: Path, truth: Path | None = None, *, lenient: bool = False) -> Scores:
        """A JSON object with `hyp` {image: text} and `refs` {image: texts}; or captions, with references as truth."""
        from airvlm.tasks.files.coco import read_captions, read_references, references_in

        given = read_captions(answers)
        references: dict[str, list[str]] = {}
        if truth is not None:
            references = read_references(truth)
        elif kind_of(answers) == ".json" and isinstance(content := read_json(answers), dict) and "refs" in content:
            references = {image_key(image): texts for image, texts in references_in(content, answers)}
        if not any(one.key in references for one in given):
            raise ValueError(
                f"{answers}: its images have no reference captions, e.g. {given[0].key or '(no image)'}; "
                "give them with --truth (a COCO annotations folder, or JSON of image id -> captions)"
            )
        if all(not one.value.strip() for one in given):
            raise ValueError(f"{answers}: all {len(given)} descriptions are empty")
        expected = known_images(references, (one.key for one in given))
        keys = [image for image in references if image in expected]
        texts, coverage = match(keys, given, answers, lenient=lenient)
        kept = [(key, text) for key, text in zip(keys, texts, strict=True) if text is not None]
        items = [Item(id=image, image=None, question="", truth=references[image]) for image, _ in kept]
        return replace(self.score(items, [text for _, text in kept]), coverage=coverage)
