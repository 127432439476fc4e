"""Timing: one clock on both sides of a ratio, and ratios within rounds."""

import time

import pytest
import torch

from experiments.speed import timing


@pytest.mark.parametrize("threads", [1, 2])
def test_a_report_counts_by_the_clock_that_vanilla_is_timed_by(threads, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    wall = time.perf_counter
    with timing.one_clock():
        first, then, last = timing.clock(), time.perf_counter(), timing.clock()
        assert first <= then <= last  # the zeros of two clocks are far apart
    assert time.perf_counter is wall


def test_ratios_are_taken_within_a_round_and_the_first_round_is_not_recorded():
    seconds = {"vanilla": iter([9.0, 1.0, 4.0]), "method": iter([9.0, 2.0, 4.0])}
    taken = timing.interleave({name: lambda own=own: next(own) for name, own in seconds.items()}, rounds=2)
    assert taken == {"vanilla": [1.0, 4.0], "method": [2.0, 4.0]}
    over = timing.ratios(taken, "vanilla")
    assert over["method"] == [2.0, 1.0]
    assert timing.show(over["method"], 1) == "1.5 [1.0, 2.0]"
