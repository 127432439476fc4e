"""A file of descriptions beside the objects that are in its images, as CHAIR and its relatives need them.

Knows nothing about metrics. The official scripts count every description of an image, so that several different ones
are counted here too, with a note; a description that stands there twice word for word is a duplicate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from airvlm.tasks.base import Scores
from airvlm.tasks.coverage import Coverage, Given, doubles, known_images, refuse
from airvlm.tasks.files.coco import read_captions, read_objects
from airvlm.tasks.words.singular import Words

__all__ = ["Described"]


@dataclass(frozen=True)
class Described:
    """Descriptions in the file's order, and what is in their images."""

    images: list[str]
    texts: list[str]
    objects: Mapping[str, list[str]]
    coverage: Coverage
    notes: tuple[str, ...]

    @classmethod
    def read(cls, answers: Path, truth: Path | None, words: Words, *, lenient: bool) -> Described:
        """The descriptions of a file; `truth` None: nothing is known of the images."""
        given = read_captions(answers)
        notes: list[str] = []
        if all(not one.value.strip() for one in given):
            raise ValueError(f"{answers}: all {len(given)} descriptions are empty")
        empty = sum(not one.value.strip() for one in given)
        if empty:
            notes.append(f"{empty} of {len(given)} descriptions are empty: they hallucinate nothing and count as clean")
        repeated, several = doubles(given) if any(one.key for one in given) else ([], 0)
        if not lenient:
            refuse(repeated, answers, "stands there twice, word for word", "each counts with --lenient")
        if several:
            notes.append(f"{several} images have several descriptions: each counts, as in the official script")
        if truth is None:
            return cls([one.key for one in given], [one.value for one in given], {},
                       replace(Coverage.whole(len(given)), duplicate=len(repeated)), tuple(notes))  # fmt: skip
        return cls._with_truth(given, answers, truth, words, len(repeated), notes, lenient=lenient)

    @classmethod
    def _with_truth(
        cls, given: list[Given[str]], answers: Path, truth: Path, words: Words, repeated: int,
        notes: list[str], *, lenient: bool
    ) -> Described:  # fmt: skip
        nameless = [one for one in given if not one.key]
        if nameless:
            raise ValueError(f"{answers}: its descriptions name no images, which are to be compared with {truth}")
        named = frozenset(one.key for one in given)
        every: set[str] = set()
        objects = read_objects(truth, words, named, every)
        unknown = [one for one in given if one.key not in objects]
        if len(unknown) == len(given):
            raise ValueError(f"{truth} knows none of the images of {answers}, such as {given[0].key!r}")
        if not lenient:
            refuse(
                unknown,
                answers,
                f"is about an image that {truth.name} does not know",
                "--lenient leaves it out",
            )
        kept = [one for one in given if one.key in objects]
        expected = known_images(every or objects, (one.key for one in kept))
        lacking = expected - named
        several = len(kept) - len({one.key for one in kept})  # an image may be described several times
        coverage = Coverage(len(expected) + several, len(given), len(kept), repeated, len(unknown))
        assert coverage.missing == len(lacking)
        return cls(
            [one.key for one in kept],
            [one.value for one in kept],
            {image: sorted(objects[image]) for image in {one.key for one in kept}},
            coverage,
            tuple(notes),
        )

    def scored(self, scores: Scores) -> Scores:
        """The scores of the descriptions, with what is to be known of the file."""
        return replace(scores, coverage=self.coverage, notes=(*self.notes, *scores.notes))
