"""Changed attention scores: nothing is left behind, and no more is computed than needed."""

import sys
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface

from airvlm.methods.base import Method
from airvlm.methods.templates.attention import AttentionIntervention
from airvlm.methods.vaf import VAF
from airvlm.models.parts import ModelParts
from airvlm.runtime import attention, intervention
from airvlm.runtime.attention import AttentionChange, attention_modules, fit_keys
from airvlm.runtime.intervention import Context, ForwardPass, Intervention
from airvlm.runtime.probe import run_probe
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
    assert fit_keys(torch.tensor([[1.0, 2.0, 3.0]]), T, total)[0].tolist() == expected


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


# -- every kind of change against attention written out by hand

LAYER = 1  # the one that is changed


def written_out(model: Any, batch: Any, scores: Any = None, probabilities: Any = None) -> Tensor:
    """Logits (B, L, V) of a plain pass with eager attention, whose last query is changed in one layer by hand."""
    parts = ModelParts.of(model)
    chosen = attention_modules(parts)[LAYER]
    source: Any = sys.modules[type(chosen).__module__]
    visual = (batch["input_ids"] == parts.image_token_id)[:, None, None]  # (B, 1, 1, T)
    kept = source.eager_attention_forward

    def eager(module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scaling: float, **_: Any) -> Any:
        groups = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        s = q @ k.mT * scaling
        last = torch.zeros(s.shape[-2], 1, dtype=torch.bool)
        last[-1] = True
        if module is chosen and scores is not None:
            s = torch.where(last, scores(s, visual), s)
        p = (s + mask).softmax(-1)
        if module is chosen and probabilities is not None:
            p = torch.where(last, probabilities(p, visual), p)
        return (p @ v).transpose(1, 2).contiguous(), p

    source.eager_attention_forward = eager
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        with torch.no_grad():
            logits: Tensor = model(**batch).logits
    finally:
        source.eager_attention_forward = kept
        model.set_attn_implementation(before)
    return logits


@dataclass(frozen=True)
class Edit(Method):
    """Changes the last query of one layer in the way that a test asks for."""

    name: ClassVar[str] = "test-edit"
    make: ClassVar[Any] = None  # (intervention) -> AttentionChange

    def start(self, context: Context) -> Intervention:
        return _Edit(self, context)


class _Edit(AttentionIntervention):
    method: Edit
    span = (LAYER,)

    def on_pass(self, fp: ForwardPass) -> None:
        super().on_pass(fp)
        self.count_queries(fp)

    def attention_of(self, layer: int) -> AttentionChange | None:
        return type(self.method).make(self)


def run_edit(model: Any, batch: Any, make: Any) -> Tensor:
    kind = type("One", (Edit,), {"make": staticmethod(make)})
    with kind()(model) as run, torch.no_grad():
        logits: Tensor = model(**batch).logits
    assert run.report.fired
    return logits


PER_HEAD = torch.tensor([0.5, -0.3, 0.0, 2.0])
CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "scale": (
        lambda i: i.change(weight=0.7 * i.visual_keys.float(), mode="scale"),
        {"scores": lambda s, v: s * (1 + 0.7 * v)},
    ),
    "abs": (
        lambda i: i.change(weight=0.7 * i.visual_keys.float(), mode="abs"),
        {"scores": lambda s, v: s + 0.7 * v * s.abs()},
    ),
    "mean over heads": (
        lambda i: i.change(weight=0.7 * i.visual_keys.float(), mode="mean_abs"),
        {"scores": lambda s, v: s + 0.7 * v * s.abs().mean(1, keepdim=True)},
    ),
    "weights per head": (
        lambda i: i.change(weight=PER_HEAD[None, :, None] * i.visual_keys.float()[:, None], mode="abs"),
        {"scores": lambda s, v: s + PER_HEAD[None, :, None, None] * v * s.abs()},
    ),
    "scores": (lambda i: i.change(scores=lambda s: s.flip(1)), {"scores": lambda s, v: s.flip(1)}),
    "probabilities": (
        lambda i: i.change(probabilities=lambda p: p.square() / p.square().sum(-1, keepdim=True)),
        {"probabilities": lambda p, v: p.square() / p.square().sum(-1, keepdim=True)},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_change_is_the_one_that_is_written_out_by_hand(case: str) -> None:
    model, processor = small_models.build("llava")
    assert attention_modules(ModelParts.of(model))[0].config.num_attention_heads == len(PER_HEAD)
    batch = small_models.build_inputs(processor, [row for row in small_models.sample_rows() if row[1]])
    make, by_hand = CASES[case]
    plain = written_out(model, batch)
    expected = written_out(model, batch, **by_hand)
    found = run_edit(model, batch, make)
    real = batch["attention_mask"].bool()
    torch.testing.assert_close(found[real], expected[real], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found[:, :-1][real[:, :-1]], plain[:, :-1][real[:, :-1]], rtol=1e-4, atol=1e-4)
    assert (expected[:, -1] - plain[:, -1]).abs().amax(-1).min() > 1e-3  # in every row


def test_hidden_keys_get_no_attention_from_any_query() -> None:
    model, processor = small_models.build("llava")
    batch = small_models.build_inputs(processor, [row for row in small_models.sample_rows() if row[1]])

    def hide_visual(i: Any) -> AttentionChange:
        return AttentionChange(i.total, hidden_keys=i.visual_keys.bool())

    found = run_edit(model, batch, hide_visual)
    parts = ModelParts.of(model)
    chosen = attention_modules(parts)[LAYER]
    visual = (batch["input_ids"] == parts.image_token_id)[:, None, None]

    def hide(module: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        mask = kwargs["attention_mask"]
        hidden = mask & ~visual if mask.dtype == torch.bool else mask.masked_fill(visual, torch.finfo(mask.dtype).min)
        return args, {**kwargs, "attention_mask": hidden}

    handle = chosen.register_forward_pre_hook(hide, with_kwargs=True)
    with torch.no_grad():
        expected = model(**batch).logits
    handle.remove()
    torch.testing.assert_close(found[:, -1], expected[:, -1], rtol=1e-4, atol=1e-4)
    with torch.no_grad():
        assert (model(**batch).logits[:, -1] - expected[:, -1]).abs().max() > 1e-3


@pytest.mark.parametrize("family", ["llava", "qwen2_5_vl", "gemma3"])
def test_attention_of_the_last_query_is_read_without_eager_attention(family: str) -> None:
    model, processor = small_models.build(family)
    batch = small_models.build_inputs(processor, small_models.sample_rows()[:3])  # not as many rows as heads
    parts = ModelParts.of(model)
    layers = range(len(parts.layers))
    probe = run_probe(parts, dict(batch), attention=list(layers))
    assert model.config.get_text_config()._attn_implementation == "sdpa"
    model.set_attn_implementation("eager")
    with torch.no_grad():
        expected = model(**batch, output_attentions=True).attentions
    for layer in layers:
        torch.testing.assert_close(probe.attention[layer], expected[layer][:, :, -1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("all_positions", [False, True])
def test_states_of_a_layer_are_read_at_the_last_position_or_at_all(all_positions: bool) -> None:
    model, processor = small_models.build("llava")
    batch = small_models.build_inputs(processor, small_models.sample_rows()[:3])
    probe = run_probe(ModelParts.of(model), dict(batch), sites={"residual": [LAYER]}, all_positions=all_positions)
    with torch.no_grad():
        expected = model(**batch, output_hidden_states=True).hidden_states[LAYER + 1]
    found = probe.states["residual", LAYER]
    torch.testing.assert_close(found, expected if all_positions else expected[:, -1], rtol=1e-4, atol=1e-5)
