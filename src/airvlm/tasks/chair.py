"""CHAIR: how many of the objects that a description names are not in the image (Rohrbach et al., 2018).

CHAIR_S is the share of descriptions with an object that is not there, CHAIR_I the share of such mentions among all
mentions, recall the share of the image's objects that are named, length the mean number of tokens. Choices that
published figures often leave unsaid are fields here and part of every record: how words are brought to their base form,
whether an unfinished last sentence counts, and which images are described.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

from airvlm.tasks.answers import Entry, raise_on_entries, score_format
from airvlm.tasks.base import DESCRIBE, UNPARSED, Coverage, Item, Metric, Ratio, Scores, Task, TaskDataMissing
from airvlm.tasks.bleu import BLEU_METRICS, count_bleu
from airvlm.tasks.files.coco import (
    Instances,
    choose_expected_images,
    find_annotation_files,
    find_images,
    get_image_key,
    read_descriptions,
    read_labels,
    read_objects,
    read_references,
    read_split,
    require_category,
)
from airvlm.tasks.files.reading import find_file
from airvlm.tasks.words.base_forms import Words
from airvlm.tasks.words.objects import Mention, count_tokens, find_mentions
from airvlm.tasks.words.tagger import describe_tagger, load_tagger

__all__ = ["CHAIR_METRICS", "Chair", "Descriptions", "draw_images", "read_described_images"]

IMAGES = 500
SPLITS = ("test", "validation", "calibration")
# measured against the official script on the 240 captions of tests/data/chair, which the rules were not written for
APPROXIMATION = (
    "approximate: words are tagged by rules instead of NLTK's tagger. On 240 captions that the rules were not written "
    "for, 2.1 % had other objects than the official script found, and CHAIR_S, CHAIR_I and recall were off by 0.00, "
    "0.01 and 0.00 points; on captions of other models up to 0.20, 0.16 and 0.11 have been seen"
)
CHAIR_METRICS: dict[str, Metric] = {
    "CHAIR_S": Metric(Ratio("hallucinating", "descriptions"), "lower"),
    "CHAIR_I": Metric(Ratio("hallucinated", "mentions"), "lower"),
    "recall": Metric(Ratio("found", "objects")),
    "length": Metric(Ratio("tokens", "descriptions", scale=1.0), "neither"),
}


def drop_unfinished_sentence(text: str) -> str:
    """A description up to its last period; "" if it has none."""
    return text[: text.rfind(".") + 1]


def draw_images(images: Collection[str], seed: int, split: str, count: int = IMAGES) -> list[str]:
    """The images of a split, `count` of them in the order of a hash of seed and name: the same on every machine."""
    if split not in SPLITS:
        raise ValueError(f"unknown split {split!r}. Known: {', '.join(SPLITS)}")
    order = sorted(images, key=lambda image: hashlib.sha256(f"{seed}:{image}".encode()).hexdigest())
    first = SPLITS.index(split) * count
    return order[first : first + count]


@dataclass(frozen=True)
class Chair(Task):
    """CHAIR on COCO val2014 or on labeled images of one's own, with BLEU where there are reference captions."""

    words: Words = "pattern"  # base forms in the descriptions
    truth_words: Words = "pattern"  # base forms in the captions that the ground truth is read from
    drop_incomplete: bool = False  # cut a description after its last period (OPERA's rule at 64 tokens)
    seed: int = 0  # of the list of images
    approximate: bool = False  # wordnet: tag by rules instead of NLTK's tagger
    count: int = IMAGES  # images in the list of each split
    objects: Path | None = None  # a label file for one's own images, see files/coco.py

    name: ClassVar[str] = "chair"
    kind = "caption"
    max_new_tokens: ClassVar[int] = 64
    variants: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "pattern": {"words": "pattern", "truth_words": "pattern"},
        "wordnet": {"words": "wordnet", "truth_words": "pattern"},  # OPERA's and MemVR's tables
        "wordnet-truth": {"words": "wordnet", "truth_words": "wordnet"},
        "exact": {"words": "exact", "truth_words": "exact"},  # without either library's errors
        "pattern-complete": {"words": "pattern", "truth_words": "pattern", "drop_incomplete": True},
        "wordnet-complete": {"words": "wordnet", "truth_words": "pattern", "drop_incomplete": True},
    }
    source: ClassVar[str] = "CHAIR on COCO val2014; --data FOLDER with annotations/ and val2014/"

    def items(self, limit: int | None = None, split: str = "test") -> list[Item]:
        self.check_installed()  # fails now instead of after the generation
        if self.objects is not None:
            return self._read_labeled(split)[:limit]
        folder = self.require_folder("COCO's annotations/ and val2014/ (images)")
        files = _read_image_files(folder)
        ids = draw_images(list(files), self.seed, split, self.count)[:limit]
        objects, references = read_objects(folder, self._extractors[1], set(ids)), read_references(folder, set(ids))
        places = ("val2014", "images/val2014", "images")
        return [
            Item(
                id=image,
                image=find_file(folder, files[image], *places, task=self.name),
                question=DESCRIBE,
                truth=sorted(objects[image]),
                meta={"references": references.get(image, [])},
            )
            for image in ids
        ]

    def check_installed(self) -> None:
        if "wordnet" in self._extractors:
            load_tagger()

    def _read_labeled(self, split: str) -> list[Item]:
        """The user's own images with the user's own labels."""
        assert self.objects is not None
        folder, file = self.require_folder("the images that --objects names"), Path(self.objects)
        changed = file.stat().st_mtime_ns if file.is_file() else 0
        return list(_read_labeled(self, file, folder, split, (changed, folder.stat().st_mtime_ns)))

    @property
    def _extractors(self) -> tuple[Words, Words]:
        """How words are brought to base forms in descriptions and in the captions of the ground truth."""
        words, truth_words = (
            "wordnet-rules" if self.approximate and words == "wordnet" else words
            for words in (self.words, self.truth_words)
        )
        return words, truth_words

    @property
    def variant_name(self) -> str:
        return super().variant_name + (" (approximate)" if "wordnet-rules" in self._extractors else "")

    def settings(self) -> dict[str, Any]:
        """The fields, the tagger, and the list of images, without which nobody could repeat the figures."""
        needs_tagger = {"wordnet", "wordnet-rules"} & set(self._extractors)
        own = super().settings() | {"tagger": describe_tagger(self.approximate) if needs_tagger else None}
        if self.objects is not None:
            own["images"] = [item.id for item in self._read_labeled("test")]
        elif self.data is not None:
            own["images"] = draw_images(
                list(_read_image_files(self.require_folder("COCO"))), self.seed, "test", self.count
            )
        return own

    def parse(self, item: Item, text: str) -> list[Mention]:
        return find_mentions(self._cut(text), self._extractors[0])

    def _cut(self, text: str) -> str:
        return drop_unfinished_sentence(text) if self.drop_incomplete else text

    def score(self, items: Sequence[Item], answers: Sequence[str | None]) -> Scores:
        """Each item's truth is the collection of categories in its image, or None if they are not known."""
        metrics = dict(CHAIR_METRICS)
        notes: tuple[str, ...] = ()
        if any(item.truth is None for item in items):
            metrics, notes = {"length": CHAIR_METRICS["length"]}, ("no ground truth: objects are listed only",)
        if any(item.meta.get("references") for item in items):
            metrics |= BLEU_METRICS
        if "wordnet-rules" in self._extractors:
            notes += (APPROXIMATION,)
        return Scores.of(items, answers, self._count, metrics, notes, self.variant_name)

    def _count(self, item: Item, answer: str) -> tuple[dict[str, float], dict[str, Any]]:
        text, mentions, objects = self._cut(answer), self.parse(item, answer), set(item.truth or ())
        wrong = [mention for mention in mentions if mention.category not in objects and item.truth is not None]
        counts = {"descriptions": 1, "mentions": len(mentions), "tokens": count_tokens(text, self._extractors[0])}
        if item.truth is not None:
            counts |= {
                "hallucinating": int(bool(wrong)),
                "hallucinated": len(wrong),
                "found": len({mention.category for mention in mentions} & objects),
                "objects": len(item.truth),
            }
        # an empty description hallucinates nothing and says nothing
        if not text.strip():
            counts[UNPARSED] = 1
        bleu = count_bleu(text, item.meta["references"]) if item.meta.get("references") else {}
        details = {
            "objects": [mention.category for mention in mentions],
            "words": [mention.word for mention in mentions],
        }
        if item.truth is not None:
            details["hallucinated"] = [mention.category for mention in wrong]
            details["hallucinated_words"] = [mention.word for mention in wrong]
        return {name: float(value) for name, value in counts.items()} | bleu, details


@lru_cache(maxsize=6)
def _read_labeled(task: Chair, file: Path, folder: Path, split: str, changed: object) -> tuple[Item, ...]:
    """Cached, because a hundred thousand labels take seconds to read; `changed` has the files' modification times."""
    labels = read_labels(file)
    paths = find_images(folder, labels)
    if not paths:
        raise TaskDataMissing(f"{task.name}: {folder} has none of the images that {file} names")
    listed = read_split(file, split)
    images = draw_images(list(paths), task.seed, split, task.count) if listed is None else listed
    return tuple(
        Item(image, paths[image], DESCRIBE, sorted({require_category(name, file) for name in labels[image]}))
        for image in images
        if image in paths
    )


@lru_cache(maxsize=4)
def _read_image_files(folder: Path) -> dict[str, str]:
    """Image -> file name of all images of val2014."""
    file = next((f for f in find_annotation_files(folder, "instances") if "val2014" in f.name), None)
    if file is None:
        raise TaskDataMissing(f"chair: no instances_val2014.json in {folder} or its annotations/")
    return {get_image_key(image): name for image, name in Instances(file).files.items()}


# -- files of descriptions


@dataclass(frozen=True)
class Descriptions:
    """Descriptions in a file's order, the objects in their images, and what a reader of their scores has to know."""

    entries: list[Entry[str]]
    objects: Mapping[str, list[str]]
    coverage: Coverage
    notes: tuple[str, ...]

    def annotate(self, scores: Scores) -> Scores:
        """The scores of these descriptions with their coverage and notes."""
        return replace(scores, coverage=self.coverage, notes=(*self.notes, *scores.notes))


def read_described_images(path: Path, truth: Path | None, words: Words, *, lenient: bool) -> Descriptions:
    """Read a file of descriptions and the objects in their images.

    The official scripts count every description of an image, so several different ones are counted here too, with a
    note. A description that is repeated word for word is an error unless `lenient` is set.

    Args:
        path: the descriptions, see `read_descriptions`.
        truth: a COCO annotations folder or a label file; None: the objects are not known.
        words: how objects are found in the captions of the annotations.
        lenient: count repeated descriptions and leave out those of unknown images.
    """
    entries = read_descriptions(path)
    empty = sum(not entry.value.strip() for entry in entries)
    if empty == len(entries):
        raise ValueError(f"{path}: all {len(entries)} descriptions are empty")
    notes = [f"{empty} of {len(entries)} descriptions are empty and count as free of hallucination"] if empty else []
    repeated, several = _find_repeated(entries)
    if not lenient:
        raise_on_entries(repeated, path, "is a duplicate, word for word", "with --lenient each counts")
    if several:
        notes.append(f"{several} images have several descriptions: each counts, as in the official script")
    if truth is None:
        coverage = Coverage(len(entries), len(entries), len(entries), len(repeated))
        return Descriptions(entries, {}, coverage, tuple(notes))
    if not all(entry.key for entry in entries):
        raise ValueError(f"{path}: its descriptions do not name the images, so they cannot be compared with {truth}")
    described, known = {entry.key for entry in entries}, set[str]()
    objects = read_objects(truth, words, described, known)
    unknown = [entry for entry in entries if entry.key not in objects]
    if len(unknown) == len(entries):
        raise ValueError(f"{truth} has none of the images of {path}, such as {entries[0].key!r}")
    if not lenient:
        problem = f"is about an image that {truth.name} does not know"
        raise_on_entries(unknown, path, problem, "with --lenient it is left out")
    kept = [entry for entry in entries if entry.key in objects]
    images = {entry.key for entry in kept}
    missing = choose_expected_images(known or objects, images) - described
    coverage = Coverage(len(kept) + len(missing), len(entries), len(kept), len(repeated), len(unknown))
    return Descriptions(kept, {image: sorted(objects[image]) for image in images}, coverage, tuple(notes))


def _find_repeated(entries: Sequence[Entry[str]]) -> tuple[list[Entry[str]], int]:
    """Descriptions that repeat an earlier one of their image, and the number of images with several different ones."""
    seen: set[tuple[str, str]] = set()
    repeated = []
    for entry in entries:
        if entry.key and (entry.key, entry.value) in seen:
            repeated.append(entry)
        seen.add((entry.key, entry.value))
    counts = Counter(key for key, _ in seen if key)
    return repeated, sum(count > 1 for count in counts.values())


@score_format.register
def score_chair_file(task: Chair, path: Path, truth: Path | None = None, *, lenient: bool = False) -> Scores:
    """Score descriptions by image, against a COCO annotations folder or a label file."""
    truth = truth or task.objects or task.data
    described = read_described_images(path, truth, task._extractors[1], lenient=lenient)
    references = read_references(truth, set(described.objects)) if truth is not None and truth.is_dir() else {}
    items = [
        Item(
            id=entry.key or str(number),
            image=None,
            question=DESCRIBE,
            truth=None if truth is None else described.objects[entry.key],
            meta={"references": references.get(entry.key, [])},
        )
        for number, entry in enumerate(described.entries)
    ]
    return described.annotate(task.score(items, [entry.value for entry in described.entries]))
