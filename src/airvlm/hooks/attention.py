"""Scores of an attention layer, changed on the way: the only file that touches transformers' attention registry.

`reshaped(attentions, change, stack)` puts a change between the scores and the softmax of the given attention modules
of a decoder, through `AttentionInterface` and `AttentionMaskInterface`, and takes it out again when the stack closes.
The vision tower is not touched. Knows nothing of what the change means.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface

from airvlm.hooks.intervention import is_aside
from airvlm.models.anatomy import Anatomy

__all__ = ["Columns", "Reshaping", "reshaped"]

PREFIX = "airvlm_"  # before the name of the implementation that is delegated to
BLOCK = 256  # rows whose scores are held at once
Attend = Callable[..., tuple[Tensor, Any]]


@dataclass(frozen=True)
class Columns:
    """What happens to the scores of one pass: rows (B, L) whose scores change, by a weight for each column."""

    weight: Tensor  # (B, T) 0 where a column's scores stay
    rows: Tensor  # (B, L) bool
    first: int  # first position that is in `rows` for any batch row
    every: bool  # all of `rows` is True

    def fitted(self, T: int, total: int) -> Tensor:
        """The weights of T keys, of a sequence of `total` tokens so far: (B, T)."""
        extra = max(T, total) - self.weight.shape[-1]
        weight = nn.functional.pad(self.weight, (0, extra)) if extra > 0 else self.weight
        # A sliding window keeps the last keys; a static cache has room after the last.
        return weight[:, total - T : total] if total > T else weight[:, :T]


class Reshaping(Protocol):
    """Who changes scores."""

    into_keys: bool  # multiply scores, s (1 + w), which scaled keys do; otherwise s + w |s|

    def columns(self, module: nn.Module) -> tuple[Columns, int] | None:
        """The change in this pass and layer, and the tokens of the sequence so far; None: leave it."""


_ACTIVE: WeakKeyDictionary[nn.Module, list[Reshaping]] = WeakKeyDictionary()
_OPEN: dict[str, int] = {}  # registered implementation -> blocks that use it


def attention_modules(anatomy: Anatomy) -> list[nn.Module]:
    """The attention of every decoder layer, which must go through transformers' AttentionInterface."""
    found = [getattr(layer, "self_attn", None) for layer in anatomy.layers]
    for module in found:
        source = sys.modules.get(type(module).__module__)
        if module is None or not hasattr(module, "config") or not hasattr(source, "ALL_ATTENTION_FUNCTIONS"):
            raise ValueError(
                f"the attention of {anatomy.family} does not go through transformers' AttentionInterface "
                "(layer.self_attn with a config), so that its scores cannot be reached"
            )
    return [module for module in found if module is not None]


def reshaped(anatomy: Anatomy, modules: Iterable[nn.Module], change: Reshaping, stack: ExitStack) -> None:
    """Let `change` act on the scores of `modules` until the stack closes."""
    every = attention_modules(anatomy)
    configs: dict[int, Any] = {id(m.config): m.config for m in every}
    for config in (getattr(anatomy.decoder, "config", None), _text_config(anatomy.model)):
        if config is not None:
            configs[id(config)] = config
    for config in configs.values():
        _switch(config, stack)
    for module in modules:
        _ACTIVE.setdefault(module, []).append(change)
        stack.callback(_ACTIVE[module].remove, change)


def _text_config(model: Any) -> Any:
    return model.config.get_text_config() if hasattr(model, "config") else None


def _switch(config: Any, stack: ExitStack) -> None:
    before = config._attn_implementation
    if before.startswith(PREFIX):
        name = before  # nested: already ours
    else:
        if "flex" in before:
            raise ValueError(
                f"attention scores cannot be reached in {before}: load the model with attn_implementation='sdpa'"
            )
        name = PREFIX + before
        AttentionInterface.register(name, _attend)
        AttentionMaskInterface.register(name, AttentionMaskInterface()[before])
        config._attn_implementation_internal = name
        stack.callback(setattr, config, "_attn_implementation_internal", before)
    _OPEN[name] = _OPEN.get(name, 0) + 1
    stack.callback(_close, name)


def _close(name: str) -> None:
    _OPEN[name] -= 1
    if not _OPEN[name]:
        del _OPEN[name]
        AttentionInterface._global_mapping.pop(name, None)
        AttentionMaskInterface._global_mapping.pop(name, None)


def _original(module: Any) -> tuple[str, Attend]:
    """The implementation the model had, and its function (eager is a function of the model's own file)."""
    name = module.config._attn_implementation.removeprefix(PREFIX)
    source: Any = sys.modules[type(module).__module__]
    attend: Attend = source.ALL_ATTENTION_FUNCTIONS.get_interface(name, source.eager_attention_forward)
    return name, attend


@torch.compiler.disable
def _attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **more: Any
) -> tuple[Tensor, Any]:
    """query (B, H, L, D), key and value (B, H_kv, T, D) -> (B, L, H, D), as every attention function."""
    name, attend = _original(module)
    acting = [] if is_aside() else _ACTIVE.get(module, [])
    found = [(change, now) for change in acting if (now := change.columns(module)) is not None]
    if not found:
        return attend(module, query, key, value, attention_mask, **more)
    L, T = query.shape[2], key.shape[2]
    weights = [now[0].fitted(T, now[1]).to(key.device) for _, now in found]
    columns = [now[0] for _, now in found]
    into_keys = len(found) == 1 and found[0][0].into_keys and more.get("softcap") is None
    every = all(c.every for c in columns)
    if into_keys and L == 1:
        # All rows of a decode step come after the picture; rows without one have weight 0 and factor 1.
        return attend(module, query, key * _factor(weights[0], key), value, attention_mask, **more)

    out, probabilities = (None, None) if every else attend(module, query, key, value, attention_mask, **more)
    first = min(c.first for c in columns)
    if into_keys:
        keys = key * _factor(weights[0], key)
        mask = attention_mask if "flash" in name else _mask(attention_mask, first, L, T, query)
        part, _ = attend(module, query[:, :, first:], keys, value, mask, **more)  # (B, R, H, D)
    else:
        groups = query.shape[1] // key.shape[1]
        k, v = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
        changes = [
            (change.into_keys, w, c.rows.to(key.device))
            for (change, _), w, c in zip(found, weights, columns, strict=True)
        ]
        blocks = []
        for start in range(first, L, BLOCK):
            stop = min(L, start + BLOCK)
            mask = _mask(attention_mask, start, L, T, query, stop)
            blocks.append(_scored(query[:, :, start:stop], k, v, mask, changes, start, more))
        part = torch.cat(blocks, 1)
    if out is None:
        return part, None
    rows = torch.stack([c.rows.to(out.device) for c in columns]).any(0)[:, first:]  # (B, R)
    part = torch.where(rows[..., None, None], part, out[:, first:])
    return torch.cat([out[:, :first], part], 1), probabilities


def _factor(weight: Tensor, key: Tensor) -> Tensor:
    return (1 + weight).to(key.dtype)[:, None, :, None]  # (B, 1, T, 1)


def _scored(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    changes: list[tuple[bool, Tensor, Tensor]],
    start: int,
    more: dict[str, Any],
) -> Tensor:
    """softmax(changed scores + mask) v for a block of rows: (B, R, H, D)."""
    scaling = more.get("scaling") or q.shape[-1] ** -0.5
    s = (q @ k.mT).float() * scaling  # (B, H, R, T)
    if (cap := more.get("softcap")) is not None:
        s = cap * torch.tanh(s / cap)
    for multiply, weight, rows in changes:
        w = weight[:, None, None, :] * rows[:, None, start : start + q.shape[2], None]  # (B, 1, R, T)
        s = s * (1 + w) if multiply else s + w * s.abs()
    if mask is not None:
        s = (
            s.masked_fill(~mask, torch.finfo(torch.float32).min)
            if mask.dtype == torch.bool
            else s + mask.float()
        )
    return (s.softmax(-1).to(v.dtype) @ v).transpose(1, 2)


def _mask(
    mask: Tensor | None, start: int, L: int, T: int, query: Tensor, stop: int | None = None
) -> Tensor | None:
    """The mask of rows start:stop. Without one attention is causal, and the rows' offset must be said."""
    if mask is not None and mask.dim() == 4:
        return mask[:, :, start:stop, :T]
    if L == 1 and mask is None:
        return None
    # In a prefill of a static cache the keys run on past the sequence, and are hidden by causality.
    offset = 0 if T > L and mask is None else T - L
    at = torch.arange(start, stop or L, device=query.device) + offset
    causal = torch.arange(T, device=query.device) <= at[:, None]  # (R, T)
    if mask is not None:  # (B, T) padding, as flash attention takes it
        return causal & mask.bool()[:, None, None, :T]
    return causal[None, None]
