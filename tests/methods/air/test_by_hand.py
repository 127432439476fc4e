"""AIR's equations evaluated directly with numpy, beside what its hooks do to a model of two layers.

Nothing of airvlm computes the expected values, but for where the crops lie (patches.py, tested on its own).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from airvlm import AIR, AIRMemory, CropBlend
from airvlm.methods.evidence.crops import crop_boxes
from airvlm.report import Report
from tests import tiny_models

Array = NDArray[np.float64]
M, Q, KEEP, STRENGTH = 4, 6, 2, 0.3
IMAGE = tiny_models.sample_image(1)
ROW = ("USER: <image> is there a fork in the image ? ASSISTANT:", [IMAGE])


@pytest.fixture(scope="module")
def two_layers() -> Any:
    model, processor = tiny_models.build("llava", num_hidden_layers=2)
    return model, processor, tiny_models.inputs(processor, [ROW])


def array(x: torch.Tensor) -> Array:
    return x.detach().double().numpy()


@dataclass
class Seen:
    """What went through the model: x into a feed-forward and what came out, hooks included."""

    x: list[Array]
    out: list[Array]
    embeds: list[Array]


@contextmanager
def watching(model: Any) -> Iterator[Seen]:
    """Opened inside the method's block, so that these hooks see what the method's hooks left."""
    seen = Seen([], [], [])
    decoder = model.get_decoder()
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


def run(method: AIR | None, two_layers: Any) -> tuple[Seen, Any]:
    model, processor, batch = two_layers
    with torch.no_grad():
        if method is None:
            with watching(model) as seen:
                model(**batch)
            return seen, None
        with method(model, processor, images=[[IMAGE]]) as air, watching(model) as seen:
            model(**batch)
    return seen, air.report


def ffn(model: Any, layer: int, x: Array) -> Array:
    """The feed-forward itself, without hooks."""
    own = model.get_decoder().layers[layer].mlp
    with torch.no_grad():
        return array(own.forward(torch.tensor(x, dtype=torch.float32)))


def visual_tokens(two_layers: Any) -> tuple[Array, Array]:
    """Z (K, d) and the crops' tokens (M, N, d), by the model's own encoder."""
    model, processor, batch = two_layers
    cut = [IMAGE.crop(box) for box in crop_boxes(IMAGE.size, M)]
    pixels = processor.image_processor(cut, return_tensors="pt")["pixel_values"]
    with torch.no_grad():
        crops = model.base_model.get_image_features(pixels, return_dict=True).pooler_output
        (Z,) = model.base_model.get_image_features(batch["pixel_values"], return_dict=True).pooler_output
    return array(Z), np.stack([array(crop) for crop in crops])


def top(Z: Array) -> NDArray[np.intp]:
    """The Q tokens farthest from their mean, in reading order."""
    return np.sort(np.argsort(-np.linalg.norm(Z - Z.mean(0), axis=1))[:Q])


def same(actual: Array, expected: Array) -> None:
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


@pytest.fixture(autouse=True)
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both sides solve the transport until nothing moves, so that they may be compared digit by digit."""
    monkeypatch.setattr("airvlm.methods.evidence.transport.TOLERANCE", 1e-6)


def transport(H: Array, crop: Array, eps: float) -> tuple[Array, Array]:
    """The cost 1 - cos and the plan of one crop, by plain Sinkhorn updates."""
    unit = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in (H, crop)]
    C = 1 - unit[0] @ unit[1].T
    K = np.exp(-C / eps)
    u, v = np.zeros(len(H)), np.ones(len(crop))
    while np.abs(u * (K @ v) - 1 / len(H)).sum() >= 1e-9:
        u = 1 / len(H) / (K @ v)
        v = 1 / len(crop) / (K.T @ u)
    return C, u[:, None] * K * v


def transports(H: Array, crops: Array, eps: float, report: Report) -> tuple[Array, Array, Array]:
    """Every crop's cost and plan (M, Q, N) and distance (M,), which are what the report tells of them."""
    solved = [transport(H, crop, eps) for crop in crops]
    C, T = (np.stack([one[i] for one in solved]) for i in range(2))
    d = (C * T).sum((1, 2))
    assert report.sinkhorn is not None and report.sinkhorn.converged
    same(np.array([crop.distance for crop in report.rows[0].crops[0]]), d)
    return C, T, d


def silu(x: Array) -> Array:
    return x / (1 + np.exp(-x))


def test_the_paper_reading_is_the_printed_equation(two_layers: Any) -> None:
    eps = 0.1
    method = AIR(layers=(0, 2), num_prototypes=Q, keep=KEEP, num_crops=M, eps=eps, strength=STRENGTH)
    seen, report = run(method, two_layers)
    Z, crops = visual_tokens(two_layers)
    kept_tokens = top(Z)
    _, _, d = transports(Z[kept_tokens], crops, eps, report)
    kept = np.sort(np.argsort(d)[:KEEP])
    assert [i for i, c in enumerate(report.rows[0].crops[0]) if c.kept] == kept.tolist()
    memory = np.concatenate(list(crops[kept]))  # Z~ (S, d)
    batch = two_layers[2]
    rows = np.flatnonzero(batch["input_ids"][0].numpy() == tiny_models.IMAGE)[kept_tokens]
    for layer in range(2):
        expected = ffn(two_layers[0], layer, seen.x[layer])
        term = silu(seen.x[layer][rows] @ memory.T) @ memory  # phi(H' Z~') Z~
        size = np.linalg.norm(expected[rows], axis=1) / np.linalg.norm(term, axis=1)
        expected[rows] += STRENGTH * size[:, None] * term
        same(seen.out[layer], expected)


def test_without_a_strength_the_bare_sum_is_added(two_layers: Any) -> None:
    method = AIR(layers=(0, 1), num_prototypes=Q, keep=M, num_crops=M, strength=None)
    seen, _ = run(method, two_layers)
    Z, crops = visual_tokens(two_layers)
    memory = np.concatenate(list(crops))
    rows = np.flatnonzero(two_layers[2]["input_ids"][0].numpy() == tiny_models.IMAGE)[top(Z)]
    expected = ffn(two_layers[0], 0, seen.x[0])
    expected[rows] += silu(seen.x[0][rows] @ memory.T) @ memory
    same(seen.out[0], expected)


@pytest.mark.parametrize("threshold", [0.0, 1.0], ids=["fires", "never fires"])
def test_the_lineage_reading_adds_the_memory_at_all_rows_after_an_unsure_layer(
    two_layers: Any, threshold: float
) -> None:
    method = AIRMemory(layers=(0, 2), num_prototypes=Q, keep=KEEP, num_crops=M, strength=STRENGTH, threshold=threshold)
    if threshold == 1:
        with pytest.warns(match="entropy"):
            seen, report = run(method, two_layers)
    else:
        seen, report = run(method, two_layers)
    Z, crops = visual_tokens(two_layers)
    H = Z[top(Z)]
    _, _, d = transports(H, crops, method.eps, report)
    memory = np.concatenate([H, *crops[np.sort(np.argsort(d)[:KEEP])]])
    assert report.fired == (threshold == 0)
    first, second = (ffn(two_layers[0], layer, seen.x[layer]) for layer in range(2))
    same(seen.out[0], first)  # the layer that decides is left alone
    if report.fired:
        term = seen.x[1] @ memory.T @ memory
        size = np.linalg.norm(second, axis=1) / np.linalg.norm(term, axis=1)
        second = second + STRENGTH * size[:, None] * term
    same(seen.out[1], second)


@pytest.mark.parametrize("eps", [CropBlend().eps, 0.3])
def test_the_transported_reading_blends_the_plans_image_into_the_prototypes(two_layers: Any, eps: float) -> None:
    method = CropBlend(num_prototypes=Q, num_crops=M, eps=eps)
    vanilla, _ = run(None, two_layers)
    seen, report = run(method, two_layers)
    Z, crops = visual_tokens(two_layers)
    chosen = top(Z)
    C, T, _ = transports(Z[chosen], crops, eps, report)
    R = T / T.sum(2, keepdims=True)  # row k: how crop tokens share prototype k
    images = R @ crops  # (M, Q, d): their barycentric images
    share = np.exp(-(R * C).sum(2) / eps)  # (M, Q): crops mixed by softmax of each row's own cost
    share /= share.sum(0)
    carried = (share[:, :, None] * images).sum(0)  # (Q, d)
    expected = vanilla.embeds[0].copy()
    rows = np.flatnonzero(two_layers[2]["input_ids"][0].numpy() == tiny_models.IMAGE)[chosen]
    expected[rows] += method.weight * (carried - expected[rows])
    same(seen.embeds[0], expected)
    for layer in range(2):  # and nothing is added anywhere else
        same(seen.out[layer], ffn(two_layers[0], layer, seen.x[layer]))
