"""Every benchmark can be started, and its methods are those that the library has."""

from importlib import import_module

import pytest

from airvlm import CropBlend
from experiments.speed import crops, decode, memory, memvr, prefill
from experiments.speed.__main__ import FULL, QUICK


@pytest.mark.parametrize("name", [*QUICK, "tokens", "load", "vllm"])
def test_every_benchmark_is_a_module_with_a_main(name):
    assert callable(import_module(f"experiments.speed.{name}").main)


def test_a_full_run_has_no_other_benchmarks_than_a_quick_one():
    assert FULL.keys() <= QUICK.keys()


def test_crop_blend_is_measured_with_its_default_crops_and_air_too():
    for methods in (decode.list_methods(8), memory.METHODS, prefill.list_methods(2), crops.METHODS):
        assert methods["crop-blend"] == CropBlend()
        assert any(name.startswith("air") for name in methods)
    assert len(memvr.list_contexts(None, (0, 2))) == 4


def test_the_arithmetic_of_a_gpu_knows_the_defaults():
    """The number of updates by eps is written down by hand, and a method that costs nothing would be wrong."""
    flops = crops.count_flops()
    blend, air = (crops.estimate_end_to_end(flops, crops.METHODS[name]) for name in ("crop-blend", "air"))
    assert 1.005 < blend < air < 1.2
