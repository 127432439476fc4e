"""Session: hooks on and off, what a pass looks like, reports per call, and what keeps a method from acting."""

import json
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessor

from airvlm.methods import CropBlend
from airvlm.methods.base import Method
from airvlm.models.loading import fingerprint
from airvlm.models.parts import ModelParts
from airvlm.report import Report
from airvlm.runtime.intervention import Context, ForwardPass, GenerateCall, Intervention, without_methods
from airvlm.runtime.session import MethodInactiveWarning, MethodNotApplied
from airvlm.testing import small_models

GREEDY = {"max_new_tokens": 3, "min_new_tokens": 3, "do_sample": False}


class Scaling(Intervention):
    """Scales one feed-forward and the decoder's input, and records what it is shown."""

    ffn_layers, residual_layers, acts_in_decode = (1,), (0,), True

    method: "Scale"

    def __init__(self, method: "Scale", context: Context) -> None:
        super().__init__(method, context)
        self.passes: list[ForwardPass] = []
        self.sites: list[tuple[str, int]] = []
        self.calls: list[GenerateCall] = []

    def on_call(self, call: GenerateCall) -> None:
        self.calls.append(call)

    def processors(self, call: GenerateCall) -> list[LogitsProcessor]:
        return [Favor(self.method.favorite)] if self.method.favorite is not None else []

    def on_pass(self, fp: ForwardPass) -> None:
        self.passes.append(fp)

    def embeds(self, fp: ForwardPass, inputs_embeds: Tensor) -> Tensor:
        return inputs_embeds * self.method.embeds

    def residual(self, fp: ForwardPass, layer: int, h: Tensor) -> None:
        self.sites.append(("residual", h.shape[1]))

    def ffn(self, fp: ForwardPass, layer: int, x: Tensor, y: Tensor) -> Tensor:
        self.sites.append(("ffn", y.shape[1]))
        return y * self.method.factor

    def report(self) -> Report:
        one = Report(self.method.to_json(), self.method.fires, None if self.method.fires else "it was told not to")
        return Report(one.method, one.fired, one.reason, rows=(one,) * self.passes[-1].batch_size)


class Favor(LogitsProcessor):
    def __init__(self, token: int) -> None:
        self.token = token

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        scores[:, self.token] += 1e4
        return scores


@dataclass(frozen=True)
class Scale(Method):
    name: ClassVar[str] = "test-scale"
    factor: float = 1.0
    embeds: float = 1.0
    favorite: int | None = None
    fires: bool = True

    def start(self, context: Context) -> Intervention:
        return Scaling(self, context)


@pytest.fixture
def llava() -> Iterator[Any]:
    model, processor = small_models.shared_model("llava")
    yield model, small_models.build_inputs(processor, small_models.sample_rows())


def logits(model: Any, batch: Any) -> Tensor:
    with torch.no_grad():
        out: Tensor = model(**batch).logits
    return out


def count_hooks(model: Any) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def compile_a_layer(model: Any) -> Any:
    model.get_decoder().layers[1].mlp.compile(backend="eager")
    return model


def compile_around(model: Any) -> Any:
    return torch.compile(model, backend="eager")


def compile_a_forward(model: Any) -> Any:
    layer = model.get_decoder().layers[0]
    layer.forward = torch.compile(layer.forward, backend="eager")
    return model


def replace_a_part(model: Any) -> Any:
    layers = model.get_decoder().layers
    layers[1] = torch.compile(layers[1], backend="eager")
    return model


def add_a_part(model: Any) -> Any:
    model.get_decoder().layers[0].added = torch.nn.Sequential(torch.compile(torch.nn.Linear(2, 2), backend="eager"))
    return model


# -- the block


def test_hooks_are_there_inside_and_gone_after(llava: Any) -> None:
    model, batch = llava
    before = logits(model, batch)
    count = count_hooks(model)
    with Scale(2.0)(model):
        assert count_hooks(model) == count + 4
        assert "generate" in vars(model)
        assert not torch.equal(logits(model, batch), before)
    assert count_hooks(model) == count
    assert "generate" not in vars(model)
    assert torch.equal(logits(model, batch), before)


def test_an_error_inside_reaches_the_caller_and_leaves_nothing_behind(llava: Any) -> None:
    model, batch = llava
    logits(model, batch)
    count = count_hooks(model)
    with pytest.raises(KeyError, match="mine"):
        with Scale(2.0)(model):
            raise KeyError("mine")
    assert count_hooks(model) == count and "generate" not in vars(model)


def test_an_error_while_opening_leaves_nothing_behind(llava: Any) -> None:
    model, batch = llava
    logits(model, batch)
    count = count_hooks(model)

    class Broken(Scaling):
        ffn_layers = (1, 99)

    @dataclass(frozen=True)
    class Breaking(Scale):
        def start(self, context: Context) -> Intervention:
            return Broken(self, context)

    with pytest.raises(IndexError):
        with Breaking()(model):
            pass
    assert count_hooks(model) == count and "generate" not in vars(model)
    with Scale(2.0)(model):  # the model is free again
        logits(model, batch)


def test_nested_blocks_both_act_and_end_in_order(llava: Any) -> None:
    model, batch = llava
    with Scale(2.0)(model), torch.no_grad():
        outer = logits(model, batch)
        with Scale(3.0)(model) as inner:
            both = logits(model, batch)
            model.generate(**batch, **GREEDY)
        assert torch.equal(logits(model, batch), outer)
    with Scale(6.0)(model):
        torch.testing.assert_close(logits(model, batch), both)
    assert inner.calls == 1


@pytest.mark.parametrize(
    "compiled",
    [compile_a_layer, compile_around, compile_a_forward, replace_a_part, add_a_part],
    ids=lambda f: f.__name__,
)
def test_what_is_compiled_after_a_first_session_is_found_by_the_next(
    compiled: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, processor = small_models.build("llava", num_hidden_layers=2)
    batch = small_models.build_inputs(processor, small_models.sample_rows())
    resets: list[bool] = []
    monkeypatch.setattr(torch.compiler, "reset", lambda: resets.append(True))
    for _ in range(2):
        with Scale(2.0)(model):
            logits(model, batch)
    assert not resets
    with Scale(2.0)(compiled(model)):
        assert resets == [True]  # graphs without the hooks
    assert resets == [True, True]  # and those with them


def test_a_session_is_opened_once_at_a_time(llava: Any) -> None:
    model, _ = llava
    run = Scale()(model)
    with run, pytest.raises(RuntimeError, match="already open"):
        run.__enter__()


def test_an_empty_block_is_no_error_but_has_no_report(llava: Any) -> None:
    model, _ = llava
    with Scale()(model) as run:
        pass
    with pytest.raises(MethodNotApplied, match="no forward pass"):
        _ = run.report


# -- reports


def test_deciding_not_to_act_warns_once_with_the_reason(llava: Any) -> None:
    model, batch = llava
    with pytest.warns(MethodInactiveWarning, match="test-scale did not act: it was told not to") as caught:
        with Scale(fires=False)(model) as run:
            logits(model, batch)
    assert len(caught) == 1
    assert not run.report.fired and not run.report.rows[0].fired


def test_a_method_that_acts_warns_of_nothing(llava: Any) -> None:
    model, batch = llava
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with Scale(2.0)(model) as run:
            logits(model, batch)
    assert run.report.fired and len(run.report.rows) == 4


def test_reports_tell_of_each_call_also_where_a_text_only_call_follows() -> None:
    model, processor = small_models.shared_model("llava")
    rows = small_models.sample_rows()
    with CropBlend(num_crops=3)(model, processor, images=[list(rows[0][1])]) as run:
        model.generate(**small_models.build_inputs(processor, rows[:1]), **GREEDY)
        first = run.report
        model.generate(**small_models.build_inputs(processor, rows[1:2]), **GREEDY)
    with_image, text_only = run.reports
    assert with_image.fired and with_image.tokens == first.tokens > 0 and with_image.crops
    assert not text_only.fired and text_only.reason == "there is no image in this row"
    assert not text_only.crops and text_only.tokens == 0
    whole = run.report
    assert whole.fired and whole.reason is None and (whole.calls, run.calls) == (2, 2)
    assert whole.tokens == with_image.tokens and whole.crops == with_image.crops
    assert "in 1 of 2 calls" in str(whole)


def test_reports_of_equal_calls_are_equal_and_sum_up() -> None:
    model, processor = small_models.shared_model("llava")
    rows = small_models.sample_rows()
    batch = small_models.build_inputs(processor, rows)
    with CropBlend(num_crops=3)(model, processor, images=[list(own) for _, own in rows]) as run:
        model.generate(**batch, **GREEDY)
        model.generate(**batch, **GREEDY)
    one, two = run.reports
    assert (one.tokens, one.passes, one.norm_ratio) == (two.tokens, two.passes, two.norm_ratio)
    assert run.report.tokens == 2 * one.tokens and run.report.passes == 2
    assert run.report.norm_ratio is not None and one.norm_ratio is not None
    assert run.report.norm_ratio.mean == pytest.approx(one.norm_ratio.mean)
    assert [len(report.rows) for report in run.reports] == [4, 4] and not run.report.rows


# -- what could keep it from acting


def test_a_prompt_without_image_tokens_raises(llava: Any) -> None:
    model, _ = llava
    with pytest.raises(MethodNotApplied, match="image token 4"):
        with Scale()(model):
            model.generate(input_ids=torch.tensor([[1, 10, 11]]), **GREEDY)


def test_feed_forwards_that_are_bypassed_raise(llava: Any) -> None:
    model, batch = llava
    parts = ModelParts.of(model)
    spare = [torch.nn.Identity() for _ in parts.ffns]  # modules that are never called
    wrong = ModelParts(**{**vars(parts), "ffns": spare})
    with pytest.raises(MethodNotApplied, match="the ffn hook of some layers did not run"):
        with Scale()(model, parts=wrong):
            logits(model, batch)


def test_a_decoder_that_is_bypassed_raises(llava: Any) -> None:
    model, batch = llava
    wrong = ModelParts(**{**vars(ModelParts.of(model)), "decoder": torch.nn.Identity()})
    with pytest.raises(MethodNotApplied, match="Identity ran without its hooks"):
        with Scale()(model, parts=wrong):
            logits(model, batch)


def test_embeddings_without_token_ids_are_refused(llava: Any) -> None:
    model, batch = llava
    embeds = model.get_input_embeddings()(batch["input_ids"])
    with pytest.raises(ValueError, match="needs input_ids"):
        with Scale()(model):
            model.generate(inputs_embeds=embeds, **GREEDY)
    with pytest.raises(ValueError, match="needs input_ids"):
        with Scale()(model):
            model(inputs_embeds=embeds)


def test_continuous_batching_is_refused(llava: Any) -> None:
    model, batch = llava
    with pytest.raises(ValueError, match="continuous batching"):
        with Scale()(model):
            model.generate(**batch, cache_implementation="paged", **GREEDY)


@dataclass(frozen=True)
class GreedyOnly(Scale):
    name: ClassVar[str] = "test-greedy-only"
    decoding: ClassVar[tuple[str, ...]] = ("greedy",)


@pytest.mark.parametrize(
    ("options", "mode"),
    [
        ({"do_sample": True}, "sampling"),
        ({"num_beams": 2}, "beams"),
        ({"num_beams": 2, "do_sample": True}, "beams"),
        ({"generation_config": GenerationConfig(num_beams=2)}, "beams"),
    ],
)
def test_a_decoding_mode_that_is_not_declared_is_refused_by_name(llava: Any, options: Any, mode: str) -> None:
    model, batch = llava
    passes: list[int] = []
    handle = model.register_forward_pre_hook(lambda *_: passes.append(1))
    try:
        with GreedyOnly()(model):
            with pytest.raises(ValueError, match=f"test-greedy-only does not support this decoding mode: {mode}"):
                model.generate(**batch, max_new_tokens=2, **options)
            assert not passes
            model.generate(**batch, **GREEDY)
    finally:
        handle.remove()
    assert passes


# -- what a pass looks like


def run_passes(model: Any, batch: Any, **options: Any) -> list[ForwardPass]:
    with Scale()(model) as run:
        model.generate(**batch, **{**GREEDY, **options})
    intervention = run.intervention
    assert isinstance(intervention, Scaling)
    return intervention.passes


def test_prefill_then_decode_steps(llava: Any) -> None:
    model, batch = llava
    first, *rest = run_passes(model, batch)
    L = batch["input_ids"].shape[1]
    assert first.visual is not None and torch.equal(first.visual, batch["input_ids"] == 4)
    assert (first.length, first.is_prefill, first.is_decode, first.first_generated) == (L, True, False, L - 1)
    found = [(fp.visual, fp.length, fp.is_prefill, fp.is_decode, fp.first_generated) for fp in rest]
    assert found == [(None, 1, False, True, 0)] * 2
    assert [fp.step for fp in (first, *rest)] == [0, 1, 2]


def test_without_a_cache_every_pass_is_a_prefill_that_knows_the_prompt(llava: Any) -> None:
    model, batch = llava
    L = batch["input_ids"].shape[1]
    found = run_passes(model, batch, use_cache=False)
    assert [fp.length for fp in found] == [L, L + 1, L + 2]
    assert all(fp.is_prefill and fp.visual is not None and fp.first_generated == L - 1 for fp in found)


@pytest.mark.parametrize(
    "options",
    [
        {"num_beams": 3},
        {"num_return_sequences": 3, "do_sample": True},
        {"num_beams": 3, "num_return_sequences": 2},
    ],
)
def test_copies_of_a_row_are_beams(llava: Any, options: Any) -> None:
    model, batch = llava
    for fp in run_passes(model, batch, **options):
        assert (fp.batch_size, fp.beams) == (4, 3)


def test_a_call_knows_its_options_wherever_they_were_given(llava: Any) -> None:
    model, batch = llava
    config = GenerationConfig(num_beams=2, pad_token_id=0, **GREEDY)
    with Scale()(model) as run:
        model.generate(batch["input_ids"], config, **{k: v for k, v in batch.items() if k != "input_ids"})
    [call] = run.intervention.calls  # type: ignore[attr-defined]
    assert (call.batch_size, call.beams) == (4, 2)
    assert call.option("max_new_tokens") == 3
    assert call.option("eos_token_id") == 2  # the model's own
    assert call.option("nothing", "default") == "default"


def test_every_site_is_shown_in_every_pass(llava: Any) -> None:
    model, batch = llava
    with Scale()(model) as run:
        model.generate(**batch, **GREEDY)
    L = batch["input_ids"].shape[1]
    sites = run.intervention.sites  # type: ignore[attr-defined]
    assert sites == [("residual", L), ("ffn", L), ("residual", 1), ("ffn", 1), ("residual", 1), ("ffn", 1)]


class Recording(Intervention):
    """Records the shapes at the sites of attention."""

    attention_layers, head_layers = (2,), (2,)

    def __init__(self, method: Method, context: Context) -> None:
        super().__init__(method, context)
        self.shapes: dict[str, torch.Size] = {}

    def attention(self, fp: ForwardPass, layer: int, y: Tensor) -> Tensor:
        self.shapes["attention"] = y.shape
        self.stats.count(torch.ones(fp.batch_size))
        return 0 * y

    def heads(self, fp: ForwardPass, layer: int, o: Tensor) -> Tensor:
        self.shapes["heads"] = o.shape
        return 2 * o


@dataclass(frozen=True)
class Record(Method):
    name: ClassVar[str] = "test-record"

    def start(self, context: Context) -> Intervention:
        return Recording(self, context)


def test_attention_is_shown_per_head_and_as_a_whole(llava: Any) -> None:
    model, batch = llava
    B, L = batch["input_ids"].shape
    before = logits(model, batch)
    seen: list[Tensor] = []

    def look(module: Any, args: Any, kwargs: Any, out: Any) -> None:
        seen.append(out[0])

    with Record()(model) as run:
        handle = model.get_decoder().layers[2].self_attn.register_forward_hook(look, with_kwargs=True)
        changed = logits(model, batch)
        handle.remove()
    assert isinstance(run.intervention, Recording)
    assert run.intervention.shapes == {
        "attention": (B, L, small_models.WIDTH),
        "heads": (B, L, 4, small_models.WIDTH // 4),
    }
    assert not seen[0].any(), "the output of the attention is what the method made of it"
    assert not torch.equal(changed, before) and torch.equal(logits(model, batch), before)


def test_passes_inside_without_methods_are_seen_by_no_method(llava: Any) -> None:
    model, batch = llava
    vanilla = logits(model, batch)
    with Scale(2.0)(model) as run:
        logits(model, batch)
        with without_methods(), torch.no_grad():
            assert torch.equal(logits(model, batch), vanilla)
            model.generate(**batch, **GREEDY)
    assert isinstance(run.intervention, Scaling)
    assert len(run.intervention.passes) == 1 and run.calls == 0


def test_logits_processors_join_those_of_the_caller(llava: Any) -> None:
    model, batch = llava
    with Scale(favorite=20)(model):
        ids = model.generate(**batch, **GREEDY)
    assert (ids[:, -3:] == 20).all()
    with Scale(favorite=20)(model):
        ids = model.generate(**batch, logits_processor=[Favor(21), Favor(21)], **GREEDY)
    assert (ids[:, -3:] == 21).all()
    assert not (model.generate(**batch, **GREEDY)[:, -3:] == 20).all()


def test_a_calibration_of_another_model_warns(llava: Any, tmp_path: Path) -> None:
    model, processor = small_models.shared_model("llava")
    path = tmp_path / "calibration.json"
    own = fingerprint(ModelParts.of(model).model)
    for written, warns in ((own, 0), ("another", 1)):
        content = {"method": CropBlend().to_json(), "model": {"fingerprint": written}}
        path.write_text(json.dumps(content))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            Method.load(path)(model, processor)
        assert sum("calibrated on" in str(w.message) for w in caught) == warns


@torch.no_grad()
def test_a_decoder_that_is_called_on_its_own_is_left_alone(llava: Any) -> None:
    model, batch = llava
    decoder = model.get_decoder()
    embeds = torch.randn(1, 3, small_models.WIDTH, generator=torch.Generator().manual_seed(0))
    expected = decoder(inputs_embeds=embeds).last_hidden_state
    with Scale(embeds=2.0)(model):
        logits(model, batch)
        assert torch.equal(decoder(inputs_embeds=embeds).last_hidden_state, expected)


def test_experts_that_see_all_tokens_as_one_sequence_are_shown_rows_and_positions(llava: Any) -> None:
    model, batch = llava
    shape = (*batch["input_ids"].shape, small_models.WIDTH)
    x, y = torch.randn(2, *shape, generator=torch.Generator().manual_seed(0))
    shown = []

    class Shown(Scaling):
        def ffn(self, fp: ForwardPass, layer: int, x: Tensor, y: Tensor) -> Tensor:
            shown.append((x, y))
            return 2 * y

    class Show(Scale):
        def start(self, context: Context) -> Intervention:
            return Shown(self, context)

    with Show()(model) as run:
        logits(model, batch)
        new = run._on_site("ffn", 1, y.flatten(0, 1), x.flatten(0, 1))
    assert torch.equal(shown[-1][0], x) and torch.equal(shown[-1][1], y)
    assert new is not None and torch.equal(new, 2 * y.flatten(0, 1))
