"""What was computed of an image and may be wanted again: one store for each model.

Pixels, features, crops' tokens and evidence live in one least-recently-used store that is bounded in bytes. A key says
everything the value depends on: the image's content, the settings, and where weights took part, their state. Knows
nothing of how the values are computed.
"""

from __future__ import annotations

import dataclasses
import itertools
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, Literal, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from airvlm.models.anatomy import every_module

__all__ = ["ImageCache", "Kind", "cache_of", "nbytes", "serial", "weights_state"]

V = TypeVar("V")
Kind = Literal["pixels", "features", "crops", "evidence"]
LIMIT = 768 * 2**20  # bytes; evidence and crops of a dozen images at a 7B model's widths


class ImageCache:
    """The latest values, as many as fit into `limit` bytes; at least one. Safe for threads."""

    def __init__(self, limit: int = LIMIT) -> None:
        self.limit = limit
        self.bytes = 0  # held now
        self.computed: Counter[str] = Counter()  # values stored so far, by kind: what was not found
        self._values: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._asked: list[int] = []  # limits of those who want more room for a while
        self._lock = threading.Lock()

    def get(self, kind: Kind, key: Hashable) -> Any:
        """The value, which becomes the latest; None where it is not kept."""
        with self._lock:
            if (kind, key) not in self._values:
                return None
            self._values.move_to_end((kind, key))
            return self._values[kind, key][0]

    def put(self, kind: Kind, key: Hashable, value: Any) -> None:
        size = nbytes(value)
        with self._lock:
            self.computed[kind] += 1
            _, old = self._values.pop((kind, key), (None, 0))
            self._values[kind, key] = value, size
            self.bytes += size - old
            self._trim()

    @contextmanager
    def roomier(self, limit: int) -> Iterator[None]:
        """May fill this many bytes meanwhile; of several who ask for more, in whatever threads, the most holds."""
        with self._lock:
            self._asked.append(limit)
        try:
            yield
        finally:
            with self._lock:
                self._asked.remove(limit)
                self._trim()

    def _trim(self) -> None:
        most = max(self.limit, *self._asked, 0)
        while self.bytes > most and len(self._values) > 1:
            self.bytes -= self._values.popitem(last=False)[1][1]

    def get_with_tokens(
        self,
        kind: Kind,
        keys: Sequence[Hashable],
        tokens: Sequence[Tensor],
        compute: Callable[[list[int]], Sequence[V]],
    ) -> list[V]:
        """Values that depend on tokens (K, d) beside their keys; those not kept of the same tokens are computed.

        A value is kept with a mark of its tokens. compute: the indices of what is missing, equal ones once -> values.
        """
        marks = [_mark(own) for own in tokens]
        known = [self.get(kind, key) or (None, marks[keys.index(key)]) for key in keys]
        same = _same(marks, [mark for _, mark in known])
        found: dict[int, V] = {i: one for i, (one, _) in enumerate(known) if same[i] and one is not None}
        first = [
            keys.index(key) if alike else i for i, (key, alike) in enumerate(zip(keys, same, strict=True))
        ]
        missing = [i for i, own in enumerate(first) if own == i and i not in found]
        for i, value in zip(missing, compute(missing) if missing else (), strict=True):
            found[i] = value
            self.put(kind, keys[i], (value, marks[i]))
        return [found[i] if i in found else found[first[i]] for i in range(len(keys))]

    def clear(self) -> None:
        with self._lock:
            self._values.clear()
            self.bytes = 0

    def __len__(self) -> int:
        return len(self._values)


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


_CACHES: WeakKeyDictionary[nn.Module, ImageCache] = WeakKeyDictionary()  # gone with its model
_SERIALS: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
_NEXT = itertools.count(1)
_LOCK = threading.Lock()


def cache_of(model: nn.Module) -> ImageCache:
    """The store that belongs to this model (the one inside torch.compile's and PEFT's wrappers: Anatomy.model)."""
    with _LOCK:
        if model not in _CACHES:
            _CACHES[model] = ImageCache()
        return _CACHES[model]


def serial(thing: Any) -> int:
    """A number of one object (an image processor, say) that no other object ever gets; 0 stands for None."""
    if thing is None:
        return 0
    with _LOCK:
        try:
            if thing not in _SERIALS:
                _SERIALS[thing] = next(_NEXT)
            return _SERIALS[thing]
        except TypeError:  # neither hashed nor referred to weakly
            return -id(thing)


def weights_state(model: nn.Module) -> Hashable:
    """Changes when the weights do: in place (training), by conversion, or by switching or merging an adapter."""
    versions, kinds, adapters = 0, set(), []
    for module in every_module(model):
        for parameter in module._parameters.values():
            if parameter is not None:
                versions += parameter._version
                kinds.add((parameter.dtype, parameter.device))
        own: Any = module
        if _is_adapted(own.__class__):
            adapters.append((str(own.active_adapters), own.disable_adapters, str(own.merged_adapters)))
    return versions, frozenset(kinds), hash(tuple(adapters))


@cache
def _is_adapted(kind: Any) -> bool:
    """Whether a class is one of PEFT's own layers."""
    return isinstance(getattr(kind, "disable_adapters", None), property)


def nbytes(value: Any) -> int:
    """Bytes of the tensors in a value: a tensor, or mappings, sequences and dataclasses of them."""
    if isinstance(value, Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, Mapping):
        return sum(nbytes(part) for part in value.values())
    if isinstance(value, list | tuple):
        return sum(nbytes(part) for part in value)
    if dataclasses.is_dataclass(value):
        return sum(nbytes(getattr(value, field.name)) for field in dataclasses.fields(value))
    return 0
