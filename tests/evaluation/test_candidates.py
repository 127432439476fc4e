"""Candidates: a fixed sequence of settings that fills the declared ranges."""

from __future__ import annotations

import dataclasses

import pytest

from airvlm import AIR, MemVR, parse_method
from airvlm.evaluation.candidates import candidates, searched


def test_a_larger_search_begins_with_the_smaller_ones_settings() -> None:
    few, many = (candidates(["air", "vcd"], n, 32) for n in (7, 40))
    assert [c.label for c in few] == [c.label for c in many][:7]
    assert len({c.method for c in many}) == len(many) == 40


def test_each_method_begins_with_its_default_and_air_stands_for_its_readings() -> None:
    found = candidates(["air", "memvr"], 4, 32)
    assert [c.method for c in found] == [AIR(), AIR.paper(), AIR.lineage(), MemVR()]


def test_a_label_spells_its_method() -> None:
    for candidate in candidates(["air", "memvr", "vaf", "vcd"], 60, 6):
        assert parse_method(candidate.label) == candidate.method


@pytest.mark.parametrize("name", ["air", "air-paper", "air-lineage", "memvr", "vaf", "vcd"])
def test_values_lie_in_the_ranges_that_the_fields_declare(name: str) -> None:
    default = parse_method(name)
    assert default is not None
    ranges = searched(default)
    assert ranges, "the method declares nothing worth searching"
    for candidate in candidates([name if name != "air" else "air-transported"], 30, 32):
        for field, value in candidate.fields:
            low, high = ranges[field][0], ranges[field][-1]
            if not isinstance(value, tuple | str):
                assert low <= value <= high
                assert type(value) is not bool


def test_only_fields_that_act_in_the_reading_are_searched() -> None:
    readings = {f.name: f.metadata.get("readings", ()) for f in dataclasses.fields(AIR())}
    assert all(not readings[name] or "transported" in readings[name] for name in searched(AIR()))


def test_vanilla_cannot_be_searched() -> None:
    with pytest.raises(ValueError, match="no setting to search"):
        candidates(["vanilla"], 3, 32)
