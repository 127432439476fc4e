"""The photograph model's tower: its shapes, its padding, and how transformers finds it."""

import pytest
import torch
from torch.nn import functional as F
from transformers import AutoConfig, AutoModel

from airvlm.photo.tower import EfficientNetLiteConfig, EfficientNetLiteTower, SameConv, register

SMALL = ((1, 3, 1, 1, 4), (1, 3, 2, 2, 4), (1, 5, 2, 2, 6), (1, 3, 2, 2, 6), (1, 5, 1, 2, 8), (2, 5, 2, 2, 8))


def small_tower(patch: int = 32) -> EfficientNetLiteTower:
    torch.manual_seed(0)
    config = EfficientNetLiteConfig(
        image_size=64, patch_size=patch, stem_channels=4, stages=SMALL, adapter_size=8, hidden_size=10
    )
    return EfficientNetLiteTower(config).eval()


def test_a_token_stands_for_each_cell_of_32_pixels() -> None:
    tower = small_tower()
    found = tower(torch.randn(2, 3, 64, 96))
    assert found.last_hidden_state.shape == (2, 6, 10)
    assert found.hidden_states[-1] is found.last_hidden_state


@torch.no_grad()
def test_tokens_lie_row_by_row() -> None:
    tower = small_tower()
    pixels = torch.zeros(1, 3, 256, 256)
    changed = pixels.clone()
    changed[:, :, 224:, :32] = 1.0  # the cell in the last row, first column
    moved = (tower(pixels).last_hidden_state - tower(changed).last_hidden_state).abs().sum(-1)[0]
    assert int(moved.argmax()) == 7 * 8
    assert float(moved[7]) == 0.0  # the corner that is farthest away sees nothing of it


@torch.no_grad()
def test_the_two_halves_make_the_whole() -> None:
    tower = small_tower()
    pixels = torch.randn(1, 3, 64, 64)
    torch.testing.assert_close(tower.tokens(tower.stride16(pixels)), tower(pixels).last_hidden_state)


@torch.no_grad()
def test_a_token_may_stand_for_16_pixels_and_then_keeps_its_own_fine_cell() -> None:
    tower = small_tower(16)
    tokens = tower(torch.randn(1, 3, 64, 64)).last_hidden_state
    assert tokens.shape == (1, 16, 10)
    sharing = tokens[0, [0, 1, 4, 5]]  # one coarse cell, four fine ones
    assert len({tuple(token.tolist()) for token in sharing}) == 4
    with pytest.raises(ValueError, match="16 or 32 pixels"):
        EfficientNetLiteConfig(patch_size=8)


@torch.no_grad()
def test_an_image_has_the_same_tokens_alone_and_among_others() -> None:
    tower = small_tower()
    pixels = torch.randn(5, 3, 64, 64)
    alone = torch.cat([tower(one[None]).last_hidden_state for one in pixels])
    torch.testing.assert_close(tower(pixels).last_hidden_state, alone)


@pytest.mark.parametrize("side", [7, 8, 15, 16])
@pytest.mark.parametrize("kernel", [3, 5])
def test_a_strided_convolution_pads_the_odd_pixel_right_and_below(side: int, kernel: int) -> None:
    conv = SameConv(1, 1, kernel, 2)
    x = torch.randn(1, 1, side, side)
    out = -(-side // 2)
    total = (out - 1) * 2 + kernel - side
    padded = F.pad(x, (total // 2, total - total // 2) * 2)
    assert torch.equal(conv(x), F.conv2d(padded, conv.weight, conv.bias, stride=2))
    assert conv(x).shape[-1] == out


def test_transformers_builds_the_tower_by_its_name_once_it_is_registered() -> None:
    register()
    register()
    config = AutoConfig.for_model("airvlm_efficientnet_lite", image_size=64, stages=SMALL, stem_channels=4)
    assert isinstance(AutoModel.from_config(config), EfficientNetLiteTower)
