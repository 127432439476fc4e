"""Cached maps and tokens are those of the tower on the photographs themselves, and an interrupted run is resumed."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from airvlm.photo.tower import EfficientNetLiteTower
from experiments.train.photo import features
from experiments.train.photo.labels import Labels
from experiments.train.photo.model import tower_config
from experiments.train.photo.recipe import RECIPES

RECIPE = replace(RECIPES["second"], image_side=64, share=(0.0, 1.0), zoomed=2, stretched=2, vision_width=16)
STEMS = ["a", "b", "c", "d", "e"]


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    draw = np.random.default_rng(0)
    for stem in STEMS:
        pixels = draw.integers(0, 256, (4, 4, 3), dtype=np.uint8)
        Image.fromarray(pixels).resize((96, 80)).save(tmp_path / f"{stem}.jpg")
    table = {"objects": {stem: ["dog"] for stem in STEMS}, "splits": {"test": ["a"], "train": STEMS[1:]}}
    (tmp_path / "objects.json").write_text(json.dumps(table))
    return tmp_path


@pytest.mark.slow
def test_cached_tokens_are_those_of_the_photograph(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    tower = EfficientNetLiteTower(tower_config(RECIPE)).eval()
    labels = Labels.read(photos / "objects.json")
    rows: dict[str, list[int]] = {}
    for view, read in features.READERS.items():
        features.extract(RECIPE, tower, labels, photos, photos, view)
        maps = features.open_maps(RECIPE, labels, photos, view)
        model: Any = SimpleNamespace(model=SimpleNamespace(vision_tower=tower))
        tokens = features.cache_tokens(RECIPE, model, labels, maps, photos)
        rows[view] = [row for row in range(len(STEMS)) if tokens[row].any()]
        for row in rows[view]:
            pixels = read(photos / f"{labels.stems[row]}.jpg", RECIPE.image_side, RECIPE)
            images = torch.from_numpy(np.array(pixels))[None].permute(0, 3, 1, 2).float() / 127.5 - 1
            with torch.no_grad():
                wanted = tower.tokens(tower.stride16(images))[0]
            cosine = torch.cosine_similarity(
                torch.from_numpy(tokens[row].copy()).float().flatten(), wanted.flatten(), dim=0
            )
            assert cosine > 0.99  # maps have 8 bits
    # Held-out photographs have no second or third view; these are the first and the last ones of training
    assert rows == {"whole": [0, 1, 2, 3, 4], "zoom": [1, 2], "stretched": [3, 4]}
    capsys.readouterr()
    features.extract(RECIPE, tower, labels, photos, photos, "whole")
    assert not capsys.readouterr().out  # nothing is computed twice
