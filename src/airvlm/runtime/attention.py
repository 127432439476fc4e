"""Changes inside attention: scores, probabilities, hidden keys, and reading the attention of some queries.

`watch_attention(parts, modules, editor, stack)` puts an editor between the projections and the output of the given
attention modules of a decoder, through transformers' `AttentionInterface`, and takes it out again when the stack
closes. All other queries keep the model's own kernel (SDPA, flash), so that no method forces eager attention. The
vision tower is not touched.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal, Protocol
from weakref import WeakKeyDictionary

import torch
import transformers
from torch import Tensor, nn

from airvlm.models.parts import ModelParts
from airvlm.runtime.intervention import DISABLED, token_chunks

__all__ = [
    "AttentionChange",
    "AttentionEditor",
    "attention_modules",
    "editing_stream",
    "fit_keys",
    "use_own_attention",
    "watch_attention",
]

PREFIX = "airvlm_"  # before the name of the implementation that is delegated to
Attend = Callable[..., tuple[Tensor, Any]]
Mode = Literal["scale", "abs", "mean_abs"]


@dataclass(frozen=True)
class AttentionChange:
    """What happens in one attention layer in one pass of L queries. Key tensors cover the whole sequence so far."""

    total: int  # tokens of the sequence so far, cached ones included
    queries: Tensor | None = None  # (B, L) bool, the queries that are changed; None: none
    first: int = 0  # first position that is among `queries` in any batch row
    every: bool = False  # all of `queries` are True
    weight: Tensor | None = None  # (B, total) or (B, H, total), 0 where a key's scores stay
    mode: Mode = "abs"  # scale: s (1 + w); abs: s + w |s|; mean_abs: s + w times the mean of |s| over heads
    scores: Callable[[Tensor], Tensor] | None = None  # scores (B, H, R, T) of changed queries -> new scores
    probabilities: Callable[[Tensor], Tensor] | None = None  # attention (B, H, R, T) of changed queries -> new
    hidden_keys: Tensor | None = None  # (B, total) bool, keys that no query sees; or per query (B, L, total)
    observe: Callable[[Tensor], None] | None = None  # given the attention of queries from `first` on, (B, H, R, T)
    observe_values: Callable[[Tensor], None] | None = None  # given the value features of all keys, (B, H_kv, T, D)

    @property
    def edits(self) -> bool:
        """Whether any query's scores or probabilities are changed."""
        return self.queries is not None


class AttentionEditor(Protocol):
    """Decides what happens in the attention of a layer."""

    def attention_change(self, module: nn.Module) -> AttentionChange | None:
        """The change in this pass and layer; None: leave it."""


def fit_keys(values: Tensor, T: int, total: int) -> Tensor:
    """Values of all keys so far, (..., n), as those of the T keys that a layer has, (..., T).

    A sliding window keeps the last keys; a static cache has room after the last.
    """
    extra = max(T, total) - values.shape[-1]
    values = nn.functional.pad(values, (0, extra)) if extra > 0 else values
    return values[..., total - T : total] if total > T else values[..., :T]


_ACTIVE: WeakKeyDictionary[nn.Module, list[AttentionEditor]] = WeakKeyDictionary()
_STREAM: ContextVar[AttentionEditor | None] = ContextVar("airvlm_stream_attention", default=None)
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
                "(layer.self_attn with a config), so it cannot be changed"
            )
    return [module for module in found if module is not None]


def watch_attention(parts: ModelParts, modules: Iterable[nn.Module], editor: AttentionEditor, stack: ExitStack) -> None:
    """Let `editor` act on the attention of `modules` until the stack closes."""
    use_own_attention(parts, stack)
    for module in modules:
        _ACTIVE.setdefault(module, []).append(editor)
        stack.callback(_ACTIVE[module].remove, editor)


def use_own_attention(parts: ModelParts, stack: ExitStack) -> None:
    """Route the decoder's attention through this module until the stack closes; without an editor nothing changes."""
    configs: dict[int, Any] = {id(m.config): m.config for m in attention_modules(parts)}
    config: Any = getattr(parts.model, "config", None)
    text_config = None if config is None else config.get_text_config()
    for one in (getattr(parts.decoder, "config", None), text_config):
        if one is not None:
            configs[id(one)] = one
    for one in configs.values():
        _switch(one, stack)


@contextmanager
def editing_stream(editor: AttentionEditor | None) -> Iterator[None]:
    """Passes inside this block belong to an extra stream, whose attention only `editor` changes."""
    token = _STREAM.set(editor)
    try:
        yield
    finally:
        _STREAM.reset(token)


def _switch(config: Any, stack: ExitStack) -> None:
    """Let a config name our implementation until the last session that needs it ends, in any order."""
    with _LOCK:
        _, before, users = _CONFIGS.get(id(config), (config, config._attn_implementation, 0))
        if "flex" in before:
            raise ValueError(f"attention cannot be changed in {before}: load the model with attn_implementation='sdpa'")
        name = PREFIX + before
        if not users:
            if not _NAMES.get(name):
                masks = transformers.AttentionMaskInterface
                # Not a decorator: these names and torch's compiler take seconds to import before there is a model
                transformers.AttentionInterface.register(name, torch.compiler.disable(_attend))
                masks.register(name, masks()[before])
            _NAMES[name] = _NAMES.get(name, 0) + 1
            config._attn_implementation_internal = name
        _CONFIGS[id(config)] = config, before, users + 1
    stack.callback(_restore, config)


def _restore(config: Any) -> None:
    with _LOCK:
        _, before, users = _CONFIGS.pop(id(config))
        if users > 1:
            _CONFIGS[id(config)] = config, before, users - 1
            return
        config._attn_implementation_internal = before
        name = PREFIX + before
        _NAMES[name] -= 1
        if not _NAMES[name]:
            del _NAMES[name]
            transformers.AttentionInterface._global_mapping.pop(name, None)
            transformers.AttentionMaskInterface._global_mapping.pop(name, None)


def _original(module: Any) -> tuple[str, Attend]:
    """The implementation that the model had, and its function (eager is a function of the model's own file)."""
    name = module.config._attn_implementation.removeprefix(PREFIX)
    source: Any = sys.modules[type(module).__module__]
    attend: Attend = source.ALL_ATTENTION_FUNCTIONS.get_interface(name, source.eager_attention_forward)
    return name, attend


def _attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **more: Any
) -> tuple[Tensor, Any]:
    """query (B, H, L, D), key and value (B, H_kv, T, D) -> (B, L, H, D), as every attention function."""
    name, attend = _original(module)
    if DISABLED.get():
        editor = _STREAM.get()
        editors = [] if editor is None else [editor]
    else:
        editors = _ACTIVE.get(module, [])
    changes = [change for one in editors if (change := one.attention_change(module)) is not None]
    if not changes:
        return attend(module, query, key, value, attention_mask, **more)
    attention_mask = _hide_keys(name, changes, attention_mask, query, key)
    edits = [change for change in changes if change.edits]
    out = _attend_with_edits(module, name, attend, edits, query, key, value, attention_mask, more)
    if out is None:
        out = attend(module, query, key, value, attention_mask, **more)
    for change in changes:
        if change.observe is not None:
            change.observe(_rows(query, key, attention_mask, change.first, more))
        if change.observe_values is not None:
            change.observe_values(value)
    return out


def _attend_with_edits(
    module: Any,
    name: str,
    attend: Attend,
    edits: list[AttentionChange],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    more: dict[str, Any],
) -> tuple[Tensor, Any] | None:
    """The output with some queries changed; the others keep the kernel. None: nothing to change."""
    if not edits:
        return None
    L, T = query.shape[2], key.shape[2]
    only = edits[0]
    in_keys = (
        len(edits) == 1
        and only.mode == "scale"
        and only.weight is not None
        and only.weight.dim() == 2
        and only.scores is None
        and only.probabilities is None
        and more.get("softcap") is None
    )
    if in_keys and L == 1:
        # A decode step comes after the image; batch rows without one have weight 0 and factor 1.
        return attend(module, query, key * _key_factor(only, key), value, attention_mask, **more)
    every = all(change.every for change in edits)
    out, probabilities = (None, None) if every else attend(module, query, key, value, attention_mask, **more)
    first = min(change.first for change in edits)
    if in_keys:
        mask = attention_mask if "flash" in name else _mask(attention_mask, first, L, T, query)
        part, _ = attend(module, query[:, :, first:], key * _key_factor(only, key), value, mask, **more)  # (B, R, H, D)
    else:
        groups = query.shape[1] // key.shape[1]
        k, v = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
        chunks = []
        for at in token_chunks(L - first):  # queries whose scores are held at once
            start, stop = first + at.start, first + at.stop
            mask = _mask(attention_mask, start, L, T, query, stop)
            chunks.append(_attend_changed(query[:, :, start:stop], k, v, mask, edits, start, more))
        part = torch.cat(chunks, 1)
    if out is None:
        return part, None
    changed = torch.stack([c.queries.to(out.device) for c in edits if c.queries is not None]).any(0)  # (B, L)
    part = torch.where(changed[:, first:, None, None], part, out[:, first:])
    return torch.cat([out[:, :first], part], 1), probabilities


def _key_factor(change: AttentionChange, key: Tensor) -> Tensor:
    assert change.weight is not None
    weight = fit_keys(change.weight, key.shape[2], change.total).to(key.device)
    return (1 + weight).to(key.dtype)[:, None, :, None]  # (B, 1, T, 1)


def _scores(q: Tensor, k: Tensor, more: dict[str, Any]) -> Tensor:
    """Scaled scores in float32: (B, H, R, T)."""
    s = (q @ k.mT).float() * (more.get("scaling") or q.shape[-1] ** -0.5)
    if (cap := more.get("softcap")) is not None:
        s = cap * torch.tanh(s / cap)
    return s


def _softmax(s: Tensor, mask: Tensor | None) -> Tensor:
    if mask is not None:
        if mask.dtype == torch.bool:
            s = s.masked_fill(~mask, torch.finfo(torch.float32).min)
        else:
            s = s + mask.float()
    return s.softmax(-1)


def _attend_changed(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    edits: list[AttentionChange],
    start: int,
    more: dict[str, Any],
) -> Tensor:
    """Attention of a chunk of queries with changed scores and probabilities: (B, R, H, D)."""
    s = _scores(q, k, more)  # (B, H, R, T)
    T, R = k.shape[2], q.shape[2]
    rows = [c.queries[:, None, start : start + R, None].to(q.device) for c in edits if c.queries is not None]
    for change, row in zip(edits, rows, strict=True):
        if change.weight is not None:
            weight = fit_keys(change.weight, T, change.total).to(q.device)
            weight = weight[:, None, None] if weight.dim() == 2 else weight[:, :, None]  # (B, 1 or H, 1, T)
            w = weight * row
            if change.mode == "scale":
                s = s * (1 + w)
            else:
                s = s + w * (s.abs() if change.mode == "abs" else s.abs().mean(1, keepdim=True))
        if change.scores is not None:
            s = torch.where(row, change.scores(s), s)
    p = _softmax(s, mask)
    for change, row in zip(edits, rows, strict=True):
        if change.probabilities is not None:
            p = torch.where(row, change.probabilities(p), p)
    return (p.to(v.dtype) @ v).transpose(1, 2)


def _rows(query: Tensor, key: Tensor, attention_mask: Tensor | None, first: int, more: dict[str, Any]) -> Tensor:
    """The attention of the queries from `first` on, computed from their scores: (B, H, R, T)."""
    L, T = query.shape[2], key.shape[2]
    k = key.repeat_interleave(query.shape[1] // key.shape[1], 1)
    return _softmax(_scores(query[:, :, first:], k, more), _mask(attention_mask, first, L, T, query))


def _hide_keys(
    name: str, changes: list[AttentionChange], attention_mask: Tensor | None, query: Tensor, key: Tensor
) -> Tensor | None:
    """The mask with hidden keys added."""
    hidden = [
        fit_keys(c.hidden_keys if c.hidden_keys.dim() == 3 else c.hidden_keys[:, None], key.shape[2], c.total)
        for c in changes
        if c.hidden_keys is not None
    ]
    if not hidden:
        return attention_mask
    if "flash" in name:
        raise ValueError(f"keys cannot be hidden in {name}: load the model with attn_implementation='sdpa'")
    visible = torch.ones((), dtype=torch.bool, device=query.device)
    for one in hidden:
        visible = visible & ~one.to(query.device)[:, None]  # (B, 1, 1 or L, T)
    L, T = query.shape[2], key.shape[2]
    mask = _mask(attention_mask, 0, L, T, query)
    if mask is None:
        return visible
    if mask.dtype == torch.bool:
        return mask & visible
    return mask.masked_fill(~visible, torch.finfo(mask.dtype).min)


def _mask(mask: Tensor | None, start: int, L: int, T: int, query: Tensor, stop: int | None = None) -> Tensor | None:
    """The mask of queries start:stop. Without one attention is causal, and the queries' offset must be said."""
    if mask is not None and mask.dim() == 4:
        return mask[:, :, start:stop, :T]
    if L == 1 and mask is None:
        return None
    # In a prefill with a static cache the keys run on past the sequence, and are hidden by causality.
    offset = 0 if T > L and mask is None else T - L
    at = torch.arange(start, stop or L, device=query.device) + offset
    causal = torch.arange(T, device=query.device) <= at[:, None]  # (R, T)
    if mask is not None:  # (B, T) padding, as flash attention takes it
        return causal & mask.bool()[:, None, None, :T]
    return causal[None, None]
