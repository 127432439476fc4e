"""Visual tokens to measure transport on: those of a trained model, tokens drawn to be like them, and random ones.

Random tokens are nearly orthogonal to each other, and Sinkhorn solves them in two updates. Trained ones are not: most
of an image is background, whose tokens nearly coincide (cosine 0.95), and the rest shows a few objects, each near its
own direction, in a space of few directions. A Gaussian with the spectrum of the trained tokens is not enough: it takes
12 updates where they take 35, because it has no background. `draw_like_trained` therefore draws

    background one direction e0, of about GROUND of the tokens
    object j   AGAINST e0 + COMMON e1 + the rest of its length in its own direction; OBJECTS of them per image
    token      background, or fill * object + (1 - fill) * background with fill = U^0.3, for partly filled patches
    noise      Gaussian, of length BLANK on background and DETAIL on objects

where directions of objects and noise are Gaussian with variances DECAY^i in RANK directions, drawn anew for each image.
A crop of the image has the same directions, but its own fraction of background and of each object. The constants were
fitted to the cosines, the spectrum and the updates of the embedded model's tokens; `python -m experiments.speed.tokens`
prints all three side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from airvlm import VLM, tiny
from airvlm.methods.evidence.crops import crop_boxes
from airvlm.methods.evidence.transport import cosine_cost, sinkhorn

CROPS = 12
# Fraction of the tokens that are background, and how much an image's or a crop's may differ from it
GROUND, SPREAD = 0.68, 0.25
OBJECTS = 6
AGAINST, COMMON = -0.15, 0.6  # what all objects share: away from the background, and one common direction
BLANK, DETAIL = 0.18, 0.3
DECAY, RANK = 0.75, 40
QUANTILES = (0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99)

Tokens = tuple[Tensor, Tensor]  # of P images: (P, K, d), and of their crops: (P, M, N, d)


@cache
def load_embedded(name: str) -> VLM:
    """The model "tiny" or "photo"."""
    return VLM.load(name)


@torch.no_grad()
def encode_trained(name: str, images: Sequence[Image.Image]) -> Tokens:
    """The visual tokens of an embedded model's encoder, as its decoder reads them."""
    vlm = load_embedded(name)

    def encode(views: list[Image.Image]) -> Tensor:
        found = vlm.parts.encode(vlm.parts.pixels(vlm.processor, views))
        return torch.stack([tokens.float() for tokens in found])

    crops = [encode([image.crop(box) for box in crop_boxes(image.size, CROPS)]) for image in images]
    return torch.cat([encode([image]) for image in images]), torch.stack(crops)


def load_scenes(count: int) -> list[Image.Image]:
    """The first test scenes of the embedded model."""
    return [Image.open(scene.path).convert("RGB") for scene in tiny.scenes("test")[:count]]


def draw_like_trained(images: int, K: int, N: int, d: int, *, M: int = CROPS, seed: int = 0) -> Tokens:
    """Tokens with the cosines and the spectrum of trained ones, as the module's docstring describes."""
    draw = torch.Generator().manual_seed(seed)
    drawn = [_draw_image(K, N, d, M, draw) for _ in range(images)]
    return torch.stack([Z for Z, _ in drawn]), torch.stack([X for _, X in drawn])


def _draw_image(K: int, N: int, d: int, M: int, draw: torch.Generator) -> Tokens:
    rank = min(RANK, d - 2)
    scale = DECAY ** torch.arange(rank)
    scale = (scale / scale.sum()).sqrt()  # (rank,): Gaussians with these scales have mean length 1
    basis = torch.linalg.qr(torch.randn(d, rank + 2, generator=draw)).Q.T  # e0, e1, and the rest
    own = torch.randn(OBJECTS, rank, generator=draw) * scale
    own *= (1 - AGAINST**2 - COMMON**2) ** 0.5 / own.norm(dim=-1, keepdim=True)
    shared = torch.tensor([[AGAINST, COMMON]]).expand(OBJECTS, 2)
    ground = torch.zeros(1, rank + 2)
    ground[0, 0] = 1
    shown = torch.cat([ground, torch.cat([shared, own], -1)])  # (1 + OBJECTS, rank + 2)

    def tokens(n: int, uneven: int) -> Tensor:
        """n tokens of a view; with a larger `uneven` one object fills more of it."""
        share = GROUND + SPREAD * (2 * torch.rand(1, generator=draw) - 1)
        weights = torch.rand(OBJECTS, generator=draw) ** uneven
        what = torch.multinomial(
            torch.cat([share, weights / weights.sum() * (1 - share)]), n, replacement=True, generator=draw
        )
        fill = torch.where(what == 0, 1.0, torch.rand(n, generator=draw) ** 0.3).unsqueeze(-1)
        around = torch.where(what == 0, BLANK, DETAIL).unsqueeze(-1) * scale
        x = fill * shown[what] + (1 - fill) * ground
        x[:, 2:] += around * torch.randn(n, rank, generator=draw)
        return x @ basis

    return tokens(K, 1), torch.stack([tokens(N, 3) for _ in range(M)])


def draw_random(images: int, K: int, N: int, d: int, *, M: int = CROPS, seed: int = 0) -> Tokens:
    """A common direction (cosine about 0.5) and independent variation around it."""
    draw = torch.Generator().manual_seed(seed)
    common = torch.randn(d, generator=draw)
    return common + torch.randn(images, K, d, generator=draw), common + torch.randn(images, M, N, d, generator=draw)


def compute_statistics(tokens: Tokens, eps: float = 0.03) -> dict[str, Any]:
    """Cosines between an image and its crops, the spectrum of an image's tokens, and the updates of its transport.

    The spectrum is that of the tokens at length 1 around their mean, as fractions of its sum; `variance` is that sum.
    """
    Z, X = tokens
    C = cosine_cost(Z.unsqueeze(1), X)
    some = (1 - C).flatten()[:: max(1, C.numel() // 100_000)]
    unit = Z / Z.norm(dim=-1, keepdim=True)
    around = unit - unit.mean(1, keepdim=True)
    power = torch.linalg.eigvalsh(around @ around.mT).flip(-1)
    solved = sinkhorn(C, eps).iterations
    return {
        "cosines": [round(float(v), 3) for v in some.quantile(torch.tensor(QUANTILES))],
        "spectrum": [round(float(v), 3) for v in (power / power.sum(-1, keepdim=True)).mean(0)[:6]],
        "variance": round(float(around.square().sum(-1).mean()), 3),
        "updates": summarize_updates(solved),
    }


def summarize_updates(iterations: Tensor) -> dict[str, int]:
    """Updates of crops (P, M): the median, the 90th percentile, the slowest crop of the median image, the maximum."""
    each = iterations.flatten().float()
    return {
        "median": int(each.median()),
        "90 %": int(each.quantile(0.9)),
        "slowest": int(iterations.amax(-1).median()),
        "maximum": int(each.max()),
    }


def main() -> None:
    kinds = {
        "the embedded model's": encode_trained("tiny", load_scenes(40)),
        "drawn, 64 tokens": draw_like_trained(40, 64, 64, 96),
        "drawn at the widths of LLaVA": draw_like_trained(1, 576, 576, 4096),
        "random, 64 tokens": draw_random(4, 64, 64, 96),
    }
    print(f"cosines are the quantiles {QUANTILES}; updates at eps 0.03")
    for name, tokens in kinds.items():
        print(name)
        for what, value in compute_statistics(tokens).items():
            print(f"  {what:10} {value}")


if __name__ == "__main__":
    main()
