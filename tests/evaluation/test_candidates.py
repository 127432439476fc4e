"""Candidates: a fixed sequence of settings that fills the declared ranges."""

from __future__ import annotations

import dataclasses

import pytest

from airvlm import AIR, AIRMemory, CropBlend, MemVR, parse_method
from airvlm.evaluation.candidates import candidates, searched


def test_a_larger_search_begins_with_the_smaller_ones_settings() -> None:
    few, many = (candidates(["air", "vcd"], n, 32) for n in (7, 40))
    assert [c.label for c in few] == [c.label for c in many][:7]
    assert len({c.method for c in many}) == len(many) == 40


def test_each_method_begins_with_its_default_and_air_stands_for_its_readings() -> None:
    found = candidates(["air", "memvr"], 4, 32)
    assert [c.method for c in found] == [CropBlend(), AIR(), AIRMemory(), MemVR()]


@pytest.mark.parametrize("count", [1, 5, 30])
def test_every_methods_default_is_among_them_however_few_are_wanted(count: int) -> None:
    found = [c.method for c in candidates(["vaf", "air", "memvr"], count, 32) if c.is_default]
    assert set(found) == {parse_method(name) for name in ("vaf", "air", "air-paper", "air-lineage", "memvr")}


def test_the_strength_always_differs_and_other_fields_keep_their_default_in_half() -> None:
    drawn = [dict(c.fields) for c in candidates(["air-transported"], 41, 32)[1:]]
    weights = [fields["weight"] for fields in drawn]
    assert min(weights[:8]) < 0.2 and max(weights[:8]) > 0.6  # from the first ones on
    for field in ("eps", "top_q", "keep", "carry"):
        assert 14 <= sum(field in fields for fields in drawn) <= 26
    assert {fields["carry"] for fields in drawn if "carry" in fields} == {"softmax", "geometry"}


def test_a_setting_beside_a_companion_is_a_method() -> None:
    for candidate in candidates(["air-transported"], 4, 6):
        beside = candidate.beside("eos-bias:bias=-1.5")
        assert parse_method(beside.label) == beside.method != candidate.method
        assert beside.is_default == candidate.is_default


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
    readings = {f.name: f.metadata.get("readings", ()) for f in dataclasses.fields(CropBlend())}
    assert all(not readings[name] or "transported" in readings[name] for name in searched(CropBlend()))


def test_vanilla_cannot_be_searched() -> None:
    with pytest.raises(ValueError, match="no setting to search"):
        candidates(["vanilla"], 3, 32)
