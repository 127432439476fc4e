"""VCD against its formula, evaluated by two plain passes of the model."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from airvlm.methods.noise import add_noise
from airvlm.methods.vcd import VCD
from airvlm.runtime.session import MethodInactiveWarning
from airvlm.testing import small_models

TOKENS = 5


def plain_logits(model: Any, batch: Any, ids: Tensor) -> Tensor:
    """Logits of the generated tokens (B, TOKENS, V), in one pass over the finished sequences, without any method."""
    new = ids.shape[1] - batch["input_ids"].shape[1]
    more = {
        k: v
        for k, v in batch.items()
        if k not in ("input_ids", "attention_mask", "mm_token_type_ids", "token_type_ids")
    }
    mask = torch.cat([batch["attention_mask"], torch.ones(len(ids), new, dtype=torch.long)], 1)
    for name in ("mm_token_type_ids", "token_type_ids"):
        if name in batch:
            more[name] = (ids == small_models.IMAGE).long()
    with torch.no_grad():
        out = model(input_ids=ids, attention_mask=mask, **more).logits
    return out[:, -new - 1 : -1]


def generate(model: Any, batch: Any, **options: Any) -> Any:
    return model.generate(
        **batch,
        **{"max_new_tokens": TOKENS, "min_new_tokens": TOKENS, "do_sample": False, **options},
        return_dict_in_generate=True,
        output_logits=True,
    )


def contrast(l: Tensor, m: Tensor, alpha: float, beta: float) -> Tensor:
    """The formula in numpy: the lowest value where a token's probability is below beta times the largest."""
    a, b = l.double().numpy(), m.double().numpy()
    p = np.exp(a - a.max(-1, keepdims=True))
    found = np.where(p >= beta, (1 + alpha) * a - alpha * b, np.finfo(np.float32).min)
    return torch.from_numpy(found).float()


def with_noise(batch: Any, vcd: VCD) -> dict[str, Any]:
    return {**batch, **add_noise(batch, vcd.noise_step, vcd.seed)}


@pytest.mark.parametrize("family", ["llava", "llava_next", "qwen2_5_vl", "glm4v", "idefics3", "internvl", "gemma3"])
@pytest.mark.parametrize(
    "options", [{}, {"do_sample": True}, {"use_cache": False}], ids=["greedy", "sampling", "no cache"]
)
def test_every_step_is_the_contrast_of_two_plain_passes(family: str, options: dict[str, Any]) -> None:
    model, processor = small_models.shared_model(family)
    rows = [row for row in small_models.sample_rows() if row[1]]
    batch = small_models.build_inputs(processor, rows)
    vcd = VCD(alpha=0.8, beta=0.05)
    with vcd(model) as run:
        out = generate(model, batch, **options)
    clean, noisy = (plain_logits(model, b, out.sequences) for b in (batch, with_noise(batch, vcd)))
    expected = contrast(clean, noisy, vcd.alpha, vcd.beta)
    found = torch.stack(out.logits, 1)
    sure = (clean - clean.amax(-1, keepdim=True) - np.log(0.05)).abs() > 1e-2  # not at the edge of the cut
    torch.testing.assert_close(found[sure], expected[sure], rtol=1e-3, atol=5e-3)
    assert run.report.fired and run.report.passes == TOKENS


def test_faithful_does_nothing_unless_tokens_are_sampled() -> None:
    model, processor = small_models.shared_model("llava")
    batch = small_models.build_inputs(processor, small_models.sample_rows()[:1])
    plain = generate(model, batch)
    with pytest.warns(MethodInactiveWarning, match="not sampled"):
        with VCD(faithful=True)(model):
            greedy = generate(model, batch)
    assert torch.equal(torch.stack(greedy.logits), torch.stack(plain.logits))
    with VCD(faithful=True)(model) as run:
        torch.manual_seed(0)
        one = generate(model, batch, do_sample=True)
        two = generate(model, batch, do_sample=True)
    assert run.report.fired
    assert not torch.equal(one.logits[0], two.logits[0])  # the global generator has moved on
    with VCD()(model):
        one, two = generate(model, batch, do_sample=True), generate(model, batch, do_sample=True)
    assert torch.equal(one.logits[0], two.logits[0])


def test_wrong_options_are_refused() -> None:
    for options in ({"alpha": -1.0}, {"beta": 2.0}, {"noise_step": 1000}):
        with pytest.raises(ValueError, match=next(iter(options))):
            VCD(**options)  # type: ignore[arg-type]
