"""Options of methods: finite, in range, of their type, and explained wherever one looks for them."""

import dataclasses
import inspect
import math
import pydoc
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest

from airvlm.methods import METHODS, Composed
from airvlm.methods.base import Method, option
from airvlm.methods.controls import Wrapper

PLAIN = [kind for kind in METHODS.own.values() if not issubclass(kind, Wrapper)]
every_method = pytest.mark.parametrize("kind", [*METHODS.own.values(), Composed], ids=lambda kind: kind.name)


@dataclass(frozen=True)
class Knobs(Method):
    """Has options of all kinds."""

    name: ClassVar[str] = "test-knobs"

    gain: float = option(0.5, "how much", low=0, high=2, off=0)
    count: int | None = option(None, "how many", low=1)
    pair: tuple[float, float] = option((0.0, 1.0), "from and to")
    many: tuple[float, ...] = option((), "some numbers")
    anything: Any = None
    plain: float = 1.0  # no metadata: checked by its type alone


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gain": math.nan}, "finite"),
        ({"gain": math.inf}, "finite"),
        ({"gain": 2.5}, "gain = 2.5: give a value between 0 and 2"),
        ({"gain": "much"}, "give a number"),
        ({"gain": True}, "give a number"),
        ({"count": 0}, "cannot be below 1"),
        ({"count": 1.5}, "give an integer, or none"),
        ({"count": 10**30}, "64 bits"),
        ({"pair": (1.0,)}, "give 2 values in parentheses"),
        ({"pair": (1.0, math.inf)}, "finite"),
        ({"many": (1.0, "x")}, "many"),
        ({"many": 1.0}, "many"),
        ({"plain": math.nan}, "plain = nan"),
        ({"plain": 1e300}, "plain"),
        ({"plain": None}, "plain"),
    ],
)
def test_a_wrong_value_is_refused_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Knobs(**options)


def test_values_of_the_declared_types_are_accepted() -> None:
    for options in ({"many": (1.0, 2)}, {"anything": "x"}, {"anything": (1, "x")}, {"gain": 2}, {"count": None}):
        assert {name: getattr(Knobs(**options), name) for name in options} == options


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e300])
@pytest.mark.parametrize("kind", PLAIN, ids=lambda kind: kind.name)
def test_no_number_of_any_method_may_be_infinite(kind: Any, value: float) -> None:
    method = kind()
    numbers = [f for f, v in vars(method).items() if isinstance(v, int | float) and not isinstance(v, bool)]
    assert numbers or not dataclasses.fields(kind)
    for field in numbers:
        with pytest.raises(ValueError, match=field):
            replace(method, **{field: value})


@every_method
def test_every_option_is_explained(kind: Any) -> None:
    for field in dataclasses.fields(kind):
        assert field.metadata.get("help"), f"{kind.__name__}.{field.name}"


@every_method
def test_the_signature_shows_every_option_with_its_default(kind: Any) -> None:
    parameters = inspect.signature(kind).parameters
    if kind is Composed:
        assert list(parameters) == ["parts", "methods"]
        return
    assert list(parameters) == [f.name for f in dataclasses.fields(kind)]
    for field in dataclasses.fields(kind):
        assert parameters[field.name].default == field.default


@every_method
def test_help_explains_every_option(kind: Any) -> None:
    text = " ".join(pydoc.plain(pydoc.render_doc(kind)).split())
    for field in dataclasses.fields(kind):
        assert f"{field.name}: {field.metadata['help']}." in text, field.name
    assert kind.__doc__.splitlines()[0].endswith((".", ":", ")."))


def test_a_subclass_explains_what_it_inherits_and_what_it_adds() -> None:
    @dataclass(frozen=True)
    class More(Knobs):
        """Has one more."""

        name: ClassVar[str] = "test-more"
        extra: int = option(1, "one more")
        gain: float = option(1.0, "how much of it", low=0)

    assert More.__doc__ is not None
    assert More.__doc__.startswith("Has one more.\n")
    assert More.__doc__.count("Args:") == 1 and "extra: one more." in More.__doc__
    assert "gain: how much of it." in More.__doc__ and "count: how many." in More.__doc__


def test_a_method_is_disabled_when_all_its_switches_are_off() -> None:
    from airvlm.methods import AIR, VAF, CropBlend, MemVR

    assert Knobs().disabled_reason is None and Knobs(gain=0).disabled_reason == "its gain is 0"
    assert VAF(enhance=0.0).disabled_reason is None
    assert VAF(enhance=0.0, suppress=0.0).disabled_reason == "its enhance is 0 and its suppress is 0"
    assert CropBlend(weight=0.0).disabled_reason == "its weight is 0"
    assert AIR(strength=0.0).disabled_reason == "its strength is 0"
    assert AIR(strength=None).disabled_reason is None and MemVR().disabled_reason is None
    assert MemVR(alpha=0.0).disabled_reason == "its alpha is 0"
