"""PAI against its two formulas: the decoder written out, and two plain passes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from airvlm.methods.pai import PAI
from airvlm.runtime.intervention import DISABLED, ForwardPass
from airvlm.testing import small_models
from tests.methods.reference import IMAGE, TOKENS, Written, answer, check_close, pass_over, row_inputs


def amplified(ids: Tensor, alpha: float, first_layer: int, row: int = 0) -> Tensor:
    """Logits (L, V): s + alpha |s| on the image's keys, for the prompt's last token and the answer's."""
    late = torch.arange(len(ids)) >= len(ids) - TOKENS - 1

    def raised(layer: int, s: Tensor) -> Tensor:
        change = alpha * s.abs() * (ids == IMAGE) * late[:, None]
        return s + change if layer >= first_layer else s

    return Written(row, scores=raised).run(ids)


def test_the_decoder_written_out_is_the_model() -> None:
    ids, logits, _ = answer(None)
    check_close(Written().run(ids)[-TOKENS - 1 : -1], logits)
    check_close(pass_over(ids)[-TOKENS - 1 : -1], logits)


@pytest.mark.parametrize("row", [0, 2])
@pytest.mark.parametrize("use_cache", [True, False])
def test_attention_is_raised_for_the_last_query_alone(row: int, use_cache: bool) -> None:
    ids, logits, report = answer(PAI(alpha=0.8, gamma=1.0), row=row, use_cache=use_cache)
    check_close(logits, amplified(ids, 0.8, 2, row)[-TOKENS - 1 : -1])
    assert report.layers == (2, 3) and report.passes == TOKENS


def test_all_layers_can_be_raised() -> None:
    ids, logits, _ = answer(PAI(alpha=0.8, gamma=1.0, layers=(0, 4)))
    check_close(logits, amplified(ids, 0.8, 0)[-TOKENS - 1 : -1])


def test_the_text_alone_is_subtracted_and_its_attention_is_not_raised() -> None:
    ids, logits, report = answer(PAI(alpha=0.8, gamma=1.5, beta=0.05))
    seen = amplified(ids, 0.8, 2)[-TOKENS - 1 : -1].log_softmax(-1)
    marks = torch.tensor([IMAGE])
    blind = pass_over(ids[~torch.isin(ids, marks)])[-TOKENS - 1 : -1].log_softmax(-1)
    expected = 1.5 * (seen - blind) + blind
    expected[seen < seen.amax(-1, keepdim=True) + math.log(0.05)] = torch.finfo(torch.float32).min
    kept = expected > -1e30
    assert torch.equal(logits > -1e30, kept)
    for found, wanted, row in zip(logits, expected, kept, strict=True):  # log-probabilities: equal up to a constant
        torch.testing.assert_close(found[row].softmax(0), wanted[row].softmax(0), rtol=1e-3, atol=1e-4)
    assert report.extra["likeliest_changed"] >= 0 and 0 <= report.extra["cut_off_share"] <= 1


def test_the_contrast_is_gamma_minus_one_of_contrastive_decoding() -> None:
    """gamma (log p - log p_u) + log p_u is (1 + a) log p - a log p_u with a = gamma - 1."""
    method = PAI(gamma=1.1)
    w, v = method.weights(torch.zeros(1), [torch.zeros(1)], None)  # type: ignore[arg-type]
    assert w == pytest.approx(1.1) and v == pytest.approx(-0.1)


def test_one_half_alone_can_be_switched_off_and_both_make_it_inactive() -> None:
    assert PAI(alpha=0.0, gamma=1.0).disabled_reason == "its alpha is 0 and its gamma is 1"
    assert PAI(alpha=0.0).disabled_reason is None and PAI(gamma=1.0).disabled_reason is None
    ids, logits, _ = answer(PAI(alpha=0.0, gamma=1.5, beta=0.0))
    seen, blind = pass_over(ids), pass_over(ids[ids != IMAGE])
    check_close(logits, (1.5 * seen[-TOKENS - 1 : -1] - 0.5 * blind[-TOKENS - 1 : -1]))


@pytest.mark.parametrize("faithful", [True, False])
def test_faithful_leaves_the_second_stream_where_it_was_when_beams_change_places(faithful: bool) -> None:
    model, _ = small_models.shared_model("llava")
    streams: list[Tensor] = []

    @dataclass(frozen=True)
    class Spy(PAI):
        def weights(self, l: Tensor, others: Sequence[Tensor], fp: ForwardPass) -> Sequence[float]:
            streams.append(others[0][:, -1])
            return super().weights(l, others, fp)

    fed: list[Tensor] = []  # what each beam's place was given, step by step

    def watch(m: nn.Module, args: object, kwargs: dict[str, Any]) -> None:
        if kwargs["input_ids"].shape[1] == 1 and len(kwargs["input_ids"]) == 3 and not DISABLED.get():
            fed.append(kwargs["input_ids"][:, 0])

    batch = row_inputs()
    hook = model.register_forward_pre_hook(watch, with_kwargs=True)
    with Spy(alpha=0.0, gamma=1.5, beta=0.0, faithful=faithful)(model):
        model.generate(**batch, max_new_tokens=TOKENS, do_sample=False, num_beams=3)
    hook.remove()
    prompt = batch["input_ids"][0]
    same = []
    for place in range(3):
        ids = torch.cat([prompt[prompt != IMAGE], torch.stack(fed)[:, place]])
        same.append(torch.allclose(streams[-1][place], pass_over(ids)[-1], rtol=1e-3, atol=2e-3))
    assert all(same) is faithful  # in place, tokens of several hypotheses follow each other


def test_wrong_options_are_refused() -> None:
    for options in ({"alpha": -1.0}, {"gamma": 0.5}, {"beta": 2.0}, {"layers": (3, 3)}):
        with pytest.raises(ValueError, match=next(iter(options))):
            PAI(**options)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="may end at 4"):
        answer(PAI(layers=(2, 9)))
