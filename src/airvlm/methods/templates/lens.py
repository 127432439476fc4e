"""LensMethod: changes the logits by what earlier layers would have said (the logit lens)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from airvlm.methods.base import Method
from airvlm.runtime.intervention import Context, ForwardPass, Intervention, token_chunks, without_methods

__all__ = ["LensIntervention", "LensMethod"]


@dataclass(frozen=True)
class LensMethod(Method):
    """Combines the logits with those read off earlier layers, at the positions whose next token is predicted."""

    site: ClassVar[str] = "logits"
    normed: ClassVar[bool] = True  # apply the final norm before the head; some published code leaves it out
    needs_images: ClassVar[bool] = False

    def lens_layers(self, depth: int) -> Sequence[int]:
        """The layers that are read in a decoder of `depth` layers; a layer's output is meant."""
        raise NotImplementedError

    def next_logits(self, l: Tensor, lens: Tensor, fp: ForwardPass) -> Tensor:
        """The new logits (B, L, V).

        Args:
            l: the model's logits (B, L, V), float32.
            lens: logits read off the layers, (n, B, L, V), float32.
            fp: the forward pass.
        """
        raise NotImplementedError

    def start(self, context: Context) -> Intervention:
        return LensIntervention(self, context)


class LensIntervention(Intervention):
    """One session of a LensMethod."""

    method: LensMethod
    changes_logits = acts_in_decode = True

    def __init__(self, method: LensMethod, context: Context) -> None:
        super().__init__(method, context)
        self.residual_layers = list(method.lens_layers(len(context.parts.layers)))
        self._read: dict[int, Tensor] = {}  # layer -> (B, L or 1, d)
        self._flips: Tensor | None = None  # (batch_size,)

    def on_call(self, call: Any) -> None:
        self._flips = None

    def residual(self, fp: ForwardPass, layer: int, h: Tensor) -> None:
        self._read[layer] = h[:, -1:] if fp.generating else h

    @torch.no_grad()
    def logits(self, fp: ForwardPass, logits: Tensor) -> Tensor | None:
        rows = self.active_rows(fp)
        if rows is None:
            return None
        parts, L = self.context.parts, logits.shape[1]
        new = torch.empty_like(logits)
        for at in token_chunks(L):
            h = torch.stack([self._read[i][:, -L:][:, at] for i in self.residual_layers])  # (n, B, R, d)
            with without_methods():  # the norm is where the last layer's output is read, by any session that is open
                lens = parts.head(parts.norm(h) if self.method.normed else h).to(logits.device).float()
            changed = self.method.next_logits(logits[:, at].float(), lens, fp)
            limits = torch.finfo(logits.dtype)
            new[:, at] = changed.clamp(limits.min, limits.max).to(logits.dtype)
        rows = rows.to(logits.device)
        new = torch.where(rows[:, None, None], new, logits)
        flips = (new.argmax(-1) != logits.argmax(-1)).view(fp.batch_size, -1).sum(-1).float()
        same = self._flips is not None and self._flips.shape == flips.shape
        self._flips = self._flips + flips.to(self._flips.device) if self._flips is not None and same else flips
        self.stats.count(rows.view(fp.batch_size, -1).sum(-1) * L)
        self._read.clear()
        return new

    def details(self, row: int | None, acted: bool) -> dict[str, Any]:
        flips = self.measured.get("flips", [])
        count = sum(flips) if row is None else flips[row] if row < len(flips) else 0
        return {"layers": tuple(self.residual_layers) if acted else (), "extra": {"likeliest_changed": int(count)}}

    def measures(self) -> dict[str, Tensor]:
        return {} if self._flips is None else {"flips": self._flips}
