"""What was computed once and may be wanted again: a least-recently-used store, bounded in bytes.

Knows nothing of what it keeps, beyond the size of its tensors.
"""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

from torch import Tensor

__all__ = ["Kept"]

Value = TypeVar("Value", Tensor, dict[str, Tensor])


class Kept(Generic[Value]):
    """The latest values, as many as fit into `limit` bytes; at least one."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._values: OrderedDict[Hashable, Value] = OrderedDict()
        self._bytes = 0

    def __contains__(self, key: Hashable) -> bool:
        return key in self._values

    def __getitem__(self, key: Hashable) -> Value:
        return self._values[key]

    def __setitem__(self, key: Hashable, value: Value) -> None:
        if key in self._values:
            self._bytes -= _size(self._values[key])
        self._values[key] = value
        self._values.move_to_end(key)
        self._bytes += _size(value)
        while len(self._values) > 1 and self._bytes > self.limit:
            _, dropped = self._values.popitem(last=False)
            self._bytes -= _size(dropped)


def _size(value: Tensor | dict[str, Tensor]) -> int:
    return sum(t.numel() * t.element_size() for t in (value.values() if isinstance(value, dict) else [value]))
