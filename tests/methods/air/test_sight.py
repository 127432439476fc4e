"""Which picture is where: by runs of image tokens, by equal shares, or together."""

from typing import Any

import pytest
import torch
from PIL import Image

from airvlm.methods.air.sight import _assigned, _joined, _shares
from airvlm.methods.air.views import Views


def pictures(*sizes: tuple[int, int]) -> list[Any]:
    return [Image.new("RGB", size) for size in sizes]


def test_each_run_of_image_tokens_is_a_picture() -> None:
    parts = _shares(torch.tensor([1, 2, 3, 6, 7]), pictures((8, 8), (4, 4)))
    assert parts is not None
    assert [part.tolist() for part in parts] == [[1, 2, 3], [6, 7]]


def test_pictures_side_by_side_of_one_size_share_their_tokens_equally() -> None:
    parts = _shares(torch.arange(6), pictures((8, 8), (8, 8)))
    assert parts is not None
    assert [part.tolist() for part in parts] == [[0, 1, 2], [3, 4, 5]]


def test_tiles_of_unlike_pictures_are_matched_together() -> None:
    assert _shares(torch.tensor([0, 1, 4, 5, 8, 9]), pictures((8, 8), (8, 4))) is None


def test_joined_views_hold_all_crops_and_mask_the_shorter_ones() -> None:
    one = Views(((0, 0, 1, 1),), (8, 8), torch.ones(1, 3, 2), None)  # type: ignore[arg-type]
    two = Views(((0, 0, 2, 2),) * 2, (8, 4), torch.ones(2, 2, 2), torch.tensor([[True, True], [True, False]]))  # type: ignore[arg-type]
    both = _joined([one, two])
    assert both.tokens.shape == (3, 3, 2) and len(both.boxes) == 3
    assert both.mask is not None
    assert both.mask.sum(1).tolist() == [3, 2, 1]


@pytest.mark.parametrize(
    ("given", "counts", "expected"),
    [
        ([1, 0, 2], [5, 0, 9], [1, 0, 2]),  # one entry a row
        ([1, 2], [5, 0, 9], [1, 0, 2]),  # one a row with image tokens
        ([1, 1], [9], [2]),  # all of the only row
    ],
)
def test_entries_go_to_rows(given: list[int], counts: list[int], expected: list[int]) -> None:
    items = [pictures(*[(8, 8)] * n) for n in given]
    assert [len(row) for row in _assigned(items, counts)] == expected
