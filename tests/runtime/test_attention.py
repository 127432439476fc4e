"""Changed attention scores: nothing is left behind, and no more is computed than needed."""

from typing import Any

import pytest
import torch
from torch import nn
from transformers import AttentionInterface, AttentionMaskInterface

from airvlm.methods.vaf import VAF
from airvlm.models.parts import ModelParts
from airvlm.runtime import attention, intervention
from airvlm.runtime.attention import ScoreChange, attention_modules
from airvlm.testing import small_models

FORMS = pytest.mark.parametrize("faithful", [False, True], ids=["sign-safe", "faithful"])


@FORMS
def test_the_vision_tower_and_the_registry_stay_as_they_were(faithful: bool) -> None:
    model, processor = small_models.shared_model("llava")
    batch = small_models.build_inputs(processor, small_models.sample_rows())
    before = list(AttentionInterface._global_mapping), list(AttentionMaskInterface._global_mapping)
    assert model.config.text_config._attn_implementation == "sdpa"
    with pytest.raises(KeyError), VAF(faithful=faithful)(model):
        assert model.config.vision_config._attn_implementation == "sdpa"
        assert model.config.text_config._attn_implementation != "sdpa"
        with torch.no_grad():
            model(**batch)
        raise KeyError
    assert model.config.text_config._attn_implementation == "sdpa"
    assert (list(AttentionInterface._global_mapping), list(AttentionMaskInterface._global_mapping)) == before


def test_scaled_keys_keep_the_kernel_and_never_hold_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    model, processor = small_models.shared_model("llava")
    batch = small_models.build_inputs(processor, small_models.sample_rows())

    def refuse(*_: Any) -> None:
        raise AssertionError("scores were materialized")

    monkeypatch.setattr(attention, "_attend_changed", refuse)
    with VAF(faithful=True)(model) as run:
        model.generate(**batch, max_new_tokens=3, do_sample=False)
    assert run.report.fired
    with pytest.raises(AssertionError, match="materialized"), VAF()(model):
        model.generate(**batch, max_new_tokens=1, do_sample=False)


def test_scores_are_computed_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    model, processor = small_models.shared_model("qwen2_5_vl")
    batch = small_models.build_inputs(processor, small_models.sample_rows())
    with VAF(enhance=0.6)(model), torch.no_grad():
        whole = model(**batch).logits
        monkeypatch.setattr(intervention, "CHUNK", 2)
        chunks = model(**batch).logits
    torch.testing.assert_close(chunks, whole, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("T", "total", "expected"), [(5, 5, [1, 2, 3, 0, 0]), (7, 5, [1, 2, 3, 0, 0, 0, 0]), (3, 5, [3, 0, 0])]
)
def test_weights_follow_static_and_sliding_caches(T: int, total: int, expected: list[int]) -> None:
    change = ScoreChange(torch.tensor([[1.0, 2.0, 3.0]]), torch.ones(1, 1, dtype=torch.bool), 0, True)
    assert change.fit_weight(T, total)[0].tolist() == expected


def test_a_model_whose_attention_is_elsewhere_is_refused() -> None:
    parts = ModelParts.of(small_models.shared_model("llava")[0])
    wrong = ModelParts(**{**vars(parts), "layers": [nn.Linear(2, 2)]})
    with pytest.raises(ValueError, match="does not go through transformers' AttentionInterface"):
        attention_modules(wrong)


def test_flex_attention_is_refused() -> None:
    model, _ = small_models.build("llava")
    model.config.text_config._attn_implementation_internal = "flex_attention"
    with pytest.raises(ValueError, match="attn_implementation='sdpa'"):
        with VAF()(model):
            pass
