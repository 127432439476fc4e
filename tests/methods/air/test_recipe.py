"""The recipe: it refuses what cannot be meant, and its rule keeps crops by their distances."""

from typing import Any

import pytest
import torch

from airvlm.methods.air.recipe import Recipe

DISTANCES = torch.tensor([[0.3, 0.1, 0.2, 0.1], [0.1, 0.2, 0.3, 0.4]])


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({}, ["1111", "1111"]),
        ({"tau": 0.15}, ["0101", "1000"]),
        ({"keep": 1}, ["0100", "1000"]),  # of equals the first
        ({"keep": 3, "order": "farthest"}, ["1110", "0111"]),
        ({"quantile": 0.5}, ["0101", "1100"]),
        ({"keep": 9}, ["1111", "1111"]),
    ],
)
def test_each_picture_keeps_crops_by_its_own_distances(fields: dict[str, Any], kept: list[str]) -> None:
    assert ["".join(map(str, row)) for row in Recipe(**fields).kept(DISTANCES).int().tolist()] == kept


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tau": 0.1, "keep": 2}, "at most one of tau, keep and quantile"),
        ({"eps": 0.0}, "eps"),
        ({"top_q": 1.5}, "top_q"),
        ({"keep": -1}, "keep"),
        ({"quantile": 2.0}, "quantile"),
        ({"distance": "manhattan"}, "choose one of ot, cosine"),
        ({"order": "best"}, "order"),
        ({"memory": "all"}, "memory"),
        ({"carry": "bag"}, "carry"),
        ({"temperature": 0.0}, "temperature"),
        ({"noise": -1.0}, "noise"),
    ],
)
def test_a_recipe_that_cannot_be_meant_says_what_to_give(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Recipe(**fields)
