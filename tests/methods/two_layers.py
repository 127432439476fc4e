"""A model of two layers, what passes through it under a method, and the parts of AIR's equations in numpy.

Nothing of airvlm computes the expected values, except for where the crops are (crops.py, which has tests of its own).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from airvlm.methods.base import Method
from airvlm.methods.evidence.crops import crop_boxes
from airvlm.report import Report
from airvlm.testing import small_models

Array = NDArray[np.float64]
M, Q, KEEP, STRENGTH = 4, 6, 2, 0.3
IMAGE = small_models.sample_image(1)
ROW = ("USER: <image> is there a fork in the image ? ASSISTANT:", [IMAGE])


class Seen:
    """What went through the model: the decoder's input, and what each feed-forward read and wrote, hooks included."""

    def __init__(self) -> None:
        self.x: list[Array] = []
        self.out: list[Array] = []
        self.embeds: list[Array] = []


class TwoLayers:
    """A small LLaVA with two layers, and a batch of one row with one image."""

    def __init__(self) -> None:
        self.model, self.processor = small_models.build("llava", num_hidden_layers=2)
        self.batch = small_models.build_inputs(self.processor, [ROW])

    @torch.no_grad()
    def run(self, method: Method | None) -> tuple[Seen, Any]:
        """One pass under a method, and its report."""
        if method is None:
            with self._record() as seen:
                self.model(**self.batch)
            return seen, None
        with method(self.model, self.processor, images=[[IMAGE]]) as session, self._record() as seen:
            self.model(**self.batch)
        return seen, session.report

    @contextmanager
    def _record(self) -> Iterator[Seen]:
        """Opened inside the method's block, so that these hooks see what the method's hooks left."""
        seen = Seen()
        decoder = self.model.get_decoder()
        handles = [
            decoder.register_forward_pre_hook(
                lambda _, args, kwargs: seen.embeds.append(array(kwargs["inputs_embeds"][0])), with_kwargs=True
            )
        ]
        for layer in decoder.layers:
            handles.append(layer.mlp.register_forward_pre_hook(lambda _, args: seen.x.append(array(args[0][0]))))
            handles.append(layer.mlp.register_forward_hook(lambda _, args, out: seen.out.append(array(out[0]))))
        yield seen
        for handle in handles:
            handle.remove()

    @torch.no_grad()
    def ffn(self, layer: int, x: Array) -> Array:
        """The feed-forward itself, without hooks."""
        own = self.model.get_decoder().layers[layer].mlp
        return array(own.forward(torch.tensor(x, dtype=torch.float32)))

    @cached_property
    @torch.no_grad()
    def Z(self) -> Array:
        """The visual tokens (K, d), by the model's own encoder."""
        pixels = self.batch["pixel_values"]
        (tokens,) = self.model.base_model.get_image_features(pixels, return_dict=True).pooler_output
        return array(tokens)

    @cached_property
    @torch.no_grad()
    def crops(self) -> Array:
        """The crops' tokens (M, N, d)."""
        cut = [IMAGE.crop(box) for box in crop_boxes(IMAGE.size, M)]
        pixels = self.processor.image_processor(cut, return_tensors="pt")["pixel_values"]
        tokens = self.model.base_model.get_image_features(pixels, return_dict=True).pooler_output
        return np.stack([array(crop) for crop in tokens])

    @property
    def prototypes(self) -> NDArray[np.intp]:
        """The Q tokens farthest from their mean, in reading order."""
        return np.sort(np.argsort(-np.linalg.norm(self.Z - self.Z.mean(0), axis=1))[:Q])

    @property
    def positions(self) -> NDArray[np.intp]:
        """Where the prototypes are in the sequence."""
        return np.flatnonzero(self.batch["input_ids"][0].numpy() == small_models.IMAGE)[self.prototypes]

    def transport(self, eps: float, report: Report) -> tuple[Array, Array, Array]:
        """Every crop's cost and plan (M, Q, N) and distance (M,), which are what the report tells of them."""
        solved = [solve(self.Z[self.prototypes], crop, eps) for crop in self.crops]
        C, T = (np.stack([one[i] for one in solved]) for i in range(2))
        d = (C * T).sum((1, 2))
        assert report.sinkhorn is not None and report.sinkhorn.converged
        check_same(np.array([crop.distance for crop in report.rows[0].crops[0]]), d)
        return C, T, d


def array(x: torch.Tensor) -> Array:
    return x.detach().double().numpy()


def solve(H: Array, crop: Array, eps: float) -> tuple[Array, Array]:
    """The cost 1 - cos and the plan of one crop, by plain Sinkhorn updates."""
    unit = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in (H, crop)]
    C = 1 - unit[0] @ unit[1].T
    K = np.exp(-C / eps)
    u, v = np.zeros(len(H)), np.ones(len(crop))
    while np.abs(u * (K @ v) - 1 / len(H)).sum() >= 1e-9:
        u = 1 / len(H) / (K @ v)
        v = 1 / len(crop) / (K.T @ u)
    return C, u[:, None] * K * v


def check_same(actual: Array, expected: Array) -> None:
    # float32 against float64: builds of torch for other Pythons round differently
    np.testing.assert_allclose(actual, expected, rtol=5e-5, atol=1e-5)


def silu(x: Array) -> Array:
    return x / (1 + np.exp(-x))


# Both sides solve the transport until nothing moves, so that they can be compared digit by digit
EXACT = ("airvlm.methods.evidence.transport.TOLERANCE", 1e-6)
