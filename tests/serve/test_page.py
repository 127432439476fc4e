"""What the page shows: differences, wrong objects, reports in words, crops, and the command for a terminal."""

from __future__ import annotations

import re
import shlex

import pytest
from PIL import Image

from airvlm import AIR, VAF, VLM, CropBlend, get_method, tiny
from airvlm.report import Crop, NormRatio, Report
from airvlm.serve.page import (
    CHOICES,
    STRENGTHS,
    Card,
    answers_html,
    choose_methods,
    command_line,
    crops_html,
    describe_report,
    examples,
    find_wrong_objects,
    message_html,
)

CROP = Crop((0, 0, 60, 60), 0.1, True)


def test_only_words_that_differ_are_marked() -> None:
    cards = [Card("vanilla", "A dog and a cat.", seconds=1.0), Card("crop-blend", "A dog and a cow.", seconds=1.0)]
    assert re.findall(r'<mark class="air-changed">(.*?)</mark>', answers_html(cards))[0] == "cow."


def test_what_a_model_or_visitor_wrote_is_escaped() -> None:
    attack = "<img src=x onerror=alert(1)>"
    report = Report({"name": attack}, fired=False, reason=attack)
    cards = [Card("vanilla", attack), Card(attack, error=attack), Card("x", attack, report, 1.0)]
    acted = Report({"name": attack}, fired=True, crops=((CROP,),))
    drawn = crops_html(Image.new("RGB", (90, 90)), acted)
    for shown in (answers_html(cards, {attack}), message_html(attack), drawn):
        assert attack not in shown
        assert "&lt;img src=x" in shown


def test_objects_that_an_image_lacks_are_underlined() -> None:
    scene = tiny.scenes("test")[0]
    present = scene.names[0]
    absent = next(q.object for q in tiny.questions("test", "random") if q.object not in scene.names)
    text = f"There is a {present} and a {absent}."
    assert [mark.category for mark in find_wrong_objects(text, set(scene.names))] == [absent]
    assert find_wrong_objects(text, None) == []
    shown = answers_html([Card("vanilla", text, seconds=0.1)], set(scene.names))
    assert re.findall(r'<mark class="air-absent" title[^>]*>(.*?)</mark>', shown) == [absent]


@pytest.mark.parametrize("label", CHOICES)
def test_a_label_is_a_method_and_its_spelling(label: str) -> None:
    assert choose_methods([label], {}) == [CHOICES[label]]
    assert get_method(label) == CHOICES[label]


@pytest.mark.parametrize("label", STRENGTHS)
def test_a_slider_changes_a_method(label: str) -> None:
    strength = STRENGTHS[label]
    default = getattr(CHOICES[label], strength.option)
    assert strength.low <= default <= strength.high
    assert choose_methods([label], {label: default}) == [CHOICES[label]]
    [changed] = choose_methods([label], {label: 0.77})
    assert getattr(changed, strength.option) == 0.77
    assert get_method(changed.label) == changed
    for bad in (strength.high + 1, -1.0, float("nan"), True, "0.5", [1]):
        with pytest.raises(ValueError, match="the strength of"):
            choose_methods([label], {label: bad})  # type: ignore[dict-item]  # as a forged request would


def test_the_command_is_the_same_comparison() -> None:
    line = command_line("a b.png", "Is it 'red'?", ["vanilla", "crop-blend:weight=0.3"], ["--model", "tiny"])
    assert shlex.split(line) == [
        *["airvlm", "ask", "a b.png", "Is it 'red'?", "--model", "tiny"],
        *["--method", "vanilla", "--method", "crop-blend:weight=0.3"],
    ]
    assert shlex.split(command_line("--help", "x", [], []))[2] == "./--help"  # a file, not an option


def test_the_examples_of_an_adapted_model_are_those_of_its_base(vlm: VLM, monkeypatch: pytest.MonkeyPatch) -> None:
    known = examples(vlm)
    monkeypatch.setattr(vlm, "name", "tiny+my-lora")
    assert examples(vlm) == known


@pytest.mark.parametrize("model", ["tiny", "photo"])
def test_examples_exist_and_are_described(model: str) -> None:
    vlm = VLM.load(model)
    shown = examples(vlm)
    assert len(shown) >= 3
    for example in shown:
        assert example.path.is_file()
        assert example.truth and all(name in example.alt for name in example.truth)
    first = shown[0]
    texts = [vlm.describe(first.path, method=method, max_new_tokens=96).text for method in (None, CropBlend())]
    wrong = [len(find_wrong_objects(text, first.truth)) for text in texts]
    assert wrong[0] > wrong[1]  # it was picked for this


def test_a_report_is_described_in_words() -> None:
    idle = Report(AIR().to_json(), fired=False, reason="no crop is near enough")
    assert describe_report(idle) == "air did not act: no crop is near enough."
    acted = Report(
        CropBlend().to_json(),
        fired=True,
        layers=(-1,),
        tokens=64,
        crops=((CROP,) * 4,),
        norm_ratio=NormRatio(0.2, 0.5),
    )
    assert describe_report(acted) == (
        "crop-blend changed 64 token positions using 4 of 4 crops at the decoder's input. "
        "The change is 20% of the value's norm on average, 50% at most."
    )
    for layers, place in (((3,), "in layer 3"), ((2, 3, 5), "in layers 2 to 5")):
        changed = Report(VAF().to_json(), fired=True, layers=layers, tokens=9)
        assert describe_report(changed) == f"vaf changed 9 token positions {place}."


def test_crops_have_numbers_distances_and_alternative_texts() -> None:
    image = Image.new("RGB", (90, 90), "red")
    some = Report(AIR().to_json(), fired=True, crops=((CROP, Crop((30, 30, 90, 90), 0.25, False)),))
    shown = crops_html(image, some)
    assert "1 of 2 crops were used" in shown
    assert "1: 0.100<" in shown
    assert "2: 0.250, not used<" in shown
    assert shown.count("<img alt=") == shown.count("<img ") == 3
    assert "left:33.33%;top:33.33%;width:66.67%;height:66.67%" in shown
    every = Report(AIR().to_json(), fired=True, crops=((CROP,),))
    assert "All 1 crops were used" in crops_html(image, every)
    assert "air-unused" not in crops_html(image, every)
    assert crops_html(image, Report({}, fired=True)) == ""


def test_an_answer_is_waited_for_until_it_has_words_or_has_ended() -> None:
    cards = [Card("a"), Card("b", "A dog"), Card("c", "", seconds=1.0)]
    assert ["air-waiting" in answers_html([card]) for card in cards] == [True, False, False]
