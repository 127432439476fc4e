"""M3ID and its relatives against plain passes with and without the image."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from airvlm.methods.m3id import M3ID
from airvlm.testing.small_configs import END, START
from tests.methods.reference import IMAGE, TOKENS, answer, check_close, pass_over

MARKS = dict.fromkeys(("qwen2_5_vl", "glm4v", "gemma3"), (START, END))  # families whose configs name them
LOWEST = torch.finfo(torch.float32).min


def seen_and_blind(ids: Tensor, family: str = "llava", row: int = 0) -> tuple[Tensor, Tensor]:
    """Logits of the answer (TOKENS, V) with the image, and of the same text without it."""
    removed = torch.tensor([IMAGE, *MARKS.get(family, ())])
    blind = pass_over(ids[~torch.isin(ids, removed)], family, row)
    return pass_over(ids, family, row)[-TOKENS - 1 : -1], blind[-TOKENS - 1 : -1]


def weights(decay: float, first: int) -> Tensor:
    """(1 - g) / g with g = exp(-decay t), t = first, first + 1, ...: (TOKENS, 1)."""
    g = np.exp(-decay * (first + np.arange(TOKENS)))
    return torch.tensor((1 - g) / g, dtype=torch.float32)[:, None]


@pytest.mark.parametrize("family", ["llava", "qwen2_5_vl", "gemma3", "smolvlm", "internvl", "paligemma", "glm4v"])
def test_what_the_text_alone_says_is_subtracted_more_and_more(family: str) -> None:
    ids, logits, report = answer(M3ID(decay=0.5), family)
    seen, blind = seen_and_blind(ids, family)
    check_close(logits, seen + weights(0.5, 1) * (seen - blind))
    assert report.passes == TOKENS and report.extra["cut_off_share"] == 0


@pytest.mark.parametrize("options", [{"use_cache": False}, {"row": 2}], ids=["no cache", "two images"])
def test_it_is_the_same_without_a_cache_and_for_two_images(options: dict[str, Any]) -> None:
    ids, logits, _ = answer(M3ID(decay=0.5), **options)
    seen, blind = seen_and_blind(ids, row=options.get("row", 0))
    check_close(logits, seen + weights(0.5, 1) * (seen - blind))


def test_confident_steps_are_left_alone() -> None:
    ids, logits, _ = answer(M3ID(decay=0.5, gate=0.3))
    seen, blind = seen_and_blind(ids)
    unsure = seen.softmax(-1).amax(-1, keepdim=True) <= 0.3
    assert unsure.any() and not unsure.all(), "the model must be both sure and unsure for this to say something"
    check_close(logits, seen + unsure * weights(0.5, 1) * (seen - blind))


def test_faithful_counts_from_0_has_no_gate_and_adds_a_cut_off() -> None:
    """At the first token nothing but the cut-off is left of the code that most comparisons use."""
    ids, logits, _ = answer(M3ID(decay=0.5, gate=0.3, faithful=True))
    seen, blind = seen_and_blind(ids)
    expected = seen + weights(0.5, 0) * (seen - blind)
    expected[seen.softmax(-1) < 0.1 * seen.softmax(-1).amax(-1, keepdim=True)] = LOWEST
    check_close(logits, expected)
    kept = logits[0] > LOWEST / 2
    torch.testing.assert_close(logits[0][kept], seen[0][kept], rtol=1e-4, atol=1e-3)


def test_the_constant_schedule_is_vdd() -> None:
    ids, logits, _ = answer(M3ID(schedule="constant", alpha=0.7, beta=0.02))
    seen, blind = seen_and_blind(ids)
    expected = 1.7 * seen - 0.7 * blind
    expected[seen.softmax(-1) < 0.02 * seen.softmax(-1).amax(-1, keepdim=True)] = LOWEST
    check_close(logits, expected)


def test_the_entropy_schedule_is_lcd_with_the_models_own_decoder() -> None:
    ids, logits, _ = answer(M3ID(schedule="entropy", alpha=2.0))
    seen, blind = (x.double().numpy() for x in seen_and_blind(ids))
    p = np.exp(blind - blind.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    a = 2.0 / -(p * np.log(p)).sum(-1, keepdims=True)
    check_close(logits, torch.from_numpy((1 + a) * seen - a * blind).float())


def test_the_weight_grows_as_published_and_stays_finite() -> None:
    method, step = M3ID(), type("Step", (), {"step": 34})()
    l = torch.zeros(1, 1, 3)
    assert method.weights(l, [l], step)[0] == pytest.approx(np.exp(0.02 * 35), rel=1e-5)  # type: ignore[arg-type]
    step.step = 4000
    assert method.weights(l, [l], step)[0] == 1e4 + 1  # type: ignore[arg-type]


def test_wrong_options_are_refused() -> None:
    for options in ({"decay": -1.0}, {"gate": 2.0}, {"schedule": "linear"}):
        with pytest.raises(ValueError, match=next(iter(options))):
            M3ID(**options)  # type: ignore[arg-type]


def test_both_weights_at_0_are_off() -> None:
    assert M3ID(decay=0.0, alpha=0.0).disabled_reason == "its decay is 0 and its alpha is 0"
    assert M3ID(decay=0.0).disabled_reason is None and M3ID(alpha=0.0).disabled_reason is None
