"""Method: a frozen, comparable configuration that describes itself."""

import json
import re
from dataclasses import FrozenInstanceError, fields
from pathlib import Path

import pytest

from airvlm.methods import (
    AIR,
    METHODS,
    RUDDER,
    VAF,
    CropBlend,
    HulluEdit,
    ProjectAway,
    RandomCrops,
    ViCrop,
    project_away,
)
from airvlm.methods.base import Method
from airvlm.methods.controls import Wrapper
from airvlm.runtime.intervention import DECODING


def test_a_method_is_a_frozen_comparable_key() -> None:
    assert VAF(enhance=0.2) == VAF(enhance=0.2) != VAF(enhance=0.3)
    assert len({VAF(enhance=0.2), VAF(enhance=0.2), VAF(enhance=0.3)}) == 2
    assert VAF() != AIR()
    with pytest.raises(FrozenInstanceError):
        VAF().enhance = 2.0  # type: ignore[misc]


@pytest.mark.parametrize("kind", METHODS.own.values(), ids=lambda kind: kind.name)
def test_every_class_says_what_it_is(kind: type[Method]) -> None:
    assert kind.name and kind.summary and kind.site and kind.cost
    assert "transformers" in kind.engines
    assert kind.paper is None or re.search(r"\(.*(20\d\d|arXiv).*\)$", kind.paper), "name the venue and the year"


def test_only_methods_of_papers_name_a_paper() -> None:
    # other tests may have added theirs
    kinds = {name: kind for name, kind in METHODS.own.items() if kind.__module__.startswith("airvlm.")}
    controls = {name for name, kind in kinds.items() if issubclass(kind, Wrapper)}
    ours = {
        "air-memory",
        "crop-blend",
        "crop-vote",
        "cut-off",
        "eos-bias",
        "near-tie",
        "temperature",
        "tta",
        "yes-bias",
    }
    assert {name for name, kind in kinds.items() if kind.paper is None} == controls | ours


SEARCHED = {
    "air": {
        "num_prototypes": (10, 200),
        "eps": (0.01, 0.3),
        "keep": (1, 12),
        "strength": (0.05, 1.0),
        "layers": (0.0, 0.8),
    },
    "crop-blend": {
        "eps": (0.01, 0.3),
        "keep": (1, 12),
        "weight": (0.1, 1.0),
        "match": ("transport", "softmax", "geometry"),
    },
    "vaf": {"enhance": (0.05, 0.6), "suppress": (0.0, 0.3)},
    "memvr": {"alpha": (0.05, 0.4), "threshold": (0.3, 0.9)},
    "ritual": {"alpha": (0.25, 4.0)},
    "vcd": {"alpha": (0.25, 2.0), "beta": (0.01, 0.5), "noise_step": (200, 900)},
}


@pytest.mark.parametrize("name", SEARCHED)
def test_calibration_searches_the_documented_ranges(name: str) -> None:
    options = fields(METHODS[name])
    assert {one.name: one.metadata["search"] for one in options if one.metadata.get("search")} == SEARCHED[name]


@pytest.mark.parametrize("kind", METHODS.own.values(), ids=lambda kind: kind.name)
def test_searched_ranges_hold_the_default_unless_it_is_off_and_keep_the_limits(kind: type[Method]) -> None:
    for one in fields(kind):
        found = one.metadata.get("search")
        if not found or not isinstance(one.default, int | float):
            continue
        low, *_, high = found
        assert low < high and (low <= one.default <= high or one.default == one.metadata["off"]), one.name
        assert one.metadata.get("low") is None or low >= one.metadata["low"], one.name
        assert one.metadata.get("high") is None or high <= one.metadata["high"], one.name


def test_layers_of_the_published_code_are_those_of_a_decoder_of_32_layers() -> None:
    assert (HulluEdit().span(32), RUDDER().span(32), ViCrop().span(32)) == (25, [30], 14)
    named = ProjectAway(objects="dog")
    layers = [named.find_layer(None, share, 32) for share in (project_away.IMAGE_LAYER, project_away.TEXT_LAYER)]
    assert layers == [19, 21]
    # scaled to other depths, and never beyond the last layer
    assert (HulluEdit().span(8), RUDDER().span(8), ViCrop().span(8), RUDDER().span(1)) == (6, [7], 4, [0])
    assert [named.find_layer(None, share, 8) for share in (project_away.IMAGE_LAYER, project_away.TEXT_LAYER)] == [5, 5]
    for chosen in (HulluEdit(layer=7), RUDDER(layer=7), ViCrop(layer=7)):
        chosen.span(8)
        with pytest.raises(ValueError, match=r"7.* the decoder has 7 layers"):
            chosen.span(7)


def test_every_decoding_mode_is_declared_by_default() -> None:
    assert Method.decoding == DECODING == ("greedy", "sampling", "beams")
    assert RandomCrops(CropBlend(keep=2)).decoding == DECODING


def test_a_label_holds_the_options_that_differ_from_their_defaults() -> None:
    assert CropBlend().label == "crop-blend"
    assert CropBlend(keep=3, weight=0.4).label == "crop-blend:keep=3"
    assert AIR(layers=(2, 4), strength=None).label == "air:strength=none,layers=(2,4)"
    assert VAF(faithful=True).label == "vaf:faithful=true"
    assert RandomCrops(CropBlend(keep=3), seed=2).label == "random-crops(crop-blend:keep=3):seed=2"


def test_tuples_survive_json() -> None:
    method = AIR(layers=(1, 3))
    assert Method.from_json(json.loads(json.dumps(method.to_json()))) == method


def test_a_method_without_start_says_what_is_missing() -> None:
    class Empty(Method):
        name = "test-empty"

    with pytest.raises(NotImplementedError, match=r"Empty must define start\(self, context\), or use a template"):
        Empty().start(None)  # type: ignore[arg-type]


def test_a_calibration_file_is_a_method(tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    path.write_text(json.dumps({"method": CropBlend(weight=0.3).to_json(), "model": {"fingerprint": "abc"}}))
    method = Method.load(path)
    assert method == CropBlend(weight=0.3) and method.calibrated_on == "abc"
    assert CropBlend(weight=0.3).calibrated_on is None
    for text, message in [("[]", "is not a calibration file"), ("{}", "it has no 'method'"), ("{", "is not a calibr")]:
        path.write_text(text)
        with pytest.raises(ValueError, match=message):
            Method.load(path)
    with pytest.raises(ValueError, match="No such file"):
        Method.load(tmp_path / "nowhere.json")
