"""`airvlm check --device`: laws, synchronizations and speed on a device; here on the CPU."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from airvlm.bench.device import (
    DEPTH,
    ROUNDS,
    _generate,
    _WideProcessor,
    check_device,
    count_synchronizations,
    find_layers,
)
from airvlm.bench.wide import WideLlava
from airvlm.methods import LogitsMethod, option
from airvlm.runtime.intervention import Context
from airvlm.testing import small_models
from airvlm.testing.acting import build_method, list_checked
from airvlm.testing.method_laws import FLOAT32_ONLY, METHOD_LAWS
from tests.device.pretend import FIRST, accelerator


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
    laws = found.laws["test-scales"]["llava"]
    assert set(laws.values()) == {"ok"}
    halved = {law.removesuffix(", in bfloat16") for law in laws if law.endswith(", in bfloat16")}
    assert halved == {law.name for law in METHOD_LAWS} & set(laws) - set(FLOAT32_ONLY)
    assert "strength 0 is vanilla bit for bit" in halved
    costs = {cost["method"]: cost for cost in found.costs}
    assert costs["vanilla"]["prefill"] == costs["vanilla"]["decode"] == [1.0] * ROUNDS
    assert len(costs["test-scales"]["decode"]) == ROUNDS and min(costs["test-scales"]["prefill"]) > 0
    assert costs["test-scales"]["memory"] is None or costs["test-scales"]["memory"] >= 0
    assert costs["test-fails"]["problem"] == "RuntimeError: on purpose"
    assert found.synchronizations["test-scales"] == 0
    assert json.loads(found.to_json())["machine"]["torch"] == torch.__version__
    assert "test-fails on llava" in found.to_markdown() and "| test-scales |" in found.to_markdown()
    assert any(step.startswith("laws of test-scales") for step in steps)


@dataclass(frozen=True)
class LeavesHalf(Scales):
    """Acts in float32 alone."""

    name: ClassVar[str] = "test-leaves-half"

    def next_logits(self, logits: Tensor, fp: Any, context: Context) -> Tensor:
        half = next(context.parts.decoder.parameters()).dtype != torch.float32
        return logits if half else logits * self.factor


def test_what_breaks_in_bfloat16_alone_is_told() -> None:
    found = check_device("cpu", methods={"test-leaves-half": LeavesHalf()}, families=["llava"], layers=1, scale=32)
    broken = {law for _, _, law, _ in found.broken}
    assert "it acts, and reports what it did, in bfloat16" in broken
    assert "it acts, and reports what it did" not in broken


def test_laws_that_are_checked_in_float32_alone_are_named() -> None:
    assert set(FLOAT32_ONLY) < {law.name for law in METHOD_LAWS}
    page = check_device("cpu", methods={}, families=["llava"], minutes=0).to_markdown()
    text = " ".join((Path(__file__).parents[2] / "docs/how-to/check-a-device.md").read_text().split())
    for law in METHOD_LAWS:
        assert law.name in text, "the documentation says in which dtypes it is checked"
        assert (law.name in page) == (law.name in FLOAT32_ONLY)


def test_methods_with_their_own_defaults_run_on_the_wide_model(tmp_path: Path) -> None:
    wide = WideLlava(layers=4, tower_layers=2, scale=32)
    for name in ("ad-hh", "sid", "crops", "vicrop"):  # three name a layer, and one writes a prompt for two images
        _generate(wide, build_method(name, wide.model, tmp_path, small=False), 0, 2, _WideProcessor())


def test_on_an_accelerator_a_law_that_breaks_is_checked_on_the_cpu_too() -> None:
    with accelerator():
        found = check_device(
            FIRST, methods={"test-scales": Scales(), "test-fails": Fails()}, families=["llava"], layers=1, scale=32
        )
    assert found.laws["test-scales"]["llava"]["it acts, and reports what it did"] == "ok"
    assert not [law for method, _, law, _ in found.broken if method == "test-scales"]
    assert {method for method, *_ in found.broken_on_cpu} == {"test-fails"}, "it fails on the CPU too"
    assert not [method for method, *_ in found.broken if method == "test-fails"]
    assert "Broken here and on the CPU" in found.to_markdown()
    assert found.synchronizations["test-scales"] == 0


def test_what_the_time_does_not_allow_is_named() -> None:
    found = check_device("cpu", methods={"test-scales": Scales()}, layers=1, scale=32, minutes=0)
    assert not found.laws and not found.costs
    assert len(found.skipped) == len(small_models.list_families()) + 2
    assert "speed of vanilla" in found.skipped and "Not reached in the time" in found.to_markdown()


@dataclass(frozen=True)
class Refuses(Scales):
    """Does not run on any model."""

    name: ClassVar[str] = "test-refuses"

    def start(self, context: Context) -> Any:
        raise ValueError("test-refuses does not know this family")


def test_a_family_that_a_method_refuses_breaks_no_law() -> None:
    found = check_device("cpu", methods={"test-refuses": Refuses()}, families=["llava"], layers=1, scale=32)
    assert found.refused == {"test-refuses": {"llava": "test-refuses does not know this family"}}
    assert not found.broken and "Refused by the method: 1." in found.to_markdown()


def test_every_method_can_be_built_for_the_check(tmp_path: Path) -> None:
    names = list_checked()
    assert {"air", "crop-blend", "vcd", "nullu", "vti", "marine", "crg"} <= set(names) and "random-crops" not in names
    model, _ = small_models.shared_model("llava")
    for small in (True, False):
        for name in names:
            assert build_method(name, model, tmp_path, small=small).name == name


def test_a_device_that_is_not_there_is_refused_at_once() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises((RuntimeError, AssertionError)):
        check_device("cuda")


def test_layers_are_what_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_layers("cpu") == 4
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (24 * 10**9, 24 * 10**9))
    assert 24 <= find_layers("cuda") <= DEPTH
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (8 * 10**9, 8 * 10**9))
    assert 4 <= find_layers("cuda") < 12
