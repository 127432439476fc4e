"""The photograph model that the package ships: it loads, it fits, and it answers on any image."""

from pathlib import Path

import pytest
from PIL import Image, ImageDraw

from airvlm import VLM, CropBlend, photo

LIMIT = 25_000_000  # bytes of weights


@pytest.fixture(scope="module")
def vlm() -> VLM:
    return VLM.load()


def drawn(size: tuple[int, int]) -> Image.Image:
    image = Image.new("RGB", size, (90, 140, 200))
    w, h = size
    ImageDraw.Draw(image).ellipse((w // 4, h // 4, 3 * w // 4, 3 * h // 4), fill=(220, 120, 30))
    return image


ODD = {
    "1 x 1": Image.new("RGB", (1, 1), (3, 200, 9)),
    "grey": Image.new("L", (300, 200), 128),
    "4:3": drawn((640, 480)),
    "2:3": drawn((400, 600)),
    "huge": drawn((4000, 3000)),
    "a strip": drawn((2000, 3)),
    "transparent": drawn((120, 90)).convert("RGBA"),
    "palette": drawn((120, 90)).convert("P"),
    "black": Image.new("RGB", (64, 64)),
}


def test_the_default_is_the_photograph_model(vlm: VLM) -> None:
    assert vlm.name == "photo"
    assert vlm.fingerprint == VLM.load("photo").fingerprint == VLM.load(photo.model_path()).fingerprint


def test_the_tiny_model_has_its_name_too() -> None:
    assert VLM.load("tiny").name == "tiny"


def test_it_is_small_and_has_enough_visual_tokens(vlm: VLM) -> None:
    assert (photo.model_path() / "model.safetensors").stat().st_size <= LIMIT
    assert vlm.model.config.image_seq_length >= 49


@pytest.mark.parametrize("name", ODD)
def test_any_image_gets_an_answer(vlm: VLM, name: str) -> None:
    image = ODD[name]
    assert vlm.ask(image, "Is there a dog in the image?").text in ("Yes", "No")
    said = vlm.describe(image, max_new_tokens=24)
    assert said.text.strip()


@pytest.mark.parametrize("name", ["1 x 1", "4:3", "transparent"])
def test_air_runs_on_any_image(vlm: VLM, name: str) -> None:
    answer = vlm.describe(ODD[name], method=CropBlend(), max_new_tokens=12)
    assert answer.text.strip()
    assert answer.report is not None


def test_a_question_in_other_words_gets_an_answer(vlm: VLM) -> None:
    assert vlm.ask(drawn((80, 80)), "¿Qué ves? 你好 ???", max_new_tokens=8).tokens > 0


def test_every_image_is_squashed_whole_to_the_square_it_sees(vlm: VLM) -> None:
    side = vlm.model.config.vision_config.image_size
    wide = drawn((400, 200))
    pixels = vlm.processor.image_processor(wide, return_tensors="pt")["pixel_values"]
    squashed = wide.resize((side, side), Image.Resampling.BICUBIC)
    again = vlm.processor.image_processor(squashed, return_tensors="pt")["pixel_values"]
    assert pixels.shape[-2:] == (side, side)
    assert float((pixels - again).abs().max()) < 0.02


def test_the_card_says_what_it_was_trained_on_and_what_it_scores() -> None:
    card = photo.model_card()
    assert "COCO" in str(card["training"])
    assert {"CHAIR_S", "CHAIR_I", "recall"} <= set(dict(card["scores"]))  # type: ignore[call-overload]
    notice = (Path(photo.model_path()) / "NOTICE").read_text()
    assert "ImageNet" in notice
    assert "COCO" in notice
