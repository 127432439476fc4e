"""One thread for many small operations on a CPU, without a setting that other threads could see."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch

__all__ = ["single_thread"]


@contextmanager
def single_thread() -> Iterator[None]:
    """Let torch's operations in this block use the calling thread only.

    A small operation that is split among threads waits for the slowest of them, and on a busy machine for a time slice
    of the scheduler: 40 ms for 0.1 ms of work. `torch.set_num_threads` is no remedy, since it also decides for every
    thread that starts meanwhile; OpenMP's own setting, and MKL's local one, belong to the calling thread. Where torch
    was built without OpenMP nothing changes.
    """
    before = torch.get_num_threads()  # a thread's first call sets OpenMP's value: it must not happen inside the block
    openmp, mkl = _find_settings()
    if openmp is None or before == 1:
        yield
        return
    openmp(1)
    local = None if mkl is None else mkl(1)
    try:
        yield
    finally:
        openmp(before)
        if mkl is not None:
            mkl(local)


@cache
def _find_settings() -> tuple[Any, Any]:
    """`omp_set_num_threads` and `MKL_Set_Num_Threads_Local` of the libraries that torch uses; None for what is absent.

    The second returns what the thread had; 0 stands for MKL's default, which is OpenMP's value.
    """
    try:
        library = ctypes.CDLL(torch._C.__file__)  # loaded already: this finds the names in it and in what it links
    except OSError:
        return None, None
    return getattr(library, "omp_set_num_threads", None), getattr(library, "MKL_Set_Num_Threads_Local", None)
