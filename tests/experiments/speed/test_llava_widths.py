"""The benchmarks' timing: one clock on both sides of a ratio."""

import time

import pytest
import torch

from experiments.speed import llava_widths as llava


@pytest.mark.parametrize("threads", [1, 2])
def test_a_report_counts_by_the_clock_that_vanilla_is_timed_by(threads, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    wall = time.perf_counter
    with llava.one_clock():
        first, then, last = llava.clock(), time.perf_counter(), llava.clock()
        assert first <= then <= last  # of two clocks one would lie outside: their zeros are far apart
    assert time.perf_counter is wall
