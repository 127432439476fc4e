"""Every analysis answers on the embedded model and on another family, with numbers, a drawing and a page."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from airvlm import VLM, CropBlend, cli
from airvlm.analysis.questions import answer
from airvlm.analysis.result import auc, auc_interval, interval
from airvlm.analysis.samples import load_samples
from tests import tiny_models

NAMES = ["margins", "layers", "heat", "crops", "tokens", "agreement"]


@pytest.fixture(scope="module", autouse=True)
def few_blocks() -> Iterator[None]:
    """Occlude an image in 8 parts and not 64: a pass each, and that there are maps needs no fine ones."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(import_module("airvlm.analysis.heat"), "BLOCKS", 8)
        yield


@pytest.fixture(scope="module")
def vlm() -> VLM:
    return VLM.load("tiny")


@pytest.fixture(scope="module")
def analysed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All questions at once, by the command line."""
    out = tmp_path_factory.mktemp("analysed")
    assert cli.run(["analyse", "all", "--model", "tiny", "--images-used", "2", "--out", str(out)]) == 0
    return out


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_each_question_is_answered_with_numbers_and_a_drawing(name: str, analysed: Path) -> None:
    assert Image.open(analysed / f"{name}.png").size[0] > 300
    told = json.loads((analysed / f"{name}.json").read_text())
    assert told["n"] == 2
    assert told["finding"].endswith(".")


@pytest.mark.parametrize("name", ["margins", "layers", "heat", "crops", "tokens"])
@pytest.mark.parametrize("family", ["llava_next", "qwen2_5_vl"])
def test_other_families_are_analysed_too(name: str, family: str, tmp_path: Path) -> None:
    model, processor = tiny_models.build(family)
    for i in range(2):
        tiny_models.sample_image(i, (48, 40)).save(tmp_path / f"{i}.png")
    found = answer(name, VLM(model, processor, name="random"), CropBlend(), 2, tmp_path, progress=False)
    assert found.to_json()["n"] == 2


def test_auc_is_what_counting_pairs_says() -> None:
    rng = np.random.default_rng(0)
    low, high = rng.integers(0, 6, 20), rng.integers(2, 8, 30)
    pairs = [(a < b) + 0.5 * (a == b) for a in low for b in high]
    assert auc(low, high) == pytest.approx(np.mean(pairs))
    told = auc_interval([low], [high])
    assert told["low"] <= told["value"] <= told["high"]


def test_an_interval_is_over_images() -> None:
    told = interval([0.0, 0.0, 1.0, 1.0], groups=["a", "a", "b", "b"])
    assert (told["value"], told["n"]) == (0.5, 2)


def test_tokens_that_are_mostly_place_are_warned_of(vlm: VLM) -> None:
    real = vlm.parts.encode
    places = None

    def by_place(inputs):
        nonlocal places
        tokens = real(inputs)
        places = tokens[0] * 100 if places is None else places
        return [t + places for t in tokens]

    shifted = VLM(vlm.model, vlm.processor, name="tiny")
    object.__setattr__(shifted.parts, "encode", by_place)
    assert any("place" in warning for warning in answer("tokens", shifted, None, 6, progress=False).warnings)


def test_what_cannot_be_analysed_is_said_in_one_line(
    vlm: VLM, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ValueError, match="0 images"):
        load_samples(vlm, 4, tmp_path)
    assert cli.run(["analyse", "everything"]) == 2
    assert cli.run(["analyse", "tokens", "--model", "tiny", "--images", str(tmp_path / "none")]) == 2
    assert capsys.readouterr().err.count("\n") == 2


def test_with_labels_only_labelled_images_are_used(vlm: VLM, tmp_path: Path) -> None:
    for i in range(4):
        tiny_models.sample_image(i, (48, 40)).save(tmp_path / f"{i}.png")
    labels = tmp_path / "objects.json"
    labels.write_text('{"1.png": ["cup"], "3.png": ["dog"]}')
    assert [s.name for s in load_samples(vlm, 4, tmp_path, labels)] == ["1", "3"]
    labels.write_text('{"1.png": ["cup"]}')
    with pytest.raises(ValueError, match="1 images that"):
        load_samples(vlm, 4, tmp_path, labels)


@pytest.mark.slow
def test_all_analyses_make_one_page(analysed: Path) -> None:
    page = (analysed / "index.html").read_text()
    assert all(f'<h2 id="{name}">' in page for name in NAMES)
    assert page.count("data:image/png") == len(NAMES)
