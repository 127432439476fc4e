"""Which part of the work is ours: `--shard i/n` for schedulers, RANK and WORLD_SIZE under `accelerate launch`.

Knows nothing about what the work is.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

__all__ = ["Shard"]

T = TypeVar("T")


@dataclass(frozen=True)
class Shard:
    """Part `index` of `count`."""

    index: int = 0
    count: int = 1
    helps: bool = False  # goes on with the others' parts after its own: for workers of one launch
    device: int | None = None  # which of the machine's GPUs the launcher means for us

    @classmethod
    def parse(cls, text: str) -> Shard:
        """`i/n`, counted from 0; n/n is the same as 0/n, so that counting from 1 works too."""
        match = re.fullmatch(r"\s*(\d+)\s*/\s*(\d+)\s*", text)
        if not match or int(match[2]) < 1 or int(match[1]) > int(match[2]):
            raise ValueError(f"--shard {text}: expected i/n with i from 0 to n-1, as in 0/4")
        return cls(int(match[1]) % int(match[2]), int(match[2]))

    @classmethod
    def launched(cls, environment: Mapping[str, str] = os.environ) -> Shard:
        """Our place among the processes of `accelerate launch` or torchrun; the whole without a launcher."""
        try:
            rank, world = int(environment.get("RANK", 0)), int(environment.get("WORLD_SIZE", 1))
            device = int(environment.get("LOCAL_RANK", rank))
        except ValueError as error:
            raise ValueError("RANK, WORLD_SIZE or LOCAL_RANK is set, but not to a number") from error
        if world <= 1:
            return cls()
        return cls(rank, world, helps=True, device=device)

    @property
    def whole(self) -> bool:
        return self.count == 1

    @property
    def gathers(self) -> bool:
        """Whether this process shows the result: it is alone, or the first of its launch."""
        return self.whole or (self.helps and self.index == 0)

    def share(self, work: Sequence[T]) -> list[T]:
        """Our part of the work; where we help, followed by everything else.

        The others' parts are taken from their far ends, where a living worker arrives last: what is done twice is
        little, and what a dead worker left is done by the rest.
        """
        own = list(work[self.index :: self.count])
        if not self.helps:
            return own
        others = [w for i, w in enumerate(work) if i % self.count != self.index]
        return own + others[::-1]
