"""What the page shows: differences, wrong objects, reports in words, and the same as a command line."""

from __future__ import annotations

import re
import shlex

import pytest

from airvlm import VLM, CropBlend, parse_method, tiny
from airvlm.report import Crop, NormRatio, Report
from airvlm.serve.page import STRENGTHS, MethodCard, cards, command_line, report_words, specs, wrong_objects


def test_only_words_that_differ_are_marked() -> None:
    shown = cards(
        [
            MethodCard("vanilla", "A dog and a cat.", seconds=1.0),
            MethodCard("air", "A dog and a cow.", seconds=1.0),
        ]
    )
    assert re.findall(r"<mark[^>]*>(.*?)</mark>", shown) == ["cow."]


def test_what_a_model_says_is_escaped() -> None:
    shown = cards(
        [MethodCard("vanilla", "<script>alert(1)</script>"), MethodCard("a<b", error="<img src=x onerror=1>")]
    )
    assert "<script" not in shown
    assert "<img" not in shown
    assert "&lt;script&gt;" in shown


def test_objects_that_a_scene_lacks_are_red() -> None:
    scene = tiny.scenes("test")[0]
    there = scene.names[0]
    absent = next(q.object for q in tiny.questions("test", "random") if q.object not in scene.names)
    text = f"There is a {there} and a {absent}."
    assert [mark.category for mark in wrong_objects(text, set(scene.names))] == [absent]
    assert wrong_objects(text, None) == []
    shown = cards([MethodCard("vanilla", text, seconds=0.1)], set(scene.names))
    assert re.findall(r'<mark class="air-absent"[^>]*>(.*?)</mark>', shown) == [absent]


@pytest.mark.parametrize("name", STRENGTHS)
def test_a_strength_is_spelled_where_it_was_changed(name: str) -> None:
    strength = STRENGTHS[name]
    default = strength.default(name)
    assert strength.low <= default <= strength.high
    assert specs([name], {name: default}) == ["vanilla", name]
    changed = specs([name], {name: 0.77})[1]
    assert getattr(parse_method(changed), strength.field) == 0.77


def test_the_command_line_says_the_same() -> None:
    line = command_line("a b.png", "Is it 'red'?", ["vanilla", "air:weight=0.3"], "tiny")
    assert shlex.split(line) == [
        *["airvlm", "compare", "a b.png", "Is it 'red'?", "--model", "tiny"],
        *["--method", "vanilla", "--method", "air:weight=0.3"],
    ]


def test_a_report_is_told_in_words() -> None:
    idle = Report(CropBlend().to_json(), fired=False, reason="no crop is near enough")
    assert report_words(idle) == "air did not act: no crop is near enough."
    crop = Crop((0, 0, 1, 1), 0.1, True)
    acted = Report(
        CropBlend().to_json(),
        fired=True,
        layers=(-1,),
        tokens=64,
        crops=((crop,) * 12,),
        norm_ratio=NormRatio(0.2, 0.5),
    )
    said = report_words(acted)
    assert "64 token positions" in said
    assert "12 of 12 crops" in said
    assert "20%" in said


def test_a_real_report_can_be_told() -> None:
    answer = VLM.load("tiny").ask(tiny.scenes("test")[0].path, "Is there a dog?", method=CropBlend(), max_new_tokens=2)
    assert answer.report is not None
    assert "crops" in report_words(answer.report)
