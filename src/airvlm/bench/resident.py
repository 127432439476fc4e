"""Memory of this process as the kernel counts it: held now, and the most since a moment. Linux alone says both.

Freed blocks that the C library keeps are given back first: they are nobody's memory.
"""

from __future__ import annotations

import ctypes
import gc
from contextlib import suppress
from pathlib import Path

__all__ = ["begin_peak", "peak", "resident"]

STATUS, FORGET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def resident() -> int:
    """Bytes in memory now."""
    gc.collect()
    with suppress(AttributeError):  # not every C library has it
        ctypes.CDLL(None).malloc_trim(0)
    return _status("VmRSS")


def begin_peak() -> int | None:
    """Let `peak` count from now: the bytes in memory at this moment, or None where the system cannot."""
    try:
        held = resident()
        FORGET.write_text("5")
    except OSError:
        return None
    return held


def peak() -> int:
    """The most bytes in memory since `begin_peak`, or since the process began."""
    return _status("VmHWM")


def _status(field: str) -> int:
    for line in STATUS.read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise OSError(f"{STATUS} has no {field}")
