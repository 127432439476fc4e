"""MemVR against its formula, evaluated directly in numpy."""

from typing import Any

import numpy as np
import pytest
import torch

from airvlm.methods.base import Method
from airvlm.methods.memvr import MemVR, preset
from airvlm.models.parts import ModelParts
from airvlm.runtime.session import MethodInactiveWarning
from airvlm.testing import small_models

LAYERS = (1, 3)  # layers 0 and 1 are read, 1 and 2 are changed


@pytest.fixture
def llava() -> Any:
    model, processor = small_models.shared_model("llava")
    return model, small_models.build_inputs(processor, small_models.sample_rows())


class Recorded:
    """What layers and feed-forwards of a model read and wrote in one pass, as numpy arrays."""

    def __init__(self, model: Any, batch: Any, method: Method | None = None) -> None:
        parts = ModelParts.of(model)
        self.x: dict[int, np.ndarray] = {}
        self.y: dict[int, np.ndarray] = {}
        self.h: dict[int, torch.Tensor] = {}
        self.embeds = np.zeros(0)
        handles = [parts.decoder.register_forward_pre_hook(self._decoder, with_kwargs=True)]
        for i, layer in enumerate(parts.layers):
            handles.append(layer.register_forward_hook(lambda m, a, out, i=i: self._layer(i, out)))
        try:
            if method is None:
                handles += self._record(parts)
                with torch.no_grad():
                    model(**batch)
            else:
                with method(model) as self.run:
                    handles += self._record(parts)  # after the method's hooks: sees what it wrote
                    with torch.no_grad():
                        model(**batch)
        finally:
            for handle in handles:
                handle.remove()

    def _record(self, parts: ModelParts) -> list[Any]:
        return [f.register_forward_hook(lambda m, a, out, i=i: self._ffn(i, a, out)) for i, f in enumerate(parts.ffns)]

    def _decoder(self, module: Any, args: Any, kwargs: Any) -> None:
        self.embeds = kwargs["inputs_embeds"].numpy()

    def _layer(self, i: int, out: Any) -> None:
        self.h[i] = out[0] if isinstance(out, tuple) else out

    def _ffn(self, i: int, args: Any, out: Any) -> None:
        self.x[i], self.y[i] = args[0].numpy(), out.numpy()


def entropy(model: Any, h: torch.Tensor, normed: bool = True) -> np.ndarray:
    """u of the last position, in numpy: (B,)."""
    parts = ModelParts.of(model)
    with torch.no_grad():
        logits = parts.head(parts.norm(h[:, -1]) if normed else h[:, -1]).numpy()
    top = np.sort(logits, -1)[:, -10:]
    p = np.exp(top - top.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    return -(p * np.log(p)).sum(-1) / np.log(10)


def np_silu(s: np.ndarray) -> np.ndarray:
    return s / (1 + np.exp(-s))


def test_the_mix_is_the_formula_evaluated_with_numpy_row_by_row(llava: Any) -> None:
    model, batch = llava
    plain = Recorded(model, batch)
    u = entropy(model, plain.h[0])
    visual = (batch["input_ids"] == small_models.IMAGE).numpy()
    threshold = float(np.sort(u[visual.any(1)])[1])  # fires in some rows with images, not in all
    acted = Recorded(model, batch, MemVR(alpha=0.3, threshold=threshold - 1e-6, layers=(1, 2)))
    for b in range(len(u)):
        y = plain.y[1][b]
        if visual[b].any() and u[b] >= threshold:
            Z, x = plain.embeds[b][visual[b]], plain.x[1][b]
            a = x @ Z.T @ Z
            y = 0.7 * y + 0.3 * np.abs(y).mean(-1, keepdims=True) / np.abs(a).mean(-1, keepdims=True) * a
            assert acted.run.report.rows[b].fired
        else:
            assert not acted.run.report.rows[b].fired
        np.testing.assert_allclose(acted.y[1][b], y, atol=1e-5, rtol=1e-4)


def test_it_acts_once_per_pass_in_the_first_layer_after_an_unsure_one(llava: Any) -> None:
    model, batch = llava
    plain = Recorded(model, batch)
    first, second = entropy(model, plain.h[0]), entropy(model, plain.h[1])
    row = int(np.argmax(second - first))
    threshold = float(first[row] + second[row]) / 2
    if not first[row] < threshold < second[row]:
        pytest.skip("no row grows less sure from layer 0 to layer 1")
    acted = Recorded(model, batch, MemVR(threshold=threshold, layers=LAYERS))
    expected = {0: (1,), 1: (2,)}
    for b, report in enumerate(acted.run.report.rows):
        visual = bool((batch["input_ids"][b] == small_models.IMAGE).any())
        layer = 0 if first[b] > threshold else 1 if second[b] > threshold else None
        assert report.layers == (expected[layer] if visual and layer is not None else ())


@pytest.mark.parametrize("family", ["llava", "qwen2_5_vl", "glm4v"])
def test_faithful_is_the_published_formula(family: str) -> None:
    model, processor = small_models.shared_model(family)
    batch = small_models.build_inputs(processor, small_models.sample_rows()[:1])  # the published code serves one row
    plain = Recorded(model, batch)
    published = preset(family)
    u = entropy(model, plain.h[0], published.normed)
    memvr = MemVR(layers=(1, 2), faithful=True, threshold=float(u[0]) - 1e-4)
    acted = Recorded(model, batch, memvr)
    visual = (batch["input_ids"] == small_models.IMAGE).numpy()
    Z, x, y = plain.embeds[visual], plain.x[1], plain.y[1]
    if published.phi == "silu":
        ffn = ModelParts.of(model).ffns[1]
        up = ffn.gate_up_proj.weight.chunk(2)[1] if hasattr(ffn, "gate_up_proj") else ffn.up_proj.weight
        scale = up.detach().abs().mean().item() / np.abs(Z).mean()
        a = np_silu(x @ (Z * scale).T) @ (Z * scale)
    else:
        a = x @ Z.T @ Z
    alpha = published.alpha
    expected = (1 - alpha) * y + alpha * np.abs(y).mean() / np.abs(a).mean() * a
    np.testing.assert_allclose(acted.y[1], expected, atol=1e-5, rtol=1e-4)
    # and just above its entropy it does nothing
    with pytest.warns(MethodInactiveWarning, match="entropy"):
        sure = Recorded(model, batch, MemVR(layers=(1, 2), faithful=True, threshold=float(u[0]) + 1e-4))
    np.testing.assert_array_equal(sure.y[1], y)


def test_faithful_couples_the_rows_of_a_batch_and_the_default_does_not(llava: Any) -> None:
    model, batch = llava
    _, processor = small_models.shared_model("llava")
    alone = small_models.build_inputs(processor, small_models.sample_rows()[:1])
    length = alone["input_ids"].shape[1]
    for faithful in (True, False):
        memvr = MemVR(alpha=0.3, threshold=0.0, layers=LAYERS, faithful=faithful)
        together, one = Recorded(model, batch, memvr), Recorded(model, alone, memvr)
        assert np.allclose(together.y[1][0, -length:], one.y[1][0], atol=1e-4) is not faithful


def test_faithful_never_acts_in_the_last_of_32_layers() -> None:
    model, processor = small_models.build("llava", num_hidden_layers=32)
    batch = small_models.build_inputs(processor, small_models.sample_rows()[:1])
    with pytest.warns(MethodInactiveWarning):
        Recorded(model, batch, MemVR(threshold=0.0, layers=(31, 33), faithful=True))
    assert Recorded(model, batch, MemVR(threshold=0.0, layers=(31, 33))).run.report.layers == (31,)


def test_the_lens_applies_the_head_once_per_layer_until_it_fires(llava: Any) -> None:
    model, batch = llava
    heads: list[int] = []
    handle = ModelParts.of(model).head.register_forward_pre_hook(lambda m, args: heads.append(args[0].shape[1]))
    try:
        for threshold, looks in ((0.0, 1), (1.1, 3)):
            heads.clear()
            method = MemVR(threshold=threshold, layers=(1, 5))
            if threshold > 1:
                with pytest.warns(MethodInactiveWarning, match=r"highest was 0\."):
                    Recorded(model, batch, method)
            else:
                Recorded(model, batch, method)
            assert heads[:-1] == [1] * looks  # one position each; the last call is the model's own
    finally:
        handle.remove()


@pytest.mark.parametrize(
    ("family", "depth", "layers"),
    [
        ("llava", 32, range(6, 16)),
        ("qwen2_5_vl", 32, range(10, 16)),
        ("glm4v", 40, range(10, 16)),
        ("llava", 40, range(7, 20)),
        ("llava", 4, range(1, 2)),
        ("llava", 8, range(2, 4)),
        ("llava", 2, range(1)),
    ],
)
def test_windows_are_the_published_ones_scaled_to_the_decoder(family: str, depth: int, layers: range) -> None:
    assert MemVR().watched_layers(family, depth) == layers


def test_faithful_windows_are_the_published_numbers_whatever_the_depth() -> None:
    assert MemVR(faithful=True).watched_layers("llava", 40) == range(6, 16)
    with pytest.raises(ValueError, match="none of these has one before it"):
        MemVR(faithful=True).watched_layers("llava", 4)


def test_wrong_options_are_refused() -> None:
    with pytest.raises(ValueError, match="alpha"):
        MemVR(alpha=1.5)
    with pytest.raises(ValueError, match="phi"):
        MemVR(phi="gelu")  # type: ignore[arg-type]
