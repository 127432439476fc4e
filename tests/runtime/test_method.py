"""Method, run and hooks: configuration, what a pass looks like, and that nothing is left behind."""

import json
import warnings
from collections.abc import Iterator
from dataclasses import FrozenInstanceError, dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessor

from airvlm.methods import METHODS
from airvlm.methods.base import Method
from airvlm.models.loading import fingerprint
from airvlm.models.parts import ModelParts
from airvlm.report import Report
from airvlm.runtime.intervention import Call, Context, ForwardPass, Intervention, without_methods
from airvlm.runtime.session import MethodInactiveWarning, MethodNotApplied
from tests import tiny_models

GREEDY = {"max_new_tokens": 3, "min_new_tokens": 3, "do_sample": False}


class Scaling(Intervention):
    """Scales one feed-forward and the decoder's input, and keeps a diary."""

    layers, watched, decodes = (1,), (0,), True

    method: "Scale"

    def __init__(self, method: "Scale", context: Context) -> None:
        super().__init__(method, context)
        self.steps: list[ForwardPass] = []
        self.heard: list[tuple[str, int]] = []
        self.calls: list[Call] = []

    def on_call(self, call: Call) -> None:
        self.calls.append(call)

    def processors(self, call: Call) -> list[LogitsProcessor]:
        return [Favour(self.method.favourite)] if self.method.favourite is not None else []

    def on_pass(self, step: ForwardPass) -> None:
        self.steps.append(step)

    def embeds(self, step: ForwardPass, inputs_embeds: Tensor) -> Tensor:
        return inputs_embeds * self.method.embeds

    def hidden(self, step: ForwardPass, layer: int, h: Tensor) -> None:
        self.heard.append(("hidden", h.shape[1]))

    def ffn(self, step: ForwardPass, layer: int, x: Tensor, y: Tensor) -> Tensor:
        self.heard.append(("ffn", y.shape[1]))
        return y * self.method.factor

    def report(self) -> Report:
        one = Report(self.method.to_json(), self.method.fires, None if self.method.fires else "it was told not to")
        return Report(one.method, one.fired, one.reason, rows=(one,) * self.steps[-1].rows)


class Favour(LogitsProcessor):
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
    favourite: int | None = None
    fires: bool = True
    span: tuple[int, int] | None = None

    def start(self, context: Context) -> Intervention:
        return Scaling(self, context)


@pytest.fixture
def llava() -> Iterator[Any]:
    model, processor = tiny_models.shared("llava")
    yield model, tiny_models.inputs(processor, tiny_models.rows())


def logits(model: Any, batch: Any) -> Tensor:
    with torch.no_grad():
        out: Tensor = model(**batch).logits
    return out


def hooked(model: Any) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


# -- the configuration


def test_a_method_is_a_frozen_comparable_key() -> None:
    assert Scale(2.0) == Scale(2.0) != Scale(3.0)
    assert len({Scale(2.0), Scale(2.0), Scale(3.0)}) == 2
    with pytest.raises(FrozenInstanceError):
        Scale().factor = 2.0  # type: ignore[misc]


@pytest.mark.parametrize("name", [name for name, info in METHODS.items() if info.make is not None])
def test_every_method_round_trips_through_json(name: str) -> None:
    method = METHODS[name].default
    assert method is not None
    again = Method.from_json(json.loads(json.dumps(method.to_json())))
    assert again == method and hash(again) == hash(method) and type(again) is type(method)


def test_tuples_survive_json() -> None:
    method = Scale(span=(1, 3))
    assert Method.from_json(json.loads(json.dumps(method.to_json()))) == method


def test_an_unknown_name_in_json_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"unknown method 'telepathy'; known: .*air"):
        Method.from_json({"name": "telepathy"})


# -- the block


def test_hooks_are_there_inside_and_gone_after(llava: Any) -> None:
    model, batch = llava
    before = logits(model, batch)
    count = hooked(model)
    with Scale(2.0)(model):
        assert hooked(model) == count + 4
        assert "generate" in vars(model)
        assert not torch.equal(logits(model, batch), before)
    assert hooked(model) == count
    assert "generate" not in vars(model)
    assert torch.equal(logits(model, batch), before)


def test_an_error_inside_is_the_callers_own_and_leaves_nothing(llava: Any) -> None:
    model, batch = llava
    logits(model, batch)
    count = hooked(model)
    with pytest.raises(KeyError, match="mine"):
        with Scale(2.0)(model):
            raise KeyError("mine")
    assert hooked(model) == count and "generate" not in vars(model)


def test_an_error_while_opening_leaves_nothing(llava: Any) -> None:
    model, batch = llava
    logits(model, batch)
    count = hooked(model)

    class Broken(Scaling):
        layers = (1, 99)

    @dataclass(frozen=True)
    class Breaking(Scale):
        def start(self, context: Context) -> Intervention:
            return Broken(self, context)

    with pytest.raises(IndexError):
        with Breaking()(model):
            pass
    assert hooked(model) == count and "generate" not in vars(model)


def test_nested_blocks_both_act_and_unwind_in_order(llava: Any) -> None:
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


def test_a_run_opens_once_at_a_time(llava: Any) -> None:
    model, _ = llava
    run = Scale()(model)
    with run, pytest.raises(RuntimeError, match="already open"):
        run.__enter__()


def test_an_empty_block_asks_for_nothing_but_has_no_report(llava: Any) -> None:
    model, _ = llava
    with Scale()(model) as run:
        pass
    with pytest.raises(MethodNotApplied, match="no forward pass"):
        _ = run.report


def test_deciding_not_to_act_warns_once_with_the_reason(llava: Any) -> None:
    model, batch = llava
    with pytest.warns(MethodInactiveWarning, match="test-scale did not act: it was told not to") as caught:
        with Scale(fires=False)(model) as run:
            logits(model, batch)
    assert len(caught) == 1
    assert not run.report.fired and not run.row(0).fired


def test_acting_warns_of_nothing(llava: Any) -> None:
    model, batch = llava
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with Scale(2.0)(model) as run:
            logits(model, batch)
    assert run.report.fired and len(run.report.rows) == 4


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
    with pytest.raises(MethodNotApplied, match="feed-forwards ran without their hooks"):
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


# -- what a pass looks like


def steps(model: Any, batch: Any, **options: Any) -> list[ForwardPass]:
    with Scale()(model) as run:
        model.generate(**batch, **{**GREEDY, **options})
    intervention = run.intervention
    assert isinstance(intervention, Scaling)
    return intervention.steps


def test_prefill_then_decode_steps(llava: Any) -> None:
    model, batch = llava
    first, *rest = steps(model, batch)
    L = batch["input_ids"].shape[1]
    assert first.visual is not None and torch.equal(first.visual, batch["input_ids"] == 4)
    assert (first.length, first.fresh, first.decode, first.start) == (L, True, False, L - 1)
    assert [(s.visual, s.length, s.fresh, s.decode, s.start) for s in rest] == [(None, 1, False, True, 0)] * 2


def test_without_a_cache_every_pass_starts_afresh_and_knows_the_prompt(llava: Any) -> None:
    model, batch = llava
    L = batch["input_ids"].shape[1]
    found = steps(model, batch, use_cache=False)
    assert [s.length for s in found] == [L, L + 1, L + 2]
    assert all(s.fresh and s.visual is not None and s.start == L - 1 for s in found)


@pytest.mark.parametrize(
    "options",
    [
        {"num_beams": 3},
        {"num_return_sequences": 3, "do_sample": True},
        {"num_beams": 3, "num_return_sequences": 2},
    ],
)
def test_copies_of_a_row_are_counted(llava: Any, options: Any) -> None:
    model, batch = llava
    for step in steps(model, batch, **options):
        assert (fp.batch_size, fp.beams) == (4, 3)


def test_a_call_knows_its_options_wherever_they_were_given(llava: Any) -> None:
    model, batch = llava
    config = GenerationConfig(num_beams=2, pad_token_id=0, **GREEDY)
    with Scale()(model) as run:
        model.generate(batch["input_ids"], config, **{k: v for k, v in batch.items() if k != "input_ids"})
    [call] = run.intervention.calls  # type: ignore[attr-defined]
    assert (call.rows, call.expand) == (4, 2)
    assert call.option("max_new_tokens") == 3
    assert call.option("eos_token_id") == 2  # the model's own
    assert call.option("nothing", "default") == "default"


def test_watched_layers_and_feed_forwards_are_heard_in_every_pass(llava: Any) -> None:
    model, batch = llava
    with Scale()(model) as run:
        model.generate(**batch, **GREEDY)
    L = batch["input_ids"].shape[1]
    heard = run.intervention.heard  # type: ignore[attr-defined]
    assert heard == [("hidden", L), ("ffn", L), ("hidden", 1), ("ffn", 1), ("hidden", 1), ("ffn", 1)]


def test_passes_made_aside_are_seen_by_no_method(llava: Any) -> None:
    model, batch = llava
    vanilla = logits(model, batch)
    with Scale(2.0)(model) as run:
        logits(model, batch)
        with without_methods(), torch.no_grad():
            assert torch.equal(logits(model, batch), vanilla)
            model.generate(**batch, **GREEDY)
    assert run.passes.steps == 1 and run.calls == 0


def test_logits_processors_join_the_callers(llava: Any) -> None:
    model, batch = llava
    with Scale(favourite=20)(model):
        ids = model.generate(**batch, **GREEDY)
    assert (ids[:, -3:] == 20).all()
    with Scale(favourite=20)(model):
        ids = model.generate(**batch, logits_processor=[Favour(21), Favour(21)], **GREEDY)
    assert (ids[:, -3:] == 21).all()
    assert not (model.generate(**batch, **GREEDY)[:, -3:] == 20).all()


def test_a_calibration_of_another_model_warns(llava: Any, tmp_path: Path) -> None:
    model, _ = llava
    path = tmp_path / "calibration.json"
    own = fingerprint(ModelParts.of(model).model)
    for written, warns in ((own, 0), ("another", 1)):
        content = {"method": Scale(2.0).to_json(), "model": {"fingerprint": written}}
        path.write_text(json.dumps(content))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            Method.load(path)(model)
        assert sum("calibrated on" in str(w.message) for w in caught) == warns
