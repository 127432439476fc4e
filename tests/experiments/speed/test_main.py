"""The benchmarks can be begun: what they take from the library is there."""

from importlib import import_module

import pytest
from experiments.speed.__main__ import QUICK
from experiments.speed.crops import end_to_end_on_a_gpu, flops

from experiments.speed import decode, memory, memvr


@pytest.mark.parametrize("name", [*QUICK, "tokens", "serve"])
def test_every_benchmark_is_a_module_with_a_main(name):
    assert callable(import_module(f"benchmarks.{name}").main)


def test_their_methods_have_fields_that_the_library_takes():
    assert len(decode.methods(8)) == 5
    assert len(memvr.blocks(None, (0, 2))) == 3
    assert len([make() for make in memory.READINGS.values()]) == 3


def test_the_arithmetic_of_a_gpu_knows_the_default():
    """How many updates the default's eps takes is told by hand; and a method that costs nothing would be wrong."""
    assert 1.01 < end_to_end_on_a_gpu(flops()) < 1.2
