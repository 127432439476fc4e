"""RITUAL (2024) and ED (ICLR 2025): what other views of the image also make likely is added to the answer.

* RITUAL: l* = (l + alpha l') / (1 + alpha) where l >= max l + log beta, with l' the logits for a transformed image.
* ED: l* = (1 - alpha) l + alpha e where e >= max e + log beta, with e = sum of w_q l_q over the image's quadrants and w
  the softmax of 10^tau s; s_q is what the last query's attention pays to quadrant q: per visual token the mean of the
  three largest layers and then of the three largest heads.

`faithful=True` of RITUAL is the published code: l + alpha l' without the division (a temperature of 1/4 at alpha = 3),
all six transformations, drawn from Python's global generator, and nothing at all unless tokens are sampled.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from PIL import Image
from torch import Tensor

from airvlm.methods.base import option
from airvlm.methods.templates.attention import AttentionIntervention
from airvlm.methods.templates.contrastive import ContrastiveIntervention, ContrastiveMethod, OnlySampling
from airvlm.methods.views import SAFE, VIEWS, View, edit_views, find_grid, original_images, quadrants, view
from airvlm.runtime.attention import AttentionChange, fit_keys
from airvlm.runtime.intervention import Context, ForwardPass, GenerateCall, Intervention
from airvlm.runtime.streams import Stream

__all__ = ["ED", "RITUAL"]


@dataclass(frozen=True)
class RITUAL(ContrastiveMethod):
    """Adds the logits for a randomly transformed image."""

    name: ClassVar[str] = "ritual"
    paper: ClassVar[str | None] = "RITUAL: random image transformations (arXiv 2405.17821)"
    summary: ClassVar[str] = "adds what the model would say of a randomly transformed image"
    site: ClassVar[str] = "logits"
    cost: ClassVar[str] = "2 passes"
    needs_pixels: ClassVar[bool] = True

    alpha: float = option(3.0, "weight of the transformed image; 0 is off", low=0, off=0, search=(0.25, 4.0))
    beta: float = option(0.1, "tokens less likely than beta times the likeliest are never said", low=0, high=1)
    transform: Literal["safe", "all", "identity", "mirror", "flip", "rotate", "color", "blur", "crop"] = option(
        "safe", "how images are transformed; safe draws from color, blur and crop, which keep left and right"
    )
    normalize: bool = option(True, "divide by 1 + alpha: without it the sum is also a temperature of 1 / (1 + alpha)")
    seed: int = option(0, "seed of the transformation, together with each image's content")
    faithful: bool = option(False, "compute what the published code does, flaws included")

    def streams(self, context: Context) -> Sequence[Stream]:
        return [Stream(self.name, context.parts, images=edit_views(self.name, context, self.transform_image))]

    def transform_image(self, image: Image.Image, key: str) -> Image.Image:
        """The view of one image."""
        draw = random.Random(random.getrandbits(64)) if self.faithful else random.Random(f"{self.seed} {key}")
        kinds: tuple[View, ...] = SAFE
        if self.faithful or self.transform == "all":
            kinds = VIEWS[1:]  # all but the identity
        elif self.transform != "safe":
            kinds = (self.transform,)
        return view(image, draw.choice(kinds), draw)

    def weights(self, l: Tensor, others: Sequence[Tensor], fp: ForwardPass) -> Sequence[float]:
        total = 1 + self.alpha if self.normalize and not self.faithful else 1.0
        return 1 / total, self.alpha / total

    def start(self, context: Context) -> Intervention:
        return OnlySampling(self, context) if self.faithful else ContrastiveIntervention(self, context)


@dataclass(frozen=True)
class ED(ContrastiveMethod):
    """Ensemble decoding: adds the logits for the image's quadrants, by the attention that they get."""

    name: ClassVar[str] = "ed"
    paper: ClassVar[str | None] = "Do you keep an eye on what I ask? ED (ICLR 2025, arXiv 2505.17529)"
    summary: ClassVar[str] = "adds what the model would say of the image's quadrants, by the attention they get"
    site: ClassVar[str] = "logits"
    cost: ClassVar[str] = "5 passes, and the last query's attention in all layers"
    needs_pixels: ClassVar[bool] = True

    alpha: float = option(0.5, "share of the quadrants; 0 is off", low=0, high=1, off=0, search=(0.1, 0.9))
    beta: float = option(
        0.5, "tokens less likely for the quadrants than beta times the likeliest are never said", low=0, high=1
    )
    tau: float = option(4.0, "the attention is multiplied by 10 to the power tau before the softmax", low=0, high=8)
    uniform: bool = option(False, "weigh all quadrants alike: a control of the attention")

    def streams(self, context: Context) -> Sequence[Stream]:
        def quarter(q: int) -> Stream:
            views = edit_views(self.name, context, lambda image, key: quadrants(image)[q])
            return Stream(self.name, context.parts, images=views)

        return [quarter(q) for q in range(4)]

    def cut(self, l: Tensor, others: Sequence[Tensor]) -> Tensor | None:
        return None  # by the quadrants, whose weights the intervention knows

    def start(self, context: Context) -> Intervention:
        return _Ensemble(self, context)


class _Ensemble(ContrastiveIntervention):
    method: ED

    def __init__(self, method: ED, context: Context) -> None:
        super().__init__(method, context)
        self._look = None if method.uniform else _Look(method, context)
        self._w: Tensor | None = None  # (B, 4) of the current pass

    def open(self, stack: ExitStack) -> None:
        super().open(stack)
        if self._look is not None:
            self._look.open(stack)

    def on_call(self, call: GenerateCall) -> None:
        super().on_call(call)
        if self._look is not None:
            self._look.on_call(call)

    def on_pass(self, fp: ForwardPass) -> None:
        super().on_pass(fp)
        if self._look is not None:
            self._look.start_pass(fp)

    def problem(self) -> str | None:
        return None if self._look is None else self._look.problem()

    @torch.no_grad()
    def logits(self, fp: ForwardPass, logits: Tensor) -> Tensor | None:
        if self._look is None:
            self._w = torch.full((len(logits), 4), 0.25, device=logits.device)
        else:
            s = self._look.shares().to(logits.device)  # (B, 4)
            self._w = (s * 10**self.method.tau).softmax(-1)
        return super().logits(fp, logits)

    def _contrast(self, l: Tensor, others: list[Tensor], fp: ForwardPass) -> tuple[Tensor, Tensor, Tensor]:
        assert self._w is not None
        w = self._w.T[:, :, None, None]  # (4, B, 1, 1)
        e = (torch.stack([other.float() for other in others]) * w).sum(0)  # (B, L, V)
        exact = l.float()
        mixed = (1 - self.method.alpha) * exact + self.method.alpha * e
        p = exact.softmax(-1)
        alone = torch.zeros(len(l), device=l.device)
        if self.method.beta:
            removed = e < e.amax(-1, keepdim=True) + math.log(self.method.beta)
            mixed = mixed.masked_fill(removed, torch.finfo(l.dtype).min)
            alone = (p * removed).sum((-1, -2))
        limits = torch.finfo(l.dtype)
        mixed = mixed.clamp(limits.min, limits.max).to(l.dtype)
        return mixed, 0.5 * (mixed.float().softmax(-1) - p).abs().sum((-1, -2)), alone


class _Look(AttentionIntervention):
    """What the last query's attention pays to each quadrant of the images."""

    TOP = 3  # layers, and then heads, that are averaged

    def __init__(self, method: ED, context: Context) -> None:
        super().__init__(method, context)
        self.span = range(len(context.parts.layers))
        self._rows: dict[int, Tensor] = {}  # layer -> (B, H, T)
        self._quadrant: Tensor | None = None  # (B, total) 0 to 3 at visual tokens, 4 elsewhere
        self._length = 1

    def on_pass(self, fp: ForwardPass) -> None:
        super().on_pass(fp)
        self._rows.clear()
        self._length = fp.length
        if fp.visual is not None:
            self._quadrant = self._locate(fp)

    def _locate(self, fp: ForwardPass) -> Tensor:
        assert fp.visual is not None
        original_images(self.context, self.method.name)  # raises without them
        found = torch.full((fp.batch_size, self.total), 4)
        for tokens in self.context.images.locate(fp):
            image = tokens.images[0].pixels
            assert isinstance(image, Image.Image)
            grid = find_grid(self.context.parts, len(tokens.positions), image.size) if len(tokens.images) == 1 else None
            if grid is None:
                raise ValueError(
                    f"{self.method.name}: the visual tokens of {self.context.parts.family} form no grid over an image. "
                    "Use uniform=True"
                )
            rows, columns = grid
            below = (2 * torch.arange(rows) >= rows).long()[:, None]
            right = (2 * torch.arange(columns) >= columns).long()[None]
            found[tokens.row, tokens.positions.cpu()] = (2 * below + right).flatten()
        return found.repeat_interleave(fp.beams, 0).to(fp.visual.device)

    def attention_of(self, layer: int) -> AttentionChange | None:
        def observe(p: Tensor) -> None:  # (B, H, 1, T)
            self._rows[layer] = p[:, :, -1]

        return AttentionChange(self.total, first=self._length - 1, observe=observe)

    def shares(self) -> Tensor:
        """(B, 4): the largest three layers and heads averaged per visual token, summed per quadrant."""
        assert self._quadrant is not None
        if not self._rows:  # nothing follows the image yet
            return torch.zeros(len(self._quadrant), 4)
        rows = torch.stack([row.to(self._quadrant.device) for row in self._rows.values()])  # (n, B, H, T)
        top = rows.topk(min(self.TOP, len(rows)), 0).values.mean(0)  # (B, H, T)
        top = top.topk(min(self.TOP, top.shape[1]), 1).values.mean(1)  # (B, T)
        padded = torch.nn.functional.pad(self._quadrant, (0, self.total - self._quadrant.shape[1]), value=4)
        own = fit_keys(padded, top.shape[-1], self.total)
        return torch.stack([(top * (own == q)).sum(-1) for q in range(4)], -1)
