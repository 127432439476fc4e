"""What was computed of an image and may be needed again: one cache per model, bounded in bytes.

Pixels, features, crops' tokens and evidence share one least-recently-used store. A key holds everything that the value
depends on: the image's content, the settings, and where weights took part, their state.
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

__all__ = ["ImageCache", "Kind", "cache_of", "nbytes", "provenance", "serial", "weights_state"]

V = TypeVar("V")
Kind = Literal["pixels", "features", "crops", "evidence"]
LIMIT = 768 * 2**20  # bytes; evidence and crops of a dozen images at a 7B model's widths


class ImageCache:
    """The latest values, as many as fit into `limit` bytes, and at least one. Safe for threads."""

    def __init__(self, limit: int = LIMIT) -> None:
        self.limit = limit
        self.bytes = 0  # held now
        self.computed: Counter[str] = Counter()  # values stored so far, by kind
        self._seconds: dict[str, float] = {}  # spent on values before the session that needs them
        self._values: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._larger_limits: list[int] = []  # of callers that want more room for a while
        self._lock = threading.Lock()

    def get(self, kind: Kind, key: Hashable) -> Any:
        """The value, which becomes the latest one; None if it is not there."""
        with self._lock:
            if (kind, key) not in self._values:
                return None
            self._values.move_to_end((kind, key))
            return self._values[kind, key][0]

    def put(self, kind: Kind, key: Hashable, value: Any) -> None:
        """Store a value, and drop the oldest ones until all fit."""
        size = nbytes(value)
        with self._lock:
            self.computed[kind] += 1
            _, old = self._values.pop((kind, key), (None, 0))
            self._values[kind, key] = value, size
            self.bytes += size - old
            self._trim()

    def add_seconds(self, kind: Kind, seconds: float) -> None:
        """Seconds were spent on values for a session that has not begun."""
        self._seconds[kind] = self._seconds.get(kind, 0.0) + seconds

    def take_seconds(self, kind: Kind) -> float:
        """The seconds that were added since they were taken last: the session that needs the values reports them."""
        return self._seconds.pop(kind, 0.0)

    def get_or_compute(
        self, kind: Kind, keys: Sequence[Hashable], compute: Callable[[list[Any]], Sequence[V]]
    ) -> list[V]:
        """A value per key. What is missing is computed together, equal keys once.

        Args:
            kind: of the values.
            keys: one per value.
            compute: the missing keys -> their values.
        """
        found = {key: self.get(kind, key) for key in keys}
        missing = [key for key, value in found.items() if value is None]
        for key, value in zip(missing, compute(missing) if missing else (), strict=True):
            found[key] = value
            self.put(kind, key, value)
        return [found[key] for key in keys]

    def get_with_tokens(
        self,
        kind: Kind,
        keys: Sequence[Hashable],
        tokens: Sequence[Tensor],
        compute: Callable[[list[int]], Sequence[V]],
    ) -> list[V]:
        """Values that depend on tokens (K, d) beside their keys. What is not known of the same tokens is computed.

        Args:
            kind: of the values.
            keys: one per value.
            tokens: one tensor per value; a value is stored with a checksum of its tokens.
            compute: the indices of missing values, equal ones once -> the values.
        """
        sums = [Z.float() @ torch.arange(1, Z.shape[-1] + 1, device=Z.device).cos() for Z in tokens]  # (K,) each
        known = [self.get(kind, key) or (None, sums[keys.index(key)]) for key in keys]
        same = _same_sums(sums, [other for _, other in known])
        found: dict[int, V] = {i: one for i, (one, _) in enumerate(known) if same[i] and one is not None}
        first = [keys.index(key) if same[i] else i for i, key in enumerate(keys)]
        missing = [i for i, own in enumerate(first) if own == i and i not in found]
        for i, value in zip(missing, compute(missing) if missing else (), strict=True):
            found[i] = value
            self.put(kind, keys[i], (value, sums[i]))
        return [found[i] if i in found else found[first[i]] for i in range(len(keys))]

    @contextmanager
    def larger_limit(self, limit: int) -> Iterator[None]:
        """Allow this many bytes inside the block; of several callers, in any thread, the largest limit counts."""
        with self._lock:
            self._larger_limits.append(limit)
        try:
            yield
        finally:
            with self._lock:
                self._larger_limits.remove(limit)
                self._trim()

    def _trim(self) -> None:
        most = max(self.limit, *self._larger_limits, 0)
        while self.bytes > most and len(self._values) > 1:
            self.bytes -= self._values.popitem(last=False)[1][1]

    def clear(self) -> None:
        """Drop everything."""
        with self._lock:
            self._values.clear()
            self.bytes = 0

    def __len__(self) -> int:
        return len(self._values)


def _same_sums(sums: list[Tensor], others: list[Tensor]) -> list[bool]:
    """Whether checksums are of the same tokens, up to the rounding of another batch, with one read-back for all."""
    same = [one is other for one, other in zip(sums, others, strict=True)]
    unknown = [i for i, one in enumerate(sums) if not same[i] and one.device == others[i].device]
    near = [(sums[i] - others[i]).abs().amax() <= 1e-3 * others[i].abs().amax() for i in unknown]
    for i, alike in zip(unknown, torch.stack(near).tolist() if near else (), strict=True):
        same[i] = alike
    return same


_CACHES: WeakKeyDictionary[nn.Module, ImageCache] = WeakKeyDictionary()  # removed with its model
_SERIALS: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
_NEXT = itertools.count(1)
_LOCK = threading.Lock()


def cache_of(model: nn.Module) -> ImageCache:
    """The cache of this model (`ModelParts.model`: without torch.compile's and PEFT's wrappers)."""
    with _LOCK:
        if model not in _CACHES:
            _CACHES[model] = ImageCache()
        return _CACHES[model]


def serial(thing: Any) -> int:
    """A number for one object (an image processor, say) that no other object ever gets; 0 for None."""
    if thing is None:
        return 0
    with _LOCK:
        try:
            if thing not in _SERIALS:
                _SERIALS[thing] = next(_NEXT)
            return _SERIALS[thing]
        except TypeError:  # neither hashable nor weakly referable
            return -id(thing)


def provenance(model: nn.Module, processor: Any) -> Hashable:
    """What a value computed by a model depends on beside its image: the image processor and the weights' state."""
    return serial(getattr(processor, "image_processor", processor)), weights_state(model)


def weights_state(model: nn.Module) -> Hashable:
    """Changes when the weights do: in place (training), by conversion, or by switching or merging an adapter."""
    versions, kinds, adapters, waiting = 0, set(), [], [model]
    while waiting:
        module = waiting.pop()
        waiting += [part for part in module._modules.values() if part is not None]
        for parameter in module._parameters.values():
            if parameter is not None:
                versions += parameter._version
                kinds.add((parameter.dtype, parameter.device))
        own: Any = module
        if _is_adapter(own.__class__):
            adapters.append((str(own.active_adapters), own.disable_adapters, str(own.merged_adapters)))
    return versions, frozenset(kinds), hash(tuple(adapters))


@cache
def _is_adapter(kind: Any) -> bool:
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
