"""Change the attention scores of a decoder through transformers' attention registry.

`change_scores(parts, modules, change, stack)` puts a change between the scores and the softmax of the given attention
modules, through `AttentionInterface` and `AttentionMaskInterface`, and takes it out again when the stack closes. The
vision tower is not touched.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface

from airvlm.models.parts import ModelParts
from airvlm.runtime.intervention import DISABLED, token_chunks

__all__ = ["ChangesScores", "ScoreChange", "attention_modules", "change_scores"]

PREFIX = "airvlm_"  # before the name of the implementation that is delegated to
Attend = Callable[..., tuple[Tensor, Any]]


@dataclass(frozen=True)
class ScoreChange:
    """What happens to the scores of one pass: queries (B, L) whose scores change, by a weight for each key."""

    weight: Tensor  # (B, T) 0 where a key's scores stay
    queries: Tensor  # (B, L) bool
    first: int  # first position that is among `queries` in any batch row
    every: bool  # all of `queries` is True

    def fit_weight(self, T: int, total: int) -> Tensor:
        """The weights of T keys, of a sequence of `total` tokens so far: (B, T)."""
        extra = max(T, total) - self.weight.shape[-1]
        weight = nn.functional.pad(self.weight, (0, extra)) if extra > 0 else self.weight
        # A sliding window keeps the last keys; a static cache has room after the last.
        return weight[:, total - T : total] if total > T else weight[:, :T]


class ChangesScores(Protocol):
    """What `change_scores` asks for the change of each pass."""

    multiplies: bool  # s (1 + w), which scaled keys do; otherwise s + w |s|

    def scores(self, module: nn.Module) -> tuple[ScoreChange, int] | None:
        """The change in this pass and layer, and the tokens of the sequence so far; None: leave it."""


_ACTIVE: WeakKeyDictionary[nn.Module, list[ChangesScores]] = WeakKeyDictionary()
_LOCK = threading.Lock()  # sessions on several models may open at once
_NAMES: dict[str, int] = {}  # registered implementation -> configs that use it
_CONFIGS: dict[int, tuple[Any, str, int]] = {}  # switched configs by id: config, what it had, sessions that use it


def attention_modules(parts: ModelParts) -> list[nn.Module]:
    """The attention of every decoder layer, which must go through transformers' AttentionInterface."""
    found = [getattr(layer, "self_attn", None) for layer in parts.layers]
    for module in found:
        source = sys.modules.get(type(module).__module__)
        if module is None or not hasattr(module, "config") or not hasattr(source, "ALL_ATTENTION_FUNCTIONS"):
            raise ValueError(
                f"the attention of {parts.family} does not go through transformers' AttentionInterface "
                "(layer.self_attn with a config), so that its scores cannot be reached"
            )
    return [module for module in found if module is not None]


def change_scores(parts: ModelParts, modules: Iterable[nn.Module], change: ChangesScores, stack: ExitStack) -> None:
    """Let `change` act on the scores of `modules` until the stack closes."""
    every = attention_modules(parts)
    configs: dict[int, Any] = {id(m.config): m.config for m in every}
    for config in (getattr(parts.decoder, "config", None), _text_config(parts.model)):
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
    """Let a config name our implementation until the last session that needs it closes, in whatever order."""
    with _LOCK:
        _, before, sessions = _CONFIGS.get(id(config), (config, config._attn_implementation, 0))
        if "flex" in before:
            raise ValueError(
                f"attention scores cannot be reached in {before}: load the model with attn_implementation='sdpa'"
            )
        name = PREFIX + before
        if not sessions:
            if not _NAMES.get(name):
                AttentionInterface.register(name, _attend)
                AttentionMaskInterface.register(name, AttentionMaskInterface()[before])
            _NAMES[name] = _NAMES.get(name, 0) + 1
            config._attn_implementation_internal = name
        _CONFIGS[id(config)] = config, before, sessions + 1
    stack.callback(_restore, config)


def _restore(config: Any) -> None:
    with _LOCK:
        _, before, sessions = _CONFIGS.pop(id(config))
        if sessions > 1:
            _CONFIGS[id(config)] = config, before, sessions - 1
            return
        config._attn_implementation_internal = before
        name = PREFIX + before
        _NAMES[name] -= 1
        if not _NAMES[name]:
            del _NAMES[name]
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
    acting = [] if DISABLED.get() else _ACTIVE.get(module, [])
    found = [(change, now) for change in acting if (now := change.scores(module)) is not None]
    if not found:
        return attend(module, query, key, value, attention_mask, **more)
    L, T = query.shape[2], key.shape[2]
    weights = [now[0].fit_weight(T, now[1]).to(key.device) for _, now in found]
    changes_now = [now[0] for _, now in found]
    into_keys = len(found) == 1 and found[0][0].multiplies and more.get("softcap") is None
    every = all(c.every for c in changes_now)
    if into_keys and L == 1:
        # A decode step comes after the image; batch rows without one have weight 0 and factor 1.
        return attend(module, query, key * _factor(weights[0], key), value, attention_mask, **more)

    out, probabilities = (None, None) if every else attend(module, query, key, value, attention_mask, **more)
    first = min(c.first for c in changes_now)
    if into_keys:
        keys = key * _factor(weights[0], key)
        mask = attention_mask if "flash" in name else _mask(attention_mask, first, L, T, query)
        part, _ = attend(module, query[:, :, first:], keys, value, mask, **more)  # (B, R, H, D)
    else:
        groups = query.shape[1] // key.shape[1]
        k, v = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
        changes = [
            (change.multiplies, w, c.queries.to(key.device))
            for (change, _), w, c in zip(found, weights, changes_now, strict=True)
        ]
        scored = []
        for at in token_chunks(L - first):  # queries whose scores are held at once
            start, stop = first + at.start, first + at.stop
            mask = _mask(attention_mask, start, L, T, query, stop)
            scored.append(_attend_changed(query[:, :, start:stop], k, v, mask, changes, start, more))
        part = torch.cat(scored, 1)
    if out is None:
        return part, None
    queries = torch.stack([c.queries.to(out.device) for c in changes_now]).any(0)[:, first:]  # (B, R)
    part = torch.where(queries[..., None, None], part, out[:, first:])
    return torch.cat([out[:, :first], part], 1), probabilities


def _factor(weight: Tensor, key: Tensor) -> Tensor:
    return (1 + weight).to(key.dtype)[:, None, :, None]  # (B, 1, T, 1)


def _attend_changed(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    changes: list[tuple[bool, Tensor, Tensor]],
    start: int,
    more: dict[str, Any],
) -> Tensor:
    """softmax(changed scores + mask) v for a chunk of queries: (B, R, H, D)."""
    scaling = more.get("scaling") or q.shape[-1] ** -0.5
    s = (q @ k.mT).float() * scaling  # (B, H, R, T)
    if (cap := more.get("softcap")) is not None:
        s = cap * torch.tanh(s / cap)
    for multiply, weight, queries in changes:
        w = weight[:, None, None, :] * queries[:, None, start : start + q.shape[2], None]  # (B, 1, R, T)
        s = s * (1 + w) if multiply else s + w * s.abs()
    if mask is not None:
        s = s.masked_fill(~mask, torch.finfo(torch.float32).min) if mask.dtype == torch.bool else s + mask.float()
    return (s.softmax(-1).to(v.dtype) @ v).transpose(1, 2)


def _mask(mask: Tensor | None, start: int, L: int, T: int, query: Tensor, stop: int | None = None) -> Tensor | None:
    """The mask of queries start:stop. Without one attention is causal, and the queries' offset must be said."""
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
