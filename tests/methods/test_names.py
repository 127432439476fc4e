"""Methods by name: spellings, labels, objects, and what must never be imported."""

import dataclasses
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, ClassVar, Literal, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from airvlm.methods import (
    AIR,
    METHODS,
    VAF,
    AIRMemory,
    Composed,
    CropBlend,
    EOSBias,
    MeanToken,
    MemVR,
    Method,
    NoisyCrops,
    OtherImage,
    RandomCrops,
    build_method,
    get_method,
    list_methods,
    option,
    parse_method,
)
from airvlm.methods.controls import Wrapper

PLAIN = [kind for kind in METHODS.own.values() if not issubclass(kind, Wrapper)]
WRAPPERS = [kind for kind in METHODS.own.values() if issubclass(kind, Wrapper)]


# -- any method


def values(hint: Any, facts: Any) -> st.SearchStrategy[Any]:
    """Values of an option that its type and metadata allow."""
    low, high = facts.get("low", facts.get("above", -1e6)), facts.get("high", 1e6)
    if facts.get("span"):
        span = st.tuples(st.integers(0, 40), st.integers(1, 40)).map(lambda pair: (pair[0], pair[0] + pair[1]))
        return st.none() | span
    if get_origin(hint) in (Union, UnionType):
        return st.one_of([values(each, facts) for each in get_args(hint)])
    if get_origin(hint) is Literal:
        return st.sampled_from(get_args(hint))
    if hint is bool:
        return st.booleans()
    if hint is int:
        return st.integers(int(low), int(high))
    if hint is float:
        return st.floats(low, high, exclude_min="above" in facts)
    if hint is str:
        return st.sampled_from(("made.safetensors", "folder/made.safetensors", ""))
    if get_origin(hint) is tuple:
        kinds = get_args(hint)
        if kinds[1:] == (...,):
            return st.lists(values(kinds[0], facts), max_size=3).map(tuple)
        return st.tuples(*(values(each, facts) for each in kinds))
    assert hint is NoneType, hint
    return st.none()


@st.composite
def plain_methods(draw: st.DrawFn) -> Method:
    kind = draw(st.sampled_from(PLAIN))
    hints = get_type_hints(kind)
    names = [f.name for f in dataclasses.fields(kind)]
    chosen = draw(st.sets(st.sampled_from(names))) if names else set()
    given = {f.name: draw(values(hints[f.name], f.metadata)) for f in dataclasses.fields(kind) if f.name in chosen}
    try:
        return kind(**given)
    except ValueError:  # two rules at once, say
        assume(False)
        raise


@st.composite
def wrapped_methods(draw: st.DrawFn) -> Method:
    kind = draw(st.sampled_from(WRAPPERS))
    own = [f for f in dataclasses.fields(kind) if f.name != "method"]
    hints = get_type_hints(kind)
    try:
        return kind(draw(plain_methods()), **{f.name: draw(values(hints[f.name], f.metadata)) for f in own})
    except ValueError:  # nothing to control
        assume(False)
        raise


methods = plain_methods() | wrapped_methods()


@st.composite
def composed_methods(draw: st.DrawFn) -> Method:
    parts = draw(st.lists(methods, min_size=2, max_size=4))
    try:
        return Composed(*parts)
    except ValueError:  # two loops, say
        assume(False)
        raise


compositions = composed_methods()


@settings(deadline=None, max_examples=120)
@given(methods | compositions)
def test_a_label_is_read_back_as_an_equal_method(method: Method) -> None:
    assert parse_method(method.label) == method
    assert get_method(method.label) == method


@settings(deadline=None, max_examples=120)
@given(methods | compositions)
def test_json_is_read_back_as_an_equal_method(method: Method) -> None:
    again = Method.from_json(json.loads(json.dumps(method.to_json())))
    assert again == method and hash(again) == hash(method) and type(again) is type(method)
    assert again.label == method.label


# -- spellings


@pytest.mark.parametrize("kind", PLAIN, ids=lambda kind: kind.name)
def test_every_method_is_found_by_its_name(kind: Any) -> None:
    assert parse_method(kind.name) == kind() == get_method(kind())
    assert METHODS[kind.name] is kind and kind().label == kind.name


def test_all_names_are_listed() -> None:
    assert list_methods()[:3] == ["air", "air-memory", "crop-blend"]
    assert {kind.name for kind in (*PLAIN, *WRAPPERS)} <= set(list_methods())


@pytest.mark.parametrize(
    ("text", "method"),
    [
        ("air:keep=3,strength=0.2", AIR(keep=3, strength=0.2)),
        ("air:layers=(2,4), activation=identity", AIR(layers=(2, 4), activation="identity")),
        ("air-memory:layers=2-4,strength=none", AIRMemory(layers=(2, 4), strength=None)),
        ("air:layers=2:4", AIR(layers=(2, 4))),
        ("crop-blend:num_prototypes=64", CropBlend(num_prototypes=64)),
        ("eos-bias:bias=-1.5", EOSBias(-1.5)),
        ("eos-bias:bias=+2", EOSBias(2)),
        ("eos-bias:bias=1e+2", EOSBias(100.0)),
        ("vaf:faithful=true", VAF(faithful=True)),
        (" vaf ", VAF()),
        ("random-crops(crop-blend:keep=3)", RandomCrops(CropBlend(keep=3))),
        ("random-crops(crop-blend:keep=3):seed=5", RandomCrops(CropBlend(keep=3), seed=5)),
        ("noisy-crops(air:keep=3,layers=(1,2)):std=0.5", NoisyCrops(AIR(keep=3, layers=(1, 2)), std=0.5)),
        ("mean-token(crop-blend)", MeanToken(CropBlend())),
        ("mean-token", MeanToken()),
        ("crop-blend:keep=3+vaf", Composed(CropBlend(keep=3), VAF())),
        ("eos-bias:bias=1e+2+vaf", Composed(EOSBias(100.0), VAF())),
        ("vaf+other-image(crop-blend:keep=1)+vaf", Composed(VAF(), OtherImage(CropBlend(keep=1)), VAF())),
    ],
)
def test_a_spelling_is_the_method_it_names(text: str, method: Method) -> None:
    assert parse_method(text) == method


def test_vanilla_has_one_spelling() -> None:
    assert parse_method("vanilla") is None
    with pytest.raises(ValueError, match="unknown method 'none'"):
        parse_method("none")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("wizard", r"unknown method 'wizard'\. Known: air, air-memory, crop-blend"),
        ("crop-blnd", "did you mean crop-blend"),
        ("crop-blend:x=1", "crop-blend has no option 'x'; it has num_crops, crop_layout"),
        ("crop-blend:wieght=1", "did you mean weight"),
        ("crop-blend:strength=0.12", "crop-blend has no option 'strength'"),
        ("air:keep", "write options as name=value, not 'keep'"),
        ("air:keep=", "keep= has no value; write keep=none to leave it unset"),
        ("air:keep=2,keep=3", "keep is given twice"),
        ("air:layers=2-x", r"layers = '2-x': give \(first"),
        ("air:layers=9", r"layers = 9: give \(first, one after the last\)"),
        ("crop-blend:weight=nan", "weight = nan: give a finite number"),
        ("air:keep=2,tau=0.1", "keep and tau are both set"),
        ("vanilla:keep=1", "has no options"),
        ("vanilla+vaf", "cannot be combined"),
        ("random-crops(crop-blend)", "keeps all 4 crops"),
        ("random-crops(vanilla)", "needs a method to control"),
        ("random-crops(magic:keep=1)", "unknown method 'magic'"),
        ("magic(crop-blend)", "unknown method 'magic'"),
        ("vaf(crop-blend)", "vaf does not take another method"),
        ("os:system", "is not a method"),
        ("no.such.module:Thing", "no.such.module:Thing: No module named"),
        ("airvlm.methods:Nothing", "Nothing"),
        ("@nowhere.json", "nowhere.json"),
        ("", "unknown method ''"),
    ],
)
def test_a_wrong_spelling_says_what_is_wrong_in_one_line(text: str, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message) as caught:
        parse_method(text)
    assert "\n" not in str(caught.value)


def test_a_calibration_file_is_a_method_whose_options_can_be_changed(tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    path.write_text('{"method": {"name": "vaf", "enhance": 0.3}}')
    assert parse_method(f"@{path}") == VAF(enhance=0.3)
    assert parse_method(f"@{path}:suppress=0.2") == VAF(enhance=0.3, suppress=0.2)
    assert parse_method(f"crop-blend+@{path}") == Composed(CropBlend(), VAF(enhance=0.3))
    with pytest.raises(ValueError, match="no option 'keep'"):
        parse_method(f"@{path}:keep=2")


# -- objects


def test_get_method_takes_an_object_a_spelling_or_none() -> None:
    vaf = VAF(enhance=0.3)
    assert get_method(vaf) is vaf
    assert get_method("vaf:enhance=0.3") == vaf
    assert get_method(None) is None and get_method("vanilla") is None


def test_a_class_in_place_of_an_object_gets_a_helpful_error() -> None:
    with pytest.raises(TypeError, match=r"CropBlend is a class; pass an object: CropBlend\(\)"):
        get_method(CropBlend)  # type: ignore[arg-type]


@pytest.mark.parametrize("thing", [3, {"name": "vaf"}, ["vaf"], int])
def test_anything_else_is_refused(thing: Any) -> None:
    with pytest.raises(TypeError, match="a method is an object, a string or None, not"):
        get_method(thing)


def test_build_method_takes_a_name_and_options() -> None:
    assert build_method("crop-blend", {"keep": 3}) == CropBlend(keep=3)
    assert build_method("composed", {"methods": (VAF(), MemVR())}) == Composed(VAF(), MemVR())
    with pytest.raises(ValueError, match="crop-blend has no option 'kep'; did you mean keep"):
        build_method("crop-blend", {"kep": 3})


# -- what came over a network


@pytest.mark.parametrize(
    "name",
    ["os:system", "airvlm.methods:VAF", "@/etc/passwd", "vaf+air", "random-crops(vaf)", "vaf:enhance=1", "", "vanilla"],
)
def test_from_json_accepts_names_of_the_registry_only(name: str) -> None:
    with pytest.raises(ValueError, match="unknown method"):
        Method.from_json({"name": name})


def test_from_json_imports_nothing_and_opens_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "evil_airvlm.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("builtins.open", lambda *_, **__: pytest.fail("a file was opened"))
    monkeypatch.setattr("io.open", lambda *_, **__: pytest.fail("a file was opened"))
    for name in ("evil_airvlm:X", "evil_airvlm", "@evil_airvlm.py", "vaf+evil_airvlm:X"):
        for data in (
            {"name": name},
            {"name": "composed", "methods": [{"name": "vaf"}, {"name": name}]},
            {"name": "random-crops", "method": {"name": name}},
        ):
            with pytest.raises(ValueError, match="unknown method"):
                Method.from_json(data)
    assert "evil_airvlm" not in sys.modules


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"name": "vaf", "magic": 1}, "vaf has no option 'magic'"),
        ({"name": "vaf", "enhance": "high"}, "enhance = 'high': give a number"),
        ({"name": "vaf", "enhance": {"name": "vaf"}}, "enhance"),
        ({"name": "random-crops", "method": "crop-blend:keep=2"}, "method"),
        ({"enhance": 1}, "an object with a name"),
        ({"name": 3}, "an object with a name"),
        ([], "an object with a name"),
        ("vaf", "an object with a name"),
    ],
)
def test_wrong_json_says_what_is_wrong(data: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Method.from_json(data)


# -- methods of others


@dataclass(frozen=True)
class Mine(Method):
    """Not in the registry."""

    name: ClassVar[str] = "test-mine"
    factor: float = option(1.0, "how much")


@dataclass(frozen=True)
class Thief(Method):
    """Has the name of another method."""

    name: ClassVar[str] = "vaf"


@dataclass(frozen=True)
class Nameless(Method):
    """Has no name."""


def test_a_class_of_yours_is_spelled_by_its_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(METHODS, "own", dict(METHODS.own))
    assert parse_method(f"{__name__}:Mine:factor=2") == Mine(2)
    assert Method.from_json(Mine(2).to_json()) == Mine(2)  # its name is known from now on
    assert parse_method(f"vaf+{__name__}:Mine") == Composed(VAF(), Mine())
    with pytest.raises(ValueError, match="Mine has no option 'keep'"):
        parse_method(f"{__name__}:Mine:keep=2")
    with pytest.raises(ValueError, match="its name 'vaf' is that of another method"):
        parse_method(f"{__name__}:Thief")
    with pytest.raises(TypeError, match="Nameless has no name"):
        parse_method(f"{__name__}:Nameless")
    assert METHODS["vaf"] is VAF
