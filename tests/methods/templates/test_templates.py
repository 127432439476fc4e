"""Templates: a whole method in a few lines, with rows, beams, strength 0 and the report."""

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from airvlm.methods.base import option
from airvlm.methods.templates import FeedForwardMethod, LogitsMethod, VisualTokenMethod
from airvlm.runtime.intervention import Context
from airvlm.testing import small_models

GREEDY = {"max_new_tokens": 3, "min_new_tokens": 3, "do_sample": False}


@dataclass(frozen=True)
class Steer(VisualTokenMethod):
    """Adds a direction to the visual tokens."""

    name: ClassVar[str] = "test-steer"
    strength: float = option(0.5, "norm of the direction over the token's", low=0, off=0)

    def visual_tokens(self, z: Tensor, context: Context) -> Tensor:
        return z + self.strength * z.norm(dim=-1, keepdim=True) * torch.ones_like(z) / z.shape[-1] ** 0.5


@dataclass(frozen=True)
class Damp(FeedForwardMethod):
    """Scales feed-forward outputs."""

    name: ClassVar[str] = "test-damp"
    factor: float = option(0.9, "of the output", low=0, off=1)
    layers: tuple[int, int] | None = option(None, "those that are changed", span=True)

    def feed_forward(self, x: Tensor, y: Tensor, layer: int, context: Context) -> Tensor:
        return self.factor * y


@dataclass(frozen=True)
class Sharpen(LogitsMethod):
    """Scales the logits."""

    name: ClassVar[str] = "test-sharpen"
    factor: float = option(2.0, "of the logits", above=0, off=1)

    def next_logits(self, logits: Tensor, fp: Any, context: Context) -> Tensor:
        return self.factor * logits


@pytest.mark.parametrize(
    ("on", "off", "layers"),
    [
        (Steer(), Steer(0.0), (-1,)),
        (Damp(layers=(1, 3)), Damp(1.0), (1, 2)),
        (Sharpen(), Sharpen(1.0), ()),
    ],
    ids=lambda m: getattr(m, "name", None),
)
def test_a_template_handles_rows_beams_strength_0_and_the_report(on: Any, off: Any, layers: tuple[int, ...]) -> None:
    model, processor = small_models.shared_model("qwen2_5_vl")
    batch = small_models.build_inputs(processor, small_models.sample_rows())
    shows = [bool(images) for _, images in small_models.sample_rows()]

    def logits(method: Any, **options: Any) -> tuple[Tensor, Any]:
        with method(model, processor) as run:
            out = model.generate(**batch, **GREEDY, **options, return_dict_in_generate=True, output_logits=True)
        return torch.stack(out.logits), run.report

    vanilla = torch.stack(model.generate(**batch, **GREEDY, return_dict_in_generate=True, output_logits=True).logits)
    idle, quiet = logits(off)
    assert torch.equal(idle, vanilla) and quiet.expected and not quiet.fired
    changed, report = logits(on)
    assert [row.fired for row in report.rows] == shows and report.layers == layers
    for row, acted in enumerate(shows):
        assert torch.equal(changed[:, row], vanilla[:, row]) is not acted
    _, report = logits(on, num_beams=2)
    assert [row.fired for row in report.rows] == shows
    torch.testing.assert_close(logits(on, use_cache=False)[0], changed, rtol=1e-3, atol=2e-3)
