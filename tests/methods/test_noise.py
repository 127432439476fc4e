"""The noise of VCD: the published schedule, and each image's own noise."""

import pytest
import torch

from airvlm.methods.noise import add_noise, noise_schedule


@pytest.mark.parametrize(
    ("step", "weights"), [(250, (0.99, 0.15)), (500, (0.86, 0.51)), (700, (0.59, 0.81)), (999, (0.29, 0.96))]
)
def test_the_schedule_is_the_published_one(step: int, weights: tuple[float, float]) -> None:
    assert noise_schedule(step) == pytest.approx(weights, abs=0.005)


def test_the_noise_of_an_image_depends_on_nothing_but_the_image_and_the_seed() -> None:
    pixels = torch.randn(3, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(1)
    one = add_noise({"pixel_values": pixels}, 500, 0)["pixel_values"]
    torch.manual_seed(2)
    assert torch.equal(one[[2, 0, 1]], add_noise({"pixel_values": pixels[[2, 0, 1]]}, 500, 0)["pixel_values"])
    assert not torch.equal(one, add_noise({"pixel_values": pixels}, 500, 1)["pixel_values"])
    noise = (one - noise_schedule(500)[0] * pixels) / noise_schedule(500)[1]
    assert noise.std().item() == pytest.approx(1, abs=0.1)


def test_padding_gets_no_noise() -> None:
    generator = torch.Generator().manual_seed(0)
    tiles = torch.randn(1, 2, 3, 4, 4, generator=generator)
    padded = torch.cat([tiles, torch.zeros(1, 1, 3, 4, 4)], 1)
    found = add_noise({"pixel_values": padded}, 500, 0)["pixel_values"]
    assert torch.equal(found[:, :2], add_noise({"pixel_values": tiles}, 500, 0)["pixel_values"])
    assert found[:, 2].eq(0).all()
    small = torch.randn(1, 3, 4, 6, generator=generator)
    wide = torch.zeros(1, 3, 8, 8)
    wide[..., :4, :6] = small
    found = add_noise({"pixel_values": wide, "image_sizes": torch.tensor([[4, 6]])}, 500, 0)["pixel_values"]
    assert torch.equal(found[..., :4, :6], add_noise({"pixel_values": small}, 500, 0)["pixel_values"])
    assert found[..., 4:, :].eq(0).all()
    patches = torch.randn(12, 5, generator=generator)
    grids = torch.tensor([[1, 2, 2], [1, 2, 4]])
    both = add_noise({"pixel_values": patches, "image_grid_thw": grids}, 500, 0)["pixel_values"]
    last = add_noise({"pixel_values": patches[4:], "image_grid_thw": grids[1:]}, 500, 0)["pixel_values"]
    assert torch.equal(both[4:], last)
