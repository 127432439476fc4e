"""Every analysis runs on the model tiny and on other families, and gives numbers, a drawing and a page."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from airvlm import AIR, VLM, CropBlend, cli
from airvlm.analysis import ANALYSES, attribution, run_analysis
from airvlm.analysis.base import auc, auc_interval, load_images, mean_interval
from airvlm.testing import small_models


@pytest.fixture(scope="module", autouse=True)
def few_occlusions() -> Iterator[None]:
    """Occlude an image in 8 parts and not 64: each takes a pass."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attribution, "OCCLUSIONS", 8)
        yield


@pytest.fixture(scope="module")
def vlm() -> VLM:
    return VLM.load("tiny")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `analyze all` writes."""
    folder = tmp_path_factory.mktemp("analysis")
    assert cli.run(["analyze", "all", "--model", "tiny", "--limit", "2", "--output", str(folder)]) == 0
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", list(ANALYSES))
def test_each_analysis_gives_numbers_and_a_drawing(name: str, folder: Path) -> None:
    assert Image.open(folder / f"{name}.png").size[0] > 300
    told = json.loads((folder / f"{name}.json").read_text())
    assert told["n"] == 2
    assert told["finding"].endswith(".")


@pytest.mark.slow
def test_all_analyses_make_one_page(folder: Path) -> None:
    page = (folder / "index.html").read_text()
    assert all(f'<h2 id="{name}">' in page for name in ANALYSES)
    assert page.count("data:image/png") == len(ANALYSES)


def save_images(folder: Path, count: int = 2) -> None:
    for number in range(count):
        small_models.sample_image(number, (48, 40)).save(folder / f"{number}.png")


@pytest.mark.parametrize("name", [name for name in ANALYSES if name != "agreement"])
@pytest.mark.parametrize("family", ["llava_next", "qwen2_5_vl"])
def test_other_families_are_analyzed_too(name: str, family: str, tmp_path: Path) -> None:
    model, processor = small_models.build(family)
    save_images(tmp_path)
    found = run_analysis(name, VLM(model, processor, name="random"), CropBlend(), 2, tmp_path, progress=False)
    assert found.to_json()["n"] == 2


@pytest.mark.parametrize(("method", "prototypes"), [(CropBlend(), 64), (AIR(num_prototypes=24), 24), (None, 64)])
def test_prototypes_are_those_of_the_method(vlm: VLM, method: CropBlend | AIR | None, prototypes: int) -> None:
    numbers = run_analysis("tokens", vlm, method, 2, progress=False).to_json()
    assert numbers["prototypes"] == prototypes


@pytest.mark.parametrize("num_crops", [2, 4])
def test_crops_are_those_of_the_method(vlm: VLM, num_crops: int) -> None:
    method = CropBlend(num_crops=num_crops, keep=1)
    numbers = run_analysis("crops", vlm, method, 2, progress=False).to_json()
    assert [len(one["crops"]) for one in numbers["images"]] == [num_crops] * 2
    assert numbers["used_per_image"]["value"] == 1
    assert run_analysis("margins", vlm, method, 2, progress=False).to_json()["crops"] == num_crops


def test_tokens_that_mostly_encode_position_get_a_warning(vlm: VLM) -> None:
    real, places = vlm.parts.encode, None

    def by_position(inputs):
        nonlocal places
        tokens = real(inputs)
        places = tokens[0] * 100 if places is None else places
        return [t + places for t in tokens]

    shifted = VLM(vlm.model, vlm.processor, name="tiny")
    object.__setattr__(shifted.parts, "encode", by_position)
    assert any("position" in text for text in run_analysis("tokens", shifted, AIR(num_prototypes=9), 6).warnings)
    assert not any("position" in text for text in run_analysis("tokens", shifted, CropBlend(), 6).warnings)


# -- images


def test_a_folder_without_images_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="0 images"):
        load_images(4, tmp_path)
    with pytest.raises(ValueError, match="no such folder"):
        load_images(4, tmp_path / "none")


def test_with_labels_only_labeled_images_are_used(tmp_path: Path) -> None:
    save_images(tmp_path, 4)
    labels = tmp_path / "objects.json"
    labels.write_text('{"1.png": ["cup"], "3.png": ["dog"]}')
    assert [(one.name, one.objects) for one in load_images(4, tmp_path, labels)] == [("1", ("cup",)), ("3", ("dog",))]
    labels.write_text('{"1.png": ["cup"]}')
    with pytest.raises(ValueError, match="1 images that"):
        load_images(4, tmp_path, labels)


# -- statistics


def test_auc_is_what_counting_pairs_says() -> None:
    rng = np.random.default_rng(0)
    low, high = rng.integers(0, 6, 20), rng.integers(2, 8, 30)
    pairs = [(a < b) + 0.5 * (a == b) for a in low for b in high]
    assert auc(low, high) == pytest.approx(np.mean(pairs))
    told = auc_interval([low[:10], low[10:]], [high[:15], high[15:]])
    assert told["value"] == pytest.approx(auc(low, high))
    assert told["low"] <= told["high"]


def test_the_mean_leaves_out_what_is_not_finite() -> None:
    told = mean_interval([0.0, 1.0, float("nan")])
    assert (told["value"], told["n"]) == (0.5, 2)
    assert 0 <= told["low"] < told["high"] <= 1
    assert mean_interval([])["n"] == 0
