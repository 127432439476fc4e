"""Fields of methods: finite, in range, of their kind, and never without effect."""

import dataclasses
import json
import math
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from airvlm.methods import AIR, METHODS, VAF, VCD, AIRMemory, CropBlend, EOSBias, MemVR
from airvlm.methods.base import Method, Renamed, option


@dataclass(frozen=True)
class Knobs(Method):
    name: ClassVar[str] = "test-knobs"
    renamed: ClassVar[dict[str, Renamed]] = {"old": Renamed("gain", lambda v: v / 10, lambda v: v * 10)}

    gain: float = option(0.5, "how much", low=0, high=2, off=0)
    count: int | None = option(None, "how many", low=1)
    plain: float = 1.0  # no metadata: checked by its hint alone


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"gain": math.nan}, "finite"),
        ({"gain": math.inf}, "finite"),
        ({"gain": 2.5}, "gain = 2.5: give a value between 0 and 2"),
        ({"gain": "much"}, "give a number"),
        ({"gain": True}, "give a number"),
        ({"count": 0}, "cannot be below 1"),
        ({"count": 1.5}, "give a whole number, or none"),
        ({"count": 10**30}, "64 bits"),
        ({"plain": math.nan}, "plain = nan"),
        ({"plain": 1e300}, "plain"),
        ({"plain": None}, "plain"),
    ],
)
def test_a_value_that_cannot_be_meant_is_refused_by_name(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Knobs(**fields)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e300])
@pytest.mark.parametrize("name", [name for name, info in METHODS.items() if info.make is not None])
def test_no_number_of_any_method_may_be_infinite(name: str, value: float) -> None:
    method = METHODS[name].default
    assert method is not None
    numbers = [f for f, v in vars(method).items() if isinstance(v, int | float) and not isinstance(v, bool)]
    assert numbers
    for field in numbers:
        with pytest.raises(ValueError, match=field):
            replace(method, **{field: value})


def test_every_field_of_every_method_says_what_it_means() -> None:
    for kind in (AIR, MemVR, VAF, VCD, EOSBias):
        for field in dataclasses.fields(kind):
            assert field.metadata.get("doc"), f"{kind.__name__}.{field.name}"


@pytest.mark.parametrize(
    ("make", "reading"),
    [
        (lambda: CropBlend(strength=0.3), "air-paper and air-lineage"),
        (lambda: CropBlend(layers=(2, 4)), "air-paper and air-lineage"),
        (lambda: CropBlend(threshold=0.5), "air-lineage"),
        (lambda: AIR(threshold=0.5), "air-lineage"),
        (lambda: AIR(weight=0.25), "air-transported"),
        (lambda: AIRMemory(match="softmax"), "air-transported"),
        (lambda: CropBlend(memory="prototypes+crops"), "air-paper and"),
    ],
)
def test_a_field_without_effect_names_the_reading_in_which_it_acts(make: Any, reading: str) -> None:
    with pytest.raises(ValueError, match=f"no effect in the .* it acts in {reading}"):
        make()


def test_a_method_is_off_when_all_that_turns_it_off_does() -> None:
    assert Knobs().off is None and Knobs(gain=0).off == "its gain is 0"
    assert VAF(enhance=0.0).off is None
    assert VAF(enhance=0.0, suppress=0.0).off == "its enhance and suppress are 0"
    assert CropBlend(weight=0.0).off == "its weight is 0" and AIR(strength=0.0).off == "its strength is 0"
    assert AIR(strength=None).off is None and MemVR().off is None


def test_an_old_spelling_works_with_a_warning() -> None:
    with pytest.warns(DeprecationWarning, match="old is now called gain"):
        assert Knobs(old=5.0) == Knobs(gain=0.5)  # type: ignore[call-arg]
    with pytest.warns(DeprecationWarning, match="old is now called gain"):
        assert Knobs(gain=0.5).old == 5.0
    with pytest.warns(DeprecationWarning, match="window is now called layers"):
        assert MemVR(window=(5, 16)) == MemVR(layers=(7, 17))  # type: ignore[call-arg]
    with pytest.warns(DeprecationWarning, match="plan is now called layout"):
        assert CropBlend(plan="random") == CropBlend(layout="random")
    with pytest.raises(AttributeError, match="nonsense"):
        _ = Knobs().nonsense


def test_methods_of_earlier_stores_are_read() -> None:
    """Old names are translated and fields that did nothing are dropped, without a word."""
    old = AIR(keep=3, positions="all", layout="random").to_json()
    old["rows"], old["plan"] = old.pop("positions"), old.pop("layout")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Method.from_json(old) == AIR(keep=3, positions="all", layout="random")
        assert Method.from_json({"name": "memvr", "window": [5, 16]}) == MemVR(layers=(7, 17))
        assert Method.from_json({**CropBlend().to_json(), "strength": 0.3}) == CropBlend()
    with pytest.raises(ValueError, match="no field 'telepathy'"):
        Method.from_json({**CropBlend().to_json(), "telepathy": 1})


def test_a_calibration_file_is_a_method(tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    path.write_text(json.dumps({"method": CropBlend(weight=0.4).to_json(), "model": {"fingerprint": "abc"}}))
    method = Method.load(path)
    assert method == CropBlend(weight=0.4) and method.calibrated_on == "abc"
    assert CropBlend(weight=0.4).calibrated_on is None
    for text, message in [("[]", "no calibration"), ("{}", "no 'method'"), ("{", "no calibration")]:
        path.write_text(text)
        with pytest.raises(ValueError, match=message):
            Method.load(path)
    with pytest.raises(ValueError, match="No such file"):
        Method.load(tmp_path / "nowhere.json")


def test_a_name_of_airvlms_own_is_not_to_be_taken() -> None:
    with pytest.raises(TypeError, match="'vaf' is airvlm's own"):

        @dataclass(frozen=True)
        class Mine(Method):
            name: ClassVar[str] = "vaf"
