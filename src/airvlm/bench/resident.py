"""Resident memory of this process, now and at its peak, as Linux counts it.

Freed blocks that the C library keeps are given back first.
"""

from __future__ import annotations

import ctypes
import gc
from contextlib import suppress
from pathlib import Path

__all__ = ["begin_peak", "peak", "resident"]

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def resident() -> int:
    """Bytes in memory now."""
    gc.collect()
    with suppress(AttributeError):  # glibc only
        ctypes.CDLL(None).malloc_trim(0)
    return _read_status("VmRSS")


def begin_peak() -> int | None:
    """Let `peak` count from now. Returns the bytes in memory, or None if the system cannot do it."""
    try:
        held = resident()
        CLEAR.write_text("5")
    except OSError:
        return None
    return held


def peak() -> int:
    """The most bytes in memory since `begin_peak`, or since the process started."""
    return _read_status("VmHWM")


def _read_status(field: str) -> int:
    for line in STATUS.read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise OSError(f"{STATUS} has no {field}")
