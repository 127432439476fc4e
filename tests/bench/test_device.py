"""`airvlm check --device`: laws, synchronizations and speed on a device; here on the CPU."""

import json
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from airvlm.bench.device import DEPTH, check_device, count_synchronizations, find_layers, list_checked
from airvlm.bench.wide import WideLlava
from airvlm.methods import LogitsMethod, option
from airvlm.runtime.intervention import Context


@dataclass(frozen=True)
class Reads(LogitsMethod):
    """Reads a number back from the device in every step."""

    name: ClassVar[str] = "test-reads"
    summary: ClassVar[str] = "reads back"
    factor: float = option(2.0, "of the logits", above=0, off=1)

    def next_logits(self, logits: Tensor, fp: Any, context: Context) -> Tensor:
        return logits * self.factor if logits.sum().item() > -1e30 else logits


@dataclass(frozen=True)
class Scales(Reads):
    """The same without reading."""

    name: ClassVar[str] = "test-scales"

    def next_logits(self, logits: Tensor, fp: Any, context: Context) -> Tensor:
        return logits * self.factor


@dataclass(frozen=True)
class Fails(Reads):
    """Raises."""

    name: ClassVar[str] = "test-fails"

    def next_logits(self, logits: Tensor, fp: Any, context: Context) -> Tensor:
        raise RuntimeError("on purpose")


def test_reading_back_is_counted() -> None:
    wide = WideLlava(layers=1, tower_layers=1, scale=32)
    vanilla = count_synchronizations(wide, None)
    assert count_synchronizations(wide, Scales()) == vanilla
    assert count_synchronizations(wide, Reads()) == vanilla + 1


def test_a_device_is_checked_and_what_breaks_is_told() -> None:
    steps: list[str] = []
    found = check_device(
        "cpu",
        methods={"test-scales": Scales(), "test-fails": Fails()},
        families=["llava"],
        layers=1,
        scale=32,
        progress=steps.append,
    )
    assert all(method == "test-fails" for method, *_ in found.broken) and found.broken
    assert set(found.laws["test-scales"]["llava"].values()) == {"ok"}
    costs = {cost["method"]: cost for cost in found.costs}
    assert costs["vanilla"]["prefill"] == costs["vanilla"]["decode"] == 1.0
    assert costs["test-scales"]["prefill"] > 0 and costs["test-fails"]["problem"] == "RuntimeError: on purpose"
    assert found.synchronizations["test-scales"] == 0
    assert json.loads(found.to_json())["machine"]["torch"] == torch.__version__
    assert "test-fails on llava" in found.to_markdown() and "| test-scales |" in found.to_markdown()
    assert any(step.startswith("laws of test-scales") for step in steps)


def test_every_method_that_needs_nothing_is_checked() -> None:
    assert {"air", "crop-blend", "vcd", "pai", "sid", "deco"} <= set(list_checked())
    assert "nullu" not in list_checked() and "random-crops" not in list_checked()


def test_a_device_that_is_not_there_is_refused_at_once() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises((RuntimeError, AssertionError)):
        check_device("cuda")


def test_layers_are_what_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_layers("cpu") == 2
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (24 * 10**9, 24 * 10**9))
    assert 24 <= find_layers("cuda") <= DEPTH
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (8 * 10**9, 8 * 10**9))
    assert 2 <= find_layers("cuda") < 12
