"""Sight: which pictures each row of a batch shows, where their tokens lie, and the evidence of each.

Turns `images=` (or the pixel tensor) and one prefill's embeddings into evidence, all pictures of the batch together,
each of them once. Knows nothing of what a method does with the evidence.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor, nn

from airvlm.hooks.intervention import Call, Step
from airvlm.hooks.run import Run
from airvlm.images.cache import cache_of, content_key, serial, weights_state
from airvlm.images.load import read_image
from airvlm.methods.air.evidence import Evidence, gather
from airvlm.methods.air.recipe import Recipe
from airvlm.methods.air.views import Glance, Picture, Source, Views, look

__all__ = ["Seen", "Sight"]


@dataclass(frozen=True)
class Seen:
    """A picture in a row."""

    positions: Tensor  # (K,) of its tokens in the row
    evidence: Evidence


@dataclass(frozen=True)
class _Image:
    """An image to crop from, and its identity."""

    picture: Picture
    key: str


@dataclass(frozen=True)
class _Shown:
    """Pictures in a row whose tokens cannot be told apart (mostly just one), and their tokens."""

    row: int
    positions: Tensor  # (K,)
    keys: tuple[str, ...]


class Sight:
    """The eyes of one run."""

    def __init__(self, run: Run, recipe: Recipe, glance: Glance, source: Source, *, carrying: bool) -> None:
        self.run = run
        self.recipe = recipe
        self.glance = replace(glance, shrunk=source == "shrunk")
        self.other = source == "other"
        self.carrying = carrying
        self.seconds = {"crops": 0.0, "transport": 0.0}
        self._images = None if run.images is None else _loaded(run.images)
        self._pictures: dict[str, Picture] = {}  # by content
        self._tensors: dict[
            int, tuple[Tensor, list[_Image]]
        ] = {}  # pixel tensors, kept alive, and their images
        self._pixels: Tensor | None = None
        if self._images is not None and run.processor is None:
            raise ValueError(
                f"{run.method.name} encodes crops of the pictures with the model's processor: pass it as the "
                "second argument, method(model, processor, images=...)"
            )

    def call(self, call: Call) -> None:
        """generate encodes pictures before prefill, so their pixels are only seen here."""
        self._pixels = call.arguments.get("pixel_values")
        if self._images is None and not (self.run.anatomy.plain_pixels and self._pixels is not None):
            ids: Any = call.arguments.get("input_ids", call.arguments.get("inputs"))
            if bool(torch.isin(ids, self.run.anatomy.image_token_id).any()):
                self._refuse()

    def _refuse(self) -> None:
        raise ValueError(
            f"{self.run.method.name} needs the pictures to crop, and {self.run.anatomy.family} does not show them "
            "as a plain pixel tensor here: pass them, method(model, processor, images=[one or more a row])"
        )

    def see(self, step: Step, embeds: Tensor) -> list[list[Seen]]:
        """The pictures of each row of the caller's batch, from the decoder's own input embeds (B, L, d)."""
        assert step.visual is not None
        visual = step.visual[:: step.expand]  # (rows, L): copies of a row show the same
        own = embeds[:: step.expand]
        counts = visual.sum(1).tolist()
        positions = visual.nonzero()[:, 1].split(counts)
        shown = self._shown(positions, counts, step)
        Z = [own[part.row, part.positions] for part in shown]  # (K, d) a part
        evidence = self._evidence(shown, Z)
        rows: list[list[Seen]] = [[] for _ in counts]
        for part, found in zip(shown, evidence, strict=True):
            rows[part.row].append(Seen(part.positions, found))
        return rows

    def _evidence(self, shown: list[_Shown], Z: list[Tensor]) -> list[Evidence]:
        """Kept evidence where there is some of the same tokens; all other is gathered together, and kept."""
        started = time.perf_counter()
        cache = cache_of(self.run.anatomy.model)
        keys = self._evidence_keys(shown)
        marks = [_mark(own) for own in Z]
        known = [cache.get("evidence", key) or (None, marks[keys.index(key)]) for key in keys]
        # What acted before (another method, say) may have changed the tokens: the key cannot know, the mark does.
        same = _same(marks, [mark for _, mark in known])
        found: dict[int, Evidence] = {
            i: one for i, (one, _) in enumerate(known) if same[i] and one is not None
        }
        first = {
            i: keys.index(key) if alike else i for i, (key, alike) in enumerate(zip(keys, same, strict=True))
        }
        pending = [i for i in first if first[i] == i and i not in found]
        if pending:
            views = self._views([shown[i] for i in pending])
            encoded = time.perf_counter()
            self.seconds["crops"] += encoded - started
            gathered = gather([Z[i] for i in pending], views, self.recipe, carrying=self.carrying)
            for i, evidence in zip(pending, gathered, strict=True):
                found[i] = evidence
                cache.put("evidence", keys[i], (evidence, marks[i]))
            self.seconds["transport"] += time.perf_counter() - encoded
        return [found[i] if i in found else found[first[i]] for i in range(len(keys))]

    def _evidence_keys(self, shown: list[_Shown]) -> list[Hashable]:
        """All that evidence depends on, but for the tokens themselves."""
        recipe = tuple(getattr(self.recipe, field.name) for field in fields(Recipe))
        processor = getattr(self.run.processor, "image_processor", self.run.processor)
        common = (
            recipe,
            self.carrying,
            self.glance,
            serial(processor),
            weights_state(self.run.anatomy.model),
        )
        return [
            (part.keys, tuple(self._source(key) for key in part.keys), len(part.positions), *common)
            for part in shown
        ]

    # -- which picture is where

    def _shown(self, positions: Sequence[Tensor], counts: list[int], step: Step) -> list[_Shown]:
        shown = []
        by_row = self._by_row(counts, step)
        for image in (image for images in by_row for image in images):
            self._pictures.setdefault(image.key, image.picture)
        for row, (own, images) in enumerate(zip(positions, by_row, strict=True)):
            if not counts[row]:
                continue
            keys = [image.key for image in images]
            parts = _shares(own, [image.picture for image in images])
            if parts is None:
                shown.append(_Shown(row, own, tuple(keys)))
            else:
                shown += [_Shown(row, part, (key,)) for part, key in zip(parts, keys, strict=True)]
        return shown

    def _by_row(self, counts: list[int], step: Step) -> list[list[_Image]]:
        if self._images is not None:
            return _assigned(self._images, counts)
        pixels = self._pixels if self._pixels is not None else step.inputs.get("pixel_values")
        if not self.run.anatomy.plain_pixels or pixels is None or pixels.dim() != 4:
            self._refuse()
        assert pixels is not None
        K, rest = divmod(sum(counts), len(pixels))  # every picture has as many tokens
        if rest or any(count % K for count in counts):
            raise ValueError(
                f"{sum(counts)} image tokens cannot be shared by the {len(pixels)} pictures of the input"
            )
        if id(pixels) not in self._tensors:
            self._tensors[id(pixels)] = pixels, [_Image(one, content_key(one)) for one in pixels]
        each = iter(self._tensors[id(pixels)][1])
        return [[next(each) for _ in range(count // K)] for count in counts]

    def _views(self, shown: list[_Shown]) -> list[Views]:
        run = self.run
        wanted = {key: self._source(key) for part in shown for key in part.keys}
        keys = list(dict.fromkeys(wanted.values()))
        found = look(run.anatomy, run.processor, [self._pictures[key] for key in keys], keys, self.glance)
        known = dict(zip(keys, found, strict=True))
        return [_joined([known[wanted[key]] for key in part.keys]) for part in shown]

    def _source(self, key: str) -> str:
        if not self.other:
            return key
        keys = list(self._pictures)
        if len(keys) < 2:
            raise ValueError(
                "source='other' takes another picture's crops: give a batch with two unlike pictures"
            )
        return keys[(keys.index(key) + 1) % len(keys)]


def _loaded(images: Any) -> list[list[_Image]]:
    """`images=` as a list of rows, or of images; see `_assigned`."""
    items = list(images) if isinstance(images, list | tuple) else [images]
    return [_listed(item) for item in items]


def _listed(item: Any) -> list[_Image]:
    images = item if isinstance(item, list | tuple) else [] if item is None else [item]
    return [_Image(read.rgb, read.key) for read in map(read_image, images)]


def _mark(Z: Tensor) -> Tensor:
    """One number a token, (K,): tokens that differ have other marks."""
    return Z.float() @ torch.arange(1, Z.shape[-1] + 1, device=Z.device).cos()


def _same(marks: list[Tensor], others: list[Tensor]) -> list[bool]:
    """Whether marks are of the same tokens, up to the rounding of another batch; one read-back for all."""
    same = [one is other for one, other in zip(marks, others, strict=True)]
    open_ = [i for i, one in enumerate(marks) if not same[i] and one.device == others[i].device]
    near = [(marks[i] - others[i]).abs().amax() <= 1e-3 * others[i].abs().amax() for i in open_]
    for i, alike in zip(open_, torch.stack(near).tolist() if near else (), strict=True):
        same[i] = alike
    return same


def _assigned(items: list[list[_Image]], counts: list[int]) -> list[list[_Image]]:
    """The images of each row: one item a row, one a row with image tokens, or all of the only row."""
    showing = [row for row, count in enumerate(counts) if count]
    if len(items) == len(counts):
        rows = items
    elif len(items) == len(showing):
        rows = [items[showing.index(row)] if count else [] for row, count in enumerate(counts)]
    elif len(counts) == 1:
        rows = [[picture for item in items for picture in item]]
    else:
        raise ValueError(
            f"images= holds {len(items)} entries for a batch of {len(counts)} rows: give one entry a row, a picture, "
            "a list of pictures, or None"
        )
    for row in showing:
        if not rows[row]:
            raise ValueError(f"row {row} has image tokens, but images= holds no picture for it")
    return rows


def _shares(positions: Tensor, pictures: list[Picture]) -> list[Tensor] | None:
    """The tokens of each picture in a row; None where they cannot be told apart."""
    P = len(pictures)
    if P == 1:
        return [positions]
    gaps = (positions.diff() != 1).nonzero().flatten() + 1  # where a run of image tokens ends
    if len(gaps) + 1 == P:
        return list(positions.tensor_split(gaps.cpu()))
    alike = len({p.shape if isinstance(p, Tensor) else p.size for p in pictures}) == 1
    if alike and len(positions) % P == 0:
        return list(positions.split(len(positions) // P))
    return None  # tiles between other tokens, of unlike pictures: they are matched together


def _joined(views: list[Views]) -> Views:
    if len(views) == 1:
        return views[0]
    crops = [crop for view in views for crop in view.tokens]
    masks = [
        torch.ones(view.tokens.shape[:2], dtype=torch.bool, device=view.tokens.device)
        if view.mask is None
        else view.mask
        for view in views
    ]
    tokens = nn.utils.rnn.pad_sequence(crops, batch_first=True)
    mask = nn.utils.rnn.pad_sequence([row for own in masks for row in own], batch_first=True)
    return Views(tuple(box for view in views for box in view.boxes), views[0].size, tokens, mask)
