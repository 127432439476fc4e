"""DoLa against its formula in numpy, on the hidden states of plain passes."""

import numpy as np
import pytest
import torch
from torch import Tensor

from airvlm.methods.dola import DoLa
from airvlm.testing import small_models
from tests.methods.reference import TOKENS, answer, check_close
from tests.methods.test_deco import LOWEST, Array, lens_and_logits, softmax


def kl(a: Array, b: Array) -> Array:
    return np.asarray((a * np.log(a / b)).sum(-1))


def contrast(l: Array, lens: Array, faithful: bool, beta: float = 0.1) -> tuple[Array, int]:
    """One step (V,) with the chosen layer, for lens (n, V)."""
    p, q = softmax(l), softmax(lens)
    m = (p + q) / 2
    # published: KL(m || p), where the Jensen-Shannon divergence has KL(p || m)
    d = 0.5 * (kl(m, p) + kl(m, q)) if faithful else 0.5 * (kl(np.broadcast_to(p, m.shape), m) + kl(q, m))
    layer = int(d.argmax())
    new = np.log(p) - np.log(q[layer])
    return np.where(p >= beta * p.max(), new, LOWEST), layer


def expected(ids: Tensor, row: int, layers: list[int], faithful: bool) -> Tensor:
    lens, l = lens_and_logits(ids, row, layers, normed=not faithful)  # type: ignore[arg-type]
    return torch.from_numpy(np.stack([contrast(l[t], lens[:, t], faithful)[0] for t in range(TOKENS)])).float()


@pytest.mark.parametrize("row", [0, 1, 2])
@pytest.mark.parametrize("faithful", [False, True], ids=["default", "faithful"])
@pytest.mark.parametrize("candidates", ["high", "all"])
def test_the_farthest_layer_is_subtracted(row: int, faithful: bool, candidates: str, monkeypatch: object) -> None:
    layers = [1]
    if candidates == "all":  # the small model has one candidate: let it choose among three
        layers = [0, 1, 2]
        monkeypatch.setattr(DoLa, "lens_layers", lambda self, depth: layers)  # type: ignore[attr-defined]
    ids, logits, report = answer(DoLa(faithful=faithful), row=row)
    check_close(logits, expected(ids, row, layers, faithful))
    assert report.layers == tuple(layers)


def test_faithful_chooses_one_layer_for_the_batch_and_the_default_one_per_row() -> None:
    generator = torch.Generator().manual_seed(0)
    l = torch.randn(2, 1, 30, generator=generator)
    near, far = l + 0.01, 5 * torch.randn(2, 1, 30, generator=generator)
    # the layer that is far from row 0 is near to row 1
    lens = torch.stack([torch.stack([far[0], near[1]]), torch.stack([near[0], far[1]])])
    step = None

    def subtracted(method: DoLa) -> Tensor:
        new = method.next_logits(l, lens, step)  # type: ignore[arg-type]
        return l.log_softmax(-1) - new

    own = DoLa(beta=0.0)
    for row in range(2):
        torch.testing.assert_close(subtracted(own)[row], lens[row, row].log_softmax(-1), rtol=1e-4, atol=1e-4)
    pooled = subtracted(DoLa(beta=0.0, faithful=True))
    layers = [[torch.allclose(pooled[r], lens[n, r].log_softmax(-1), atol=1e-4) for n in range(2)] for r in range(2)]
    assert layers[0] == layers[1] and sum(layers[0]) == 1, "both rows have the same layer"


@pytest.mark.parametrize(
    ("candidates", "depth", "states"),
    [
        ("high", 32, range(16, 32, 2)),
        ("low", 32, range(2, 16, 2)),
        ("high", 48, range(28, 48, 2)),
        ("low", 48, range(2, 20, 2)),
    ],
)
def test_candidates_are_the_published_hidden_states(candidates: str, depth: int, states: range) -> None:
    layers = DoLa(candidates=candidates).lens_layers(depth)  # type: ignore[arg-type]
    assert layers == [state - 1 for state in states]  # hidden state j is the output of layer j - 1


def test_a_decoder_without_candidates_is_refused() -> None:
    model, processor = small_models.shared_model("llava")
    with pytest.raises(ValueError, match="a decoder of 4 layers has no such layer"):
        DoLa(candidates="low")(model, processor)
