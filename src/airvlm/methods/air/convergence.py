"""When the host learns that every problem of a batch has converged, seldom waiting for a device.

On a CPU it looks after each update. A device works behind the host, and each look that waits for it leaves it idle: it
is waited for once, at update FIRST, which most batches need no more than. From there on the answer is sent every EVERY
updates into pinned memory, which the host reads without waiting: it hears some updates late, and those change nothing.
Memory that cannot be pinned cannot be written behind the host's back; there the looks LATE wait too. Knows nothing of
transport.
"""

from __future__ import annotations

import torch
from torch import Tensor

FIRST = 20
EVERY = 5
LATE = (60, 250)  # together with FIRST they cover a range of 1000, a factor of four between them


class Convergence:
    """Asked after every update, counted from 1; tells at some of them that the whole batch has converged."""

    def __init__(self, device: torch.device) -> None:
        self.host = device.type == "cpu"
        self.first = 1 if self.host else FIRST  # the caller looks at this one, and waits
        self.heard = None if self.host else _pinned()

    def reached(self, update: int, unconverged: Tensor) -> bool:
        """Whether no problem is left, as far as the host knows; `unconverged` is bool, of any shape."""
        if self.host or (self.heard is None and update in LATE):
            return not bool(unconverged.any())
        if self.heard is None or update < self.first:
            return False
        if update % EVERY == 0:
            # What has converged stays so: one byte goes from 0 to 1, and whenever it is read it is true or late.
            self.heard.copy_(unconverged.any().logical_not_(), non_blocking=True)
        return bool(self.heard)


def _pinned() -> Tensor | None:
    """A False on the host that a device can write into by itself; None where memory cannot be pinned."""
    try:
        return torch.zeros((), dtype=torch.bool, pin_memory=True)
    except (RuntimeError, NotImplementedError):
        return None
