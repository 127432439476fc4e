"""ContrastiveMethod: combines the model's logits with those of extra streams.

    l* = w_0 l + w_1 l_1 + w_2 l_2 + ...   where l >= max l + log beta, the lowest finite value elsewhere

A method writes `streams` (what each extra stream sees) and `weights`; caches, beams, rows of different lengths, float32
arithmetic, the cut-off and the report are handled here. Rows without an image are left alone.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from airvlm.methods.base import Method
from airvlm.runtime.attention import use_own_attention
from airvlm.runtime.intervention import Context, ForwardPass, GenerateCall, Intervention, token_chunks
from airvlm.runtime.streams import Stream

__all__ = ["ContrastiveIntervention", "ContrastiveMethod", "OnlySampling", "combine"]

Weight = float | Tensor  # one for all, or per position: broadcastable to (B, L, 1)


@dataclass(frozen=True)
class ContrastiveMethod(Method):
    """Combines the logits of the model with those of extra streams."""

    site: ClassVar[str] = "logits"

    def streams(self, context: Context) -> Sequence[Stream]:
        """The extra streams of one session."""
        raise NotImplementedError

    def weights(self, l: Tensor, others: Sequence[Tensor], fp: ForwardPass) -> Sequence[Weight]:
        """The weight of the model's logits and of each stream's.

        Args:
            l: the model's logits (B, L, V), float32.
            others: each stream's logits, (B, L, V), float32.
            fp: the forward pass; `fp.step` counts the tokens generated so far.
        """
        raise NotImplementedError

    def cut(self, l: Tensor, others: Sequence[Tensor]) -> float | Tensor | None:
        """The plausibility cut-off: beta, or a mask (B, L, V) of the tokens that are removed; None: no cut-off."""
        beta: float | None = getattr(self, "beta", None)
        return beta

    def start(self, context: Context) -> Intervention:
        return ContrastiveIntervention(self, context)


def combine(l: Tensor, others: Sequence[Tensor], weights: Sequence[Weight], dtype: torch.dtype) -> Tensor:
    """w_0 l + w_1 l_1 + ..., in float32 and clamped to what `dtype` can hold: (B, L, V)."""
    mixed = weights[0] * l
    for weight, other in zip(weights[1:], others, strict=True):
        mixed = mixed + weight * other
    limits = torch.finfo(dtype)
    return mixed.clamp(limits.min, limits.max).to(dtype)


class ContrastiveIntervention(Intervention):
    """One session of a ContrastiveMethod."""

    method: ContrastiveMethod
    changes_logits = acts_in_decode = True

    def __init__(self, method: ContrastiveMethod, context: Context) -> None:
        super().__init__(method, context)
        self.extra = list(method.streams(context))
        self._flips: Tensor | None = None  # (batch_size,) positions whose likeliest token changed
        self._moved: Tensor | None = None  # (batch_size,) sum of total variation between the model and the method
        self._cut: Tensor | None = None  # (batch_size,) the same between the model and its cut-off alone
        self.seconds = {"streams": 0.0}

    def open(self, stack: ExitStack) -> None:
        for stream in self.extra:
            stack.callback(stream.reset)
            if stream.attention is not None:
                stream.attention.find_layers()
                use_own_attention(self.context.parts, stack)

    def on_call(self, call: GenerateCall) -> None:
        self._flips = self._moved = self._cut = None
        for stream in self.extra:
            stream.start_call(call)

    def on_pass(self, fp: ForwardPass) -> None:
        for stream in self.extra:
            stream.start_pass(fp)
            if stream.attention is not None:
                stream.attention.start_pass(fp)

    @torch.no_grad()
    def logits(self, fp: ForwardPass, logits: Tensor) -> Tensor | None:
        rows = self.active_rows(fp)
        if rows is None:
            return None
        started = time.perf_counter()
        others = [stream.logits(fp).to(logits.device) for stream in self.extra]
        L = min(logits.shape[1], *(other.shape[1] for other in others))  # streams may be shorter: they end alike
        main, others = logits[:, -L:], [other[:, -L:] for other in others]
        new = torch.empty_like(main)
        moved = cut = torch.zeros(len(main), device=main.device)
        for at in token_chunks(L):  # a plain pass has the logits of all positions
            part, moved_here, cut_here = self._contrast(main[:, at], [other[:, at] for other in others], fp)
            new[:, at] = part
            moved, cut = moved + moved_here, cut + cut_here
        acts = rows.to(logits.device)[:, None] & self._comparable(fp, L, logits.device)  # (B, L)
        new = torch.where(acts.unsqueeze(-1), new, main)
        self._note(fp, main, new, moved * acts.any(-1), cut * acts.any(-1))
        self.stats.count(acts.sum(-1).view(fp.batch_size, -1).sum(-1))
        self.seconds["streams"] += time.perf_counter() - started
        return torch.cat([logits[:, : logits.shape[1] - L], new], 1) if logits.shape[1] > L else new

    def _contrast(self, l: Tensor, others: list[Tensor], fp: ForwardPass) -> tuple[Tensor, Tensor, Tensor]:
        """The new logits, and the total variation that they and the cut-off alone make, summed over positions (B,)."""
        exact, wide = l.float(), [other.float() for other in others]
        mixed = combine(exact, wide, self.method.weights(exact, wide, fp), l.dtype)
        cut = self.cut_off(exact, wide)
        p = exact.softmax(-1)
        alone = torch.zeros(len(l), device=l.device)
        if isinstance(cut, Tensor) or cut:
            removed = cut if isinstance(cut, Tensor) else l < l.amax(-1, keepdim=True) + math.log(cut)
            # The lowest value and not -inf: beam search adds scores, and must not meet inf - inf.
            mixed = mixed.masked_fill(removed, torch.finfo(l.dtype).min)
            alone = (p * removed).sum((-1, -2))  # the removed mass: what renormalizing the rest moves
        moved = 0.5 * (mixed.float().softmax(-1) - p).abs().sum((-1, -2))
        return mixed, moved, alone

    def cut_off(self, l: Tensor, others: Sequence[Tensor]) -> float | Tensor | None:
        """The method's cut-off; published code may leave it out in some decoding modes."""
        return self.method.cut(l, others)

    def _comparable(self, fp: ForwardPass, L: int, device: torch.device) -> Tensor:
        """(B, L) positions at which every stream has read the same text last."""
        shared = [s.to(device) for stream in self.extra if (s := stream.common_suffix(fp)) is not None]
        if not shared:
            return torch.ones(1, L, dtype=torch.bool, device=device)
        from_end = torch.arange(L, 0, -1, device=device)  # 1 is the last position
        return from_end <= torch.stack(shared).amin(0)[:, None]

    def _note(self, fp: ForwardPass, old: Tensor, new: Tensor, moved: Tensor, cut: Tensor) -> None:
        flips = (new.argmax(-1) != old.argmax(-1)).float().sum(-1)
        for name, value in (("_flips", flips), ("_moved", moved), ("_cut", cut)):
            own = value.view(fp.batch_size, -1).sum(-1)
            known = getattr(self, name)
            setattr(self, name, own if known is None or known.shape != own.shape else known + own.to(known.device))

    def details(self, row: int | None, acted: bool) -> dict[str, Any]:
        values = {name: self.measured.get(name, []) for name in ("flips", "moved", "cut")}
        chosen = {n: sum(v) if row is None else v[row] if row < len(v) else 0.0 for n, v in values.items()}
        share = min(1.0, chosen["cut"] / chosen["moved"]) if chosen["moved"] > 0 else 0.0
        return {"extra": {"likeliest_changed": int(chosen["flips"]), "cut_off_share": round(share, 4)}}

    def measures(self) -> dict[str, Tensor]:
        if self._flips is None or self._moved is None or self._cut is None:
            return {}
        return {"flips": self._flips, "moved": self._moved, "cut": self._cut}


class OnlySampling(ContrastiveIntervention):
    """For published code that replaces `sample` alone: greedy decoding and beams are not changed."""

    sampling = True  # or a plain pass

    def on_call(self, call: GenerateCall) -> None:
        super().on_call(call)
        self.sampling = bool(call.option("do_sample", False))

    def logits(self, fp: ForwardPass, logits: Tensor) -> Tensor | None:
        return super().logits(fp, logits) if self.sampling else None

    def inactive_reason(self, row: int | None) -> str:
        return "tokens are not sampled, where the published code does nothing (faithful=True)"
