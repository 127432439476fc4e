"""Controls that look at several views of an image: test-time augmentation, and voting over crops.

Both are what one would do without any method. A method that uses crops or transformed images should beat them.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import torch
from PIL import Image
from torch import Tensor

from airvlm.methods.base import option
from airvlm.methods.templates.contrastive import ContrastiveIntervention, ContrastiveMethod
from airvlm.methods.views import SAFE, View, edit_views, quadrants, view
from airvlm.runtime.intervention import Context, ForwardPass, Intervention
from airvlm.runtime.streams import Stream

__all__ = ["CropVote", "TestTimeAugmentation"]


@dataclass(frozen=True)
class TestTimeAugmentation(ContrastiveMethod):
    """The mean of the log-probabilities for the image and for other views of it."""

    __test__ = False  # not a test, whatever its name

    name: ClassVar[str] = "tta"
    summary: ClassVar[str] = "control: the mean log-probability over the image and other views of it"
    site: ClassVar[str] = "control"
    cost: ClassVar[str] = "1 pass, and one per view"
    needs_pixels: ClassVar[bool] = True

    views: int = option(3, "other views beside the image; 0 is off", low=0, high=16, off=0)
    transform: Literal["safe", "mirror", "color", "blur", "crop"] = option(
        "safe", "how images are transformed; safe draws from color, blur and crop"
    )
    seed: int = option(0, "seed of the views, together with each image's content")

    def transform_image(self, image: Image.Image, key: str, number: int) -> Image.Image:
        """One view of an image."""
        draw = random.Random(f"{self.seed} {number} {key}")
        kinds: tuple[View, ...] = SAFE if self.transform == "safe" else (self.transform,)
        return view(image, draw.choice(kinds), draw)

    def streams(self, context: Context) -> Sequence[Stream]:
        changes = [partial(self.transform_image, number=number) for number in range(self.views)]
        return [Stream(self.name, context.parts, images=edit_views(self.name, context, change)) for change in changes]

    def start(self, context: Context) -> Intervention:
        return _Mean(self, context)


class _Mean(ContrastiveIntervention):
    def _contrast(self, l: Tensor, others: list[Tensor], fp: ForwardPass) -> tuple[Tensor, Tensor, Tensor]:
        every = torch.stack([one.float().log_softmax(-1) for one in (l, *others)])
        mixed = every.mean(0).to(l.dtype)
        moved = 0.5 * (mixed.float().softmax(-1) - every[0].exp()).abs().sum((-1, -2))
        return mixed, moved, torch.zeros_like(moved)


@dataclass(frozen=True)
class CropVote(ContrastiveMethod):
    """Each token by majority: the image and its four quadrants have one vote each; the image breaks ties."""

    name: ClassVar[str] = "crop-vote"
    summary: ClassVar[str] = "control: the image and its quadrants vote on every token"
    site: ClassVar[str] = "control"
    cost: ClassVar[str] = "5 passes"
    decoding: ClassVar[tuple[str, ...]] = ("greedy",)
    needs_pixels: ClassVar[bool] = True

    def streams(self, context: Context) -> Sequence[Stream]:
        def quarter(q: int) -> Stream:
            views = edit_views(self.name, context, lambda image, key: quadrants(image)[q])
            return Stream(self.name, context.parts, images=views)

        return [quarter(q) for q in range(4)]

    def start(self, context: Context) -> Intervention:
        return _Vote(self, context)


class _Vote(ContrastiveIntervention):
    def _contrast(self, l: Tensor, others: list[Tensor], fp: ForwardPass) -> tuple[Tensor, Tensor, Tensor]:
        votes = torch.zeros_like(l, dtype=torch.float32)
        for one in (l, *others):
            choice = one.argmax(-1, keepdim=True)
            votes.scatter_add_(-1, choice, torch.ones_like(choice, dtype=torch.float32))
        lost = votes < votes.amax(-1, keepdim=True)
        mixed = l.masked_fill(lost, torch.finfo(l.dtype).min)
        moved = (l.float().softmax(-1) * lost).sum((-1, -2))
        return mixed, moved, torch.zeros_like(moved)
