"""OPERA (CVPR 2024), its over-trust penalty: tokens that follow a column of earlier attention are held back.

For each of the k likeliest tokens c of a step, one more forward of c on the cache gives its attention in the last
layer. Rows a (largest over heads, divided by their sum) of the answer so far and of c form a lower triangle R, from the
last token of the prompt on, and phi_j = 1e-7 times the product of scale R_ij over the rows i >= j. With n columns,

    l_c <- l_c - weight max_j phi_j   if n > 10,     l_c + weight (attention of c to the image)   otherwise,

and tokens that are not among the k are never said. `faithful=True` rounds phi to float16 and gives the other tokens
-999, as the published code does: a penalty beyond that makes them likelier than the candidates. The published rollback
("retrospection") needs a beam search of its own and is not included.
"""

from __future__ import annotations

import copy
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from airvlm.methods.base import Method, option
from airvlm.methods.templates.attention import AttentionIntervention
from airvlm.runtime.attention import AttentionChange, attention_modules, editing_stream
from airvlm.runtime.intervention import Context, ForwardPass, GenerateCall, Intervention, without_methods
from airvlm.runtime.streams import Stream

__all__ = ["OPERA", "column_scores"]

EARLY = 10  # tokens that are scored by their attention to the image
SMALL = 1e-7
OTHERS = -999.0  # what the published code gives tokens that are no candidates
REFUSED = ("qwen",)  # families whose decode steps depend on more than the cache


def column_scores(rows: Tensor, scale: float) -> Tensor:
    """phi_j of every column (..., n) of a lower triangle (..., n, n): 1e-7 times the product of scale R_ij, i >= j."""
    n = rows.shape[-1]
    below = torch.ones(n, n, dtype=torch.bool, device=rows.device).tril()
    return SMALL * torch.where(below, scale * rows, 1.0).prod(-2)


@dataclass(frozen=True)
class OPERA(Method):
    """Over-trust penalty, without retrospection."""

    name: ClassVar[str] = "opera"
    paper: ClassVar[str | None] = "OPERA: over-trust penalty (CVPR 2024, arXiv 2311.17911)"
    summary: ClassVar[str] = "holds back tokens that keep attending to one earlier token of the answer"
    site: ClassVar[str] = "logits"
    cost: ClassVar[str] = "2 passes, one of them with as many rows as candidates"

    weight: float = option(1.0, "weight of the penalty; 0 is off", low=0, off=0, search=(0.1, 2.0))
    candidates: int = option(5, "k, the tokens of each step that are tried", low=1)
    scale: float = option(50.0, "factor of the attention inside the product", above=0)
    faithful: bool = option(False, "as the published code: phi in float16, and other tokens at -999")

    def start(self, context: Context) -> Intervention:
        if context.parts.family in REFUSED:
            raise ValueError(f"{self.name} does not support {context.parts.family}: its cache cannot be branched")
        return _Opera(self, context)


class _Cache(Stream):
    """A cache to look ahead on: generate's own, or that of a second stream where generate's cannot be copied."""

    rows: Tensor | None = None  # (B, n, T) attention of the answer so far, reordered with the beams

    def use(self, fp: ForwardPass) -> Any:
        main = fp.inputs.get("past_key_values")
        if fp.is_prefill:
            self.own = type(main).__name__ != "DynamicCache" or fp.inputs.get("use_cache") is False
            if not self.own:
                self._follow(fp)
        if self.own:
            self.logits(fp)
            return self._cache
        return main

    def _prefill(self, fp: ForwardPass, given: dict[str, Any]) -> Tensor:
        return super()._prefill(fp, {**given, "use_cache": True})  # also where generate has none

    def _reorder(self, beam_idx: Tensor) -> None:
        super()._reorder(beam_idx)
        if self.rows is not None:
            self.rows = self.rows[beam_idx.to(self.rows.device)]


class _Opera(AttentionIntervention):
    method: OPERA
    changes_logits = True

    def __init__(self, method: OPERA, context: Context) -> None:
        super().__init__(method, context)
        self.span = [len(context.parts.layers) - 1]
        self._cache = _Cache(method.name, context.parts)
        self._new: Tensor | None = None  # (B, R, T) attention rows of the current pass
        self._first = 0  # first query of the answer in the current pass
        self._start = 0  # position of the prompt's last token
        self._flips: Tensor | None = None  # (batch_size,)

    def open(self, stack: ExitStack) -> None:
        super().open(stack)
        stack.callback(self._cache.reset)

    def on_call(self, call: GenerateCall) -> None:
        super().on_call(call)
        self._flips = self._cache.rows = None
        self._cache.start_call(call)

    def on_pass(self, fp: ForwardPass) -> None:
        super().on_pass(fp)
        self._cache.start_pass(fp)
        self._new, self._first = None, fp.first_generated
        if fp.is_prefill:
            self._start = fp.first_generated

    def attention_of(self, layer: int) -> AttentionChange | None:
        def observe(p: Tensor) -> None:
            self._new = self._largest(p, self.total)

        return AttentionChange(self.total, first=self._first, observe=observe)

    @staticmethod
    def _largest(p: Tensor, total: int) -> Tensor:
        """Attention (B, H, R, T) -> the largest over heads, divided by its sum, over all keys so far (B, R, total)."""
        a = p.amax(1)
        a = nn.functional.pad(a, (max(0, total - a.shape[-1]), 0))[..., :total]  # a window keeps the last keys only
        return a / a.sum(-1, keepdim=True)

    @torch.no_grad()
    def logits(self, fp: ForwardPass, logits: Tensor) -> Tensor | None:
        rows = self.active_rows(fp)
        if rows is None or not fp.generating:
            return None
        cache = self._cache.use(fp)
        if self._new is None:
            return None  # the prompt ends with the image
        known = None if fp.is_prefill else self._cache.rows
        if known is not None:
            self._new = torch.cat([nn.functional.pad(known, (0, self.total - known.shape[-1])), self._new], 1)
        self._cache.rows = self._new
        l = logits[:, -1].float()  # (B, V)
        k = min(self.method.candidates, l.shape[-1])
        best, tokens = l.topk(k, -1)  # (B, k)
        ahead = self._look_ahead(fp, cache, tokens)  # (B, k, total + 1)
        n = self.total + 1 - self._start
        if n > EARLY:
            past = nn.functional.pad(self._new[:, -(n - 1) :, self._start :], (0, 1))  # (B, n - 1, n)
            triangle = torch.cat(
                [past[:, None].expand(-1, k, -1, -1), ahead[:, :, None, self._start :]], 2
            )  # (B, k, n, n)
            phi = column_scores(triangle.float(), self.method.scale)
            penalty = (phi.half().float() if self.method.faithful else phi).amax(-1)
        else:
            assert self.visual_keys is not None
            visual = nn.functional.pad(self.visual_keys, (0, self.total + 1 - self.visual_keys.shape[-1]))
            penalty = -(ahead * visual[:, None].to(ahead)).sum(-1)
        limits = torch.finfo(logits.dtype)
        scores, others = best - self.method.weight * penalty.to(best), OTHERS
        if not self.method.faithful:
            scores, others = scores.clamp(0.5 * limits.min, limits.max), limits.min
        new = torch.full_like(l, others).scatter(1, tokens, scores).to(logits.dtype)
        new = torch.where(rows.to(l.device)[:, None], new, logits[:, -1])
        flips = (new.argmax(-1) != logits[:, -1].argmax(-1)).view(fp.batch_size, -1).sum(-1).float()
        self._flips = flips if self._flips is None else self._flips + flips
        self.stats.count(rows.view(fp.batch_size, -1).sum(-1))
        return torch.cat([logits[:, :-1], new[:, None]], 1)

    def _look_ahead(self, fp: ForwardPass, cache: Any, tokens: Tensor) -> Tensor:
        """The attention rows (B, k, total + 1) that the candidates (B, k) would have."""
        B, k = tokens.shape
        branch = copy.copy(cache)  # what follows makes new tensors, so that the cache itself stays as it is
        branch.layers = [copy.copy(layer) for layer in cache.layers]
        if k > 1:
            branch.batch_repeat_interleave(k)
        padding = self.padding_keys  # (B, keys so far)
        real = torch.ones(B, self.total + 1, dtype=torch.long, device=tokens.device)
        if padding is not None:
            real[:, : padding.shape[1]] = (~padding).long()
        # generate gives no mask where nothing is padded, which saves transformers from reading it back
        mask = None if fp.inputs.get("attention_mask") is None else real.repeat_interleave(k, 0)
        positions = fp.inputs.get("position_ids")
        positions = real.cumsum(-1)[:, -1:] - 1 if positions is None else positions[..., -1:] + 1
        seen: list[Tensor] = []
        reader = _Reader(attention_modules(self.context.parts)[self.span[0]], self.total + 1, seen)
        model: Any = self.context.parts.model
        base: Any = getattr(model, "base_model", model)
        kept = vars(base).get("rope_deltas")
        try:
            with without_methods(), editing_stream(reader):
                model(
                    input_ids=tokens.reshape(-1, 1),
                    attention_mask=mask,
                    position_ids=positions.repeat_interleave(k, -2),
                    past_key_values=branch,
                    use_cache=True,
                    return_dict=True,
                )
        finally:
            if "rope_deltas" in vars(base):
                base.rope_deltas = kept
        return self._largest(seen[0], self.total + 1).view(B, k, -1)

    def details(self, row: int | None, acted: bool) -> dict[str, Any]:
        flips = self.measured.get("flips", [])
        count = sum(flips) if row is None else flips[row] if row < len(flips) else 0
        return {"layers": tuple(self.span) if acted else (), "extra": {"likeliest_changed": int(count)}}

    def measures(self) -> dict[str, Tensor]:
        return {} if self._flips is None else {"flips": self._flips}

    def inactive_reason(self, row: int | None) -> str:
        return "it acts on the steps of generate, with text after the image"


class _Reader:
    """Keeps the attention of one module."""

    def __init__(self, module: nn.Module, total: int, seen: list[Tensor]) -> None:
        self.module, self.total, self.seen = module, total, seen

    def attention_change(self, module: nn.Module) -> AttentionChange | None:
        return AttentionChange(self.total, observe=self.seen.append) if module is self.module else None
