"""DAMO against its published loop, one position at a time."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from airvlm.methods.damo import DAMO
from airvlm.testing import check_method, small_models
from tests.methods.direct import finished, forward, rows_with_images
from tests.methods.families import ALL, FEW


def momentum(model: Any, damo: DAMO, first: int, start: int) -> Any:
    """A change of layer outputs by the published loop, in numpy, for the positions from `first` on of one row."""
    W = model.get_output_embeddings()
    states: dict[int, Tensor] = {}
    memory: dict[int, Any] = {}

    def predict(r: Tensor) -> Any:
        with torch.no_grad():
            return W(r).double().softmax(-1).numpy()

    def change(i: int, h: Tensor) -> Tensor:
        h = h.clone()
        if i >= start:
            for t in range(first, h.shape[1]):
                q, m, turned = memory.get(t, (0, 0, False))
                p3, p2, p1 = predict(h[0, t]), predict(states[i - 1][0, t]), predict(states[i - 2][0, t])
                q = damo.alpha * q + (1 - damo.alpha) * (p2 - p1)
                c = (p3 - p2) @ q / (np.linalg.norm(p3 - p2) * np.linalg.norm(q))
                beta = damo.beta_2 if c < damo.tau else damo.beta_1
                turned = turned or c < damo.tau
                m = beta * m + (1 - beta) * (h[0, t] - states[i - 1][0, t]).double().numpy()
                if turned:
                    h[0, t] = states[i - 1][0, t] + torch.from_numpy(m).float()
                memory[t] = q, m, turned
        states[i] = h
        return h

    return change, memory


@pytest.mark.parametrize("family", FEW)
def test_the_last_position_of_every_pass_keeps_its_momentum(family: str) -> None:
    model, processor = small_models.shared_model(family)
    batch = small_models.build_inputs(processor, rows_with_images()[:1])
    prompt, damo = batch["input_ids"].shape[1], DAMO(tau=0.2, layers=(2, 4), beta_1=0.3, beta_2=0.6)
    with damo(model) as run:
        out = model.generate(
            **batch, max_new_tokens=4, do_sample=False, return_dict_in_generate=True, output_logits=True
        )
    change, memory = momentum(model, damo, prompt - 1, 2)
    expected = forward(model, finished(batch, out.sequences), residual=change)[:, prompt - 1 : -1]
    torch.testing.assert_close(torch.stack(out.logits, 1), expected, rtol=2e-3, atol=5e-3)
    turned = [memory[t][2] for t in range(prompt - 1, prompt + 3)]
    assert any(turned) and run.report.fired


def test_layers_are_scaled_and_checked() -> None:
    assert DAMO().span(32) == range(16, 32) and DAMO().span(4) == range(2, 4)
    with pytest.raises(ValueError, match="must be 1 or later"):
        DAMO(layers=(0, 2)).span(4)
    assert DAMO(tau=-1).disabled_reason is not None


@pytest.mark.parametrize("family", ALL)
def test_laws(family: str) -> None:
    check_method(DAMO(tau=0.9, beta_2=0.5), [family])
