"""Tokens to measure transport on: a trained model's own, tokens drawn to be like them at any width, and random ones.

Random tokens are nearly orthogonal to each other, and Sinkhorn solves them in two updates. Trained ones are not: most
of an image is ground, whose tokens nearly coincide (cosine 0.95), and the rest shows a few objects, each near a
direction of its own, in a space of few directions. A Gaussian with the trained tokens' spectrum is not enough either:
it takes 12 updates where they take 35, because it has no ground. So `like_trained` draws

    ground     one direction e0, of about GROUND of the tokens
    object j   AGAINST e0 + COMMON e1 + the rest of its length in a direction of its own, OBJECTS of them in an image
    token      ground, or fill * object + (1 - fill) * ground with fill = U^0.3, for patches that it fills in part
    noise      Gaussian around it, BLANK long on ground and DETAIL on objects

where directions of objects and noise are Gaussian with variances DECAY^i in RANK directions, drawn anew for each
image; a crop of the image has the same directions, but its own share of ground and of each object. The constants were
fitted to the cosines, the spectrum and the updates of the embedded model's tokens, and `python -m experiments.speed.tokens`
prints all three side by side. Knows nothing of what is measured.
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
GROUND, SPREAD = (
    0.68,
    0.25,
)  # share of the tokens that are ground, and how far an image's or a crop's may lie from it
OBJECTS = 6
AGAINST, COMMON = -0.15, 0.6  # what all objects share: away from the ground, and a direction of their own
BLANK, DETAIL = 0.18, 0.3
DECAY, RANK = 0.75, 40
QUANTILES = (0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99)

Tokens = tuple[Tensor, Tensor]  # of P images: (P, K, d), and of their crops: (P, M, N, d)


@cache
def embedded(name: str) -> VLM:
    """ "tiny" or "photo"."""
    return VLM.load(name)


@torch.no_grad()
def trained(name: str, images: Sequence[Image.Image]) -> Tokens:
    """What an embedded model's own encoder gives, as its decoder would read it."""
    vlm = embedded(name)

    def encoded(views: list[Image.Image]) -> Tensor:
        found = vlm.parts.encode(vlm.parts.pixels(vlm.processor, views))
        return torch.stack([tokens.float() for tokens in found])

    crops = [encoded([image.crop(box) for box in crop_boxes(image.size, CROPS)]) for image in images]
    return torch.cat([encoded([image]) for image in images]), torch.stack(crops)


def scenes(count: int) -> list[Image.Image]:
    """The first test scenes of the embedded model."""
    return [Image.open(scene.path).convert("RGB") for scene in tiny.scenes("test")[:count]]


def like_trained(images: int, K: int, N: int, d: int, *, M: int = CROPS, seed: int = 0) -> Tokens:
    """Tokens with the cosines and the spectrum of trained ones; how is told above."""
    draw = torch.Generator().manual_seed(seed)
    drawn = [_image(K, N, d, M, draw) for _ in range(images)]
    return torch.stack([Z for Z, _ in drawn]), torch.stack([X for _, X in drawn])


def _image(K: int, N: int, d: int, M: int, draw: torch.Generator) -> Tokens:
    rank = min(RANK, d - 2)
    scale = DECAY ** torch.arange(rank)
    scale = (scale / scale.sum()).sqrt()  # (rank,) a Gaussian of these has length 1 in the mean
    basis = torch.linalg.qr(torch.randn(d, rank + 2, generator=draw)).Q.T  # e0, e1, and the rest
    own = torch.randn(OBJECTS, rank, generator=draw) * scale
    own *= (1 - AGAINST**2 - COMMON**2) ** 0.5 / own.norm(dim=-1, keepdim=True)
    shared = torch.tensor([[AGAINST, COMMON]]).expand(OBJECTS, 2)
    ground = torch.zeros(1, rank + 2)
    ground[0, 0] = 1
    shown = torch.cat([ground, torch.cat([shared, own], -1)])  # (1 + OBJECTS, rank + 2)

    def tokens(n: int, uneven: int) -> Tensor:
        """n tokens of a view; the greater `uneven`, the more one object fills it."""
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


def at_random(images: int, K: int, N: int, d: int, *, M: int = CROPS, seed: int = 0) -> Tokens:
    """A common direction (cosine about 0.5) and independent variation around it."""
    draw = torch.Generator().manual_seed(seed)
    common = torch.randn(d, generator=draw)
    return common + torch.randn(images, K, d, generator=draw), common + torch.randn(images, M, N, d, generator=draw)


def statistics(tokens: Tokens, eps: float = 0.03) -> dict[str, Any]:
    """Cosines between an image and its crops, the spectrum of an image's tokens, and the updates of its transport.

    The spectrum is that of the tokens at length 1 around their mean, as shares of its sum; `variance` is that sum.
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
        "updates": updates(solved),
    }


def updates(iterations: Tensor) -> dict[str, int]:
    """Of the crops (P, M) of images: the median crop, the 90th percentile, the median image's slowest, and the most."""
    each = iterations.flatten().float()
    return {
        "median": int(each.median()),
        "90 %": int(each.quantile(0.9)),
        "slowest": int(iterations.amax(-1).median()),
        "most": int(each.max()),
    }


def main() -> None:
    kinds = {
        "the embedded model's": trained("tiny", scenes(40)),
        "drawn, 64 tokens": like_trained(40, 64, 64, 96),
        "drawn at LLaVA's widths": like_trained(1, 576, 576, 4096),
        "at random, 64 tokens": at_random(4, 64, 64, 96),
    }
    print(f"cosines are the quantiles {QUANTILES}; updates at eps 0.03")
    for name, tokens in kinds.items():
        print(name)
        for what, value in statistics(tokens).items():
            print(f"  {what:10} {value}")


if __name__ == "__main__":
    main()
