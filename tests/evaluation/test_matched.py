"""Matched controls: the strength that changes as many answers, found on other images than those reported."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import ClassVar

import pytest
from fakes import FakeCaptions, FakeVLM
from hypothesis import given
from hypothesis import strategies as st

from airvlm.evaluation.evaluate import evaluate
from airvlm.evaluation.matched import STEPS, at_strength, is_control, remove_control, search_strength
from airvlm.evaluation.results import Results
from airvlm.methods import AIR, Composed, CropBlend, EOSBias, MeanToken, Method, OtherImage, get_method, option
from airvlm.methods.controls import Wrapper


@given(st.floats(0.05, 0.9), st.integers(1, 900), st.floats(0.3, 3.0))
def test_the_search_ends_near_the_goal_count_where_counts_rise(scale, goal, power):
    asked = []

    def count(s: float) -> int:
        asked.append(s)
        return round(1000 * min(1.0, (s * scale) ** power))

    strength, reached = search_strength(count, 0.25, goal, most=1.0)
    assert reached == round(1000 * min(1.0, (strength * scale) ** power)) and len(asked) <= STEPS
    assert len(set(asked)) == len(asked) and max(asked) <= 1.0
    assert abs(reached - goal) <= min(abs(count(s) - goal) for s in list(asked))


@given(st.floats(0.5, 2.0), st.floats(0.07, 0.9))
def test_a_goal_within_reach_is_met_closely(power, target):
    """Counts that rise smoothly: the bracket narrows from both sides."""
    goal = round(100_000 * target**power)
    strength, reached = search_strength(lambda s: round(100_000 * s**power), 0.25, goal, most=1.0)
    assert abs(reached - goal) <= 0.08 * goal and reached == round(100_000 * strength**power)


@pytest.mark.parametrize(("found", "tried"), [(0, [0.5, 1.0, 2.0, 4.0]), (9, [0.5, 0.25, 0.125, 0.0625])])
def test_a_goal_outside_of_what_was_tried_is_approached_in_steps_of_two(found, tried):
    asked = []
    search_strength(lambda s: asked.append(s) or found, 0.5, 5)
    assert asked[:4] == tried


def test_a_control_controls_the_method_that_it_wraps_beside_the_same_others():
    inner = CropBlend(keep=2, weight=0.2)
    assert remove_control(OtherImage(inner)) == inner
    assert remove_control(Composed(OtherImage(inner), EOSBias(-3.0))) == Composed(inner, EOSBias(-3.0))
    assert is_control(OtherImage(inner)) and is_control(Composed(MeanToken(inner), EOSBias()))
    assert not is_control(inner) and not is_control(None) and not is_control(Composed(inner, EOSBias()))


@pytest.mark.parametrize(
    ("control", "label"),
    [
        (MeanToken(CropBlend()), "mean-token(crop-blend:weight=0.3)"),
        (OtherImage(CropBlend(weight=0.8, keep=2)), "other-image(crop-blend:keep=2,weight=0.3)"),
        (OtherImage(AIR(keep=3)), "other-image(air:keep=3,strength=0.3)"),
        (
            Composed(MeanToken(CropBlend(keep=2)), EOSBias(-3.0)),
            "mean-token(crop-blend:keep=2,weight=0.3)+eos-bias:bias=-3.0",
        ),
    ],
)
def test_a_matched_control_is_labeled_as_what_it_is(fake_names, monkeypatch, control, label):
    monkeypatch.setattr("airvlm.methods.names.parse_method", fake_names)
    assert at_strength(control, 0.3).label == label
    assert get_method(label) == at_strength(control, 0.3)


def test_a_method_without_a_strength_cannot_be_matched():
    with pytest.raises(ValueError, match="no strength that can be varied"):
        at_strength(OtherImage(AIR(keep=3, strength=None)), 0.3)


@dataclass(frozen=True)
class Strong(Method):
    """A method whose effect grows with its weight."""

    name: ClassVar[str] = "strong"

    weight: float = option(0.2, "how strong", low=0, high=1, off=0)

    @property
    def bias(self) -> float:
        return 8.0 * self.weight


@dataclass(frozen=True)
class Weak(Wrapper):
    """A control that does a quarter as much."""

    name: ClassVar[str] = "weak"

    @property
    def bias(self) -> float:
        assert isinstance(self.method, Strong)
        return self.method.bias / 4


METHODS = [Strong(), Weak(Strong())]
OPTIONS = {"progress": False, "matched": True}


def test_a_control_is_asked_at_its_own_and_at_the_matched_strength(tmp_path):
    found = evaluate(FakeVLM(), ["fake-captions"], METHODS, out=tmp_path, **OPTIONS).tasks["fake-captions"]
    facts = found.matched["weak(strong)"]
    assert facts["controls"] == "strong" and facts["changed"]["split"] == "calibration"
    strength = float(facts["strength"].removeprefix("weight="))
    assert strength > 0.4 and facts["label"] == f"weak(strong:weight={strength})"
    own, strong = found.count_changed("weak(strong)"), found.count_changed(facts["label"])
    assert own < strong and found.at_equal(facts["label"])
    assert list(found.methods) == ["vanilla", "strong", "weak(strong)"]  # it is a column, not a row
    assert Results.load(tmp_path).tasks["fake-captions"].matched == found.matched
    again = FakeVLM()
    evaluate(again, ["fake-captions"], METHODS, out=tmp_path, **OPTIONS)
    assert again.sizes == []


def test_matched_controls_are_answered_beside_the_methods_of_the_same_images(tmp_path):
    run = evaluate(FakeVLM(), ["fake-captions"], METHODS, out=tmp_path, batch_size=2, **OPTIONS)
    matched_method = run.tasks["fake-captions"].matched["weak(strong)"]["method"]
    lines = [json.loads(line) for line in (tmp_path / "answers.jsonl").read_text().splitlines()]
    reported = [(line["item"], line["method"]) for line in lines if line["item"].startswith("test-")]
    first, last = reported[0][0], reported[-1][0]
    # so that what is cached of an image serves its matched controls too, however many images follow
    assert reported.index((first, matched_method)) < reported.index((last, None))


def test_a_task_without_a_calibration_split_is_refused_before_anything_is_asked(tmp_path, monkeypatch):
    items = FakeCaptions.items
    monkeypatch.setattr(FakeCaptions, "items", lambda self, limit=None, split="test": items(self, limit, "test"))
    vlm = FakeVLM()
    with pytest.raises(ValueError, match="no calibration split"):
        evaluate(vlm, ["fake-captions"], METHODS, out=tmp_path, **OPTIONS)
    assert vlm.sizes == []
