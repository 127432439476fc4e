"""Matched controls: the strength that changes as many answers, found on other images than those reported."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest
from fakes import FakeVLM
from hypothesis import given
from hypothesis import strategies as st

import airvlm.methods
from airvlm.evaluation import matched
from airvlm.evaluation.evaluate import evaluate
from airvlm.evaluation.matched import STEPS, at, controlled, first_of, search, spelled, strength_of
from airvlm.evaluation.results import Results
from airvlm.methods.names import parse_method


@given(st.floats(0.05, 0.9), st.integers(1, 900), st.floats(0.3, 3.0))
def test_the_search_ends_near_the_wanted_count_where_counts_rise(scale, wanted, power):
    asked = []

    def count(s: float) -> int:
        asked.append(s)
        return round(1000 * min(1.0, (s * scale) ** power))

    strength, reached = search(count, 0.25, wanted, most=1.0)
    assert reached == round(1000 * min(1.0, (strength * scale) ** power)) and len(asked) <= STEPS
    assert len(set(asked)) == len(asked) and max(asked) <= 1.0
    assert abs(reached - wanted) <= min(abs(count(s) - wanted) for s in list(asked))


def test_a_control_controls_the_method_with_its_own_fields():
    assert controlled("air-other-image:keep=6,weight=0.2") == "air:keep=6,weight=0.2"
    assert controlled("air-shrunk") == "air"


@pytest.mark.parametrize(
    ("label", "matched_label"),
    [
        ("air-shrunk", "air-shrunk:weight=0.3"),
        ("air-other-image:weight=0.8", "air-other-image:weight=0.3"),
        ("air-other-image:weight=0.8,keep=6", "air-other-image:keep=6,weight=0.3"),
        ("air-averaged:keep=6+eos-bias:bias=-3", "air-averaged:keep=6,weight=0.3+eos-bias:bias=-3"),
    ],
)
def test_a_matched_control_is_spelled_as_what_it_is(label, matched_label):
    method = at(parse_method(label), 0.3)
    assert spelled(label, "weight", 0.3) == matched_label
    assert parse_method(matched_label) == method
    assert strength_of(first_of(method)) == "weight" and first_of(method).weight == 0.3


@dataclass(frozen=True)
class Strong:
    """A method whose effect grows with its weight."""

    kind: str = "air"
    weight: float = 0.2
    reading: str = "carry"
    fires: bool = True

    @property
    def bias(self) -> float:
        return (8.0 if self.kind == "air" else 2.0) * self.weight

    def to_json(self) -> dict[str, Any]:
        return {"name": self.kind, "weight": self.weight}


@pytest.fixture
def world(monkeypatch):
    monkeypatch.setattr(matched, "is_control", lambda label: label.startswith("air-"))
    real = airvlm.methods.parse_method
    monkeypatch.setattr(airvlm.methods, "parse_method", lambda text: Strong("air") if text == "air" else real(text))


def test_a_control_is_asked_at_its_own_and_at_the_matched_strength(tmp_path, world):
    methods = {"air": Strong("air", 0.2), "air-weak": Strong("air-weak", 0.2)}
    found = evaluate(FakeVLM(), ["fake-captions"], methods, tmp_path, progress=False, matched=True).tasks[
        "fake-captions"
    ]
    facts = found.matched["air-weak"]
    assert facts["controls"] == "air" and facts["changed"]["split"] == "calibration"
    assert facts["weight"] > 0.4 and facts["label"] == f"air-weak:weight={facts['weight']:g}"
    own, strong = found.changed("air-weak"), found.changed(facts["label"])
    assert own < strong and found.at_equal(facts["label"])
    assert list(found.methods) == ["vanilla", "air", "air-weak"]  # it is a column, not a row
    assert Results.load(tmp_path).tasks["fake-captions"].matched == found.matched
    again = FakeVLM()
    evaluate(again, ["fake-captions"], methods, tmp_path, progress=False, matched=True)
    assert again.sizes == []


def test_matched_controls_are_answered_beside_the_methods_of_the_same_images(tmp_path, world):
    vlm = FakeVLM()
    methods = {"air": Strong("air", 0.2), "air-weak": Strong("air-weak", 0.2)}
    run = evaluate(vlm, ["fake-captions"], methods, tmp_path, progress=False, matched=True, batch_size=2)
    matched_method = run.tasks["fake-captions"].matched["air-weak"]["method"]
    lines = [json.loads(line) for line in (tmp_path / "answers.jsonl").read_text().splitlines()]
    reported = [(line["item"], line["method"]) for line in lines if line["item"].startswith("test-")]
    first, last = reported[0][0], reported[-1][0]
    # so that what is kept of an image serves its matched controls too, however many images follow
    assert reported.index((first, matched_method)) < reported.index((last, None))


def test_a_task_without_a_calibration_split_is_refused_before_anything_is_asked(tmp_path, world, monkeypatch):
    from fakes import FakeCaptions

    items = FakeCaptions.items
    monkeypatch.setattr(FakeCaptions, "items", lambda self, limit=None, split="test": items(self, limit, "test"))
    vlm = FakeVLM()
    with pytest.raises(ValueError, match="needs a calibration split"):
        evaluate(vlm, ["fake-captions"], {"air": Strong("air")}, tmp_path, progress=False, matched=True)
    assert vlm.sizes == []
