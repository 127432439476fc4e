"""Blocks and threads: one thread at a time, nothing mixed, nothing vanilla without a word."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor
from transformers import TextIteratorStreamer

from airvlm.methods import VAF, CropBlend
from airvlm.methods.base import option
from airvlm.methods.templates import FeedForwardMethod, LogitsMethod, VisualTokenMethod
from airvlm.runtime.intervention import Context
from airvlm.runtime.session import ModelInUseError
from tests import tiny_models

GREEDY = {"max_new_tokens": 3, "min_new_tokens": 3, "do_sample": False}


@pytest.fixture
def llava() -> Any:
    model, processor = tiny_models.build("llava")
    rows = tiny_models.rows()[:1]
    return model, processor, tiny_models.inputs(processor, rows), [list(rows[0][1])]


def in_thread(work: Callable[[], Any]) -> Any:
    """What `work` returns or raises in a thread of its own."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(work())
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return found[0]


def test_a_block_of_another_thread_is_refused_and_leaves_nothing(llava: Any) -> None:
    model, processor, batch, images = llava

    def other() -> None:
        with VAF()(model):
            model.generate(**batch, **GREEDY)

    with CropBlend()(model, processor, images=images) as run:
        refused = in_thread(other)
        model.generate(**batch, **GREEDY)
    assert isinstance(refused, ModelInUseError) and "MainThread has a block of air open" in str(refused)
    assert run.report.fired
    assert "generate" not in vars(model) and not model._forward_pre_hooks
    assert in_thread(other) is None


@pytest.mark.parametrize("call", ["generate", "forward"])
def test_a_plain_call_of_another_thread_raises_instead_of_getting_the_methods_evidence(llava: Any, call: str) -> None:
    model, processor, batch, images = llava
    before = model.generate(**batch, **GREEDY)

    def plain() -> Any:
        return model.generate(**batch, **GREEDY) if call == "generate" else model(**batch)

    with CropBlend(weight=0.9)(model, processor, images=images) as run:
        refused = in_thread(plain)
        model.generate(**batch, **GREEDY)
    assert isinstance(refused, ModelInUseError) and "block of air" in str(refused)
    assert run.report.fired
    assert torch.equal(in_thread(lambda: model.generate(**batch, **GREEDY)), before)


def test_a_generate_taken_inside_a_block_raises_after_it(llava: Any) -> None:
    model, processor, batch, images = llava
    with CropBlend()(model, processor, images=images):
        taken = model.generate
        taken(**batch, **GREEDY)
    with pytest.raises(ModelInUseError, match="taken inside a block of air, which has ended"):
        taken(**batch, **GREEDY)
    with VAF()(model):
        with pytest.raises(ModelInUseError, match="which has ended"):
            taken(**batch, **GREEDY)
        with CropBlend()(model, processor, images=images):
            inner = model.generate
        with pytest.raises(ModelInUseError, match="of air, which has ended"):
            inner(**batch, **GREEDY)
        model.generate(**batch, **GREEDY)


def test_a_stream_in_a_thread_that_was_given_the_blocks_generate_works(llava: Any) -> None:
    model, processor, batch, images = llava
    with CropBlend(weight=0.5)(model, processor, images=images):
        expected = model.generate(**batch, **GREEDY)
    text = processor.tokenizer.decode(expected[0, batch["input_ids"].shape[1] :], skip_special_tokens=True)
    with CropBlend(weight=0.5)(model, processor, images=images) as run:
        for target in (model.generate, run.generate):
            streamer = TextIteratorStreamer(processor.tokenizer, skip_prompt=True, skip_special_tokens=True)
            thread = threading.Thread(target=target, kwargs={**batch, **GREEDY, "streamer": streamer})
            thread.start()
            assert "".join(streamer).strip() == text.strip()
            thread.join()
    assert run.report.fired and run.calls == 2


def test_a_second_block_waits_for_the_stream_of_the_first(llava: Any) -> None:
    model, processor, batch, images = llava
    started, go_on = threading.Event(), threading.Event()

    def hold(module: Any, args: Any) -> None:
        started.set()
        go_on.wait(20)

    with CropBlend()(model, processor, images=images) as run:
        handle = model.register_forward_pre_hook(hold)
        thread = threading.Thread(target=run.generate, kwargs={**batch, **GREEDY})
        thread.start()
        started.wait(20)
        try:
            with pytest.raises(ModelInUseError, match="still running"):
                with VAF()(model):
                    pass
            with pytest.raises(ModelInUseError, match="MainThread"):
                model(**batch)
        finally:
            go_on.set()
            thread.join()
            handle.remove()
    assert run.report.fired


def test_leaving_a_block_in_the_middle_of_a_stream_stops_it_and_raises(llava: Any) -> None:
    model, processor, batch, images = llava
    before = model.generate(**batch, **GREEDY)
    started, go_on = threading.Event(), threading.Event()
    passes: list[int] = []
    failed: list[BaseException] = []

    def hold(module: Any, args: Any) -> None:
        passes.append(1)
        started.set()
        go_on.wait(20)

    def work(generate: Any) -> None:
        try:
            generate(**batch, **{**GREEDY, "max_new_tokens": 50, "min_new_tokens": 50})
        except BaseException as error:
            failed.append(error)

    handle = model.get_decoder().layers[0].register_forward_pre_hook(hold)
    with pytest.raises(ModelInUseError, match="was left while generate ran"):
        with CropBlend()(model, processor, images=images) as run:
            thread = threading.Thread(target=work, args=(run.generate,))
            thread.start()
            started.wait(20)
    go_on.set()
    thread.join()
    handle.remove()
    assert len(failed) == 1 and isinstance(failed[0], ModelInUseError)
    assert len(passes) == 1, "no pass ran without the method"
    assert torch.equal(model.generate(**batch, **GREEDY), before) and not model._forward_pre_hooks


@pytest.mark.parametrize("methods", [(CropBlend(weight=0.5), VAF()), (VAF(), VAF(enhance=0.9)), (VAF(), CropBlend())])
def test_leaving_in_another_order_restores_everything_and_says_so(llava: Any, methods: Any) -> None:
    model, processor, batch, images = llava
    before = model.generate(**batch, **GREEDY, return_dict_in_generate=True, output_logits=True).logits
    with methods[1](model, processor, images=images):
        alone = model(**batch).logits
    first, second = (method(model, processor, images=images) for method in methods)
    first.__enter__()
    second.__enter__()
    with pytest.warns(RuntimeWarning, match="left before blocks that were opened after it"):
        first.__exit__(None, None, None)
    assert torch.equal(model(**batch).logits, alone)
    second.__exit__(None, None, None)
    after = model.generate(**batch, **GREEDY, return_dict_in_generate=True, output_logits=True).logits
    assert torch.equal(torch.stack(after), torch.stack(before))
    assert "generate" not in vars(model) and model.config._attn_implementation == "sdpa"


def test_threads_with_models_of_their_own_do_not_meet(llava: Any) -> None:
    model, processor, batch, images = llava
    other, _ = tiny_models.build("llava")

    def work() -> Any:
        with VAF()(other) as run:
            other.generate(**batch, **GREEDY)
        return run.report.fired

    with CropBlend()(model, processor, images=images):
        assert in_thread(work) is True
        model.generate(**batch, **GREEDY)


# -- a whole method in a few lines


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

    def next_logits(self, logits: Tensor, step: Any, context: Context) -> Tensor:
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
def test_a_template_does_rows_beams_off_and_the_report(on: Any, off: Any, layers: tuple[int, ...]) -> None:
    model, processor = tiny_models.shared("qwen2_5_vl")
    batch = tiny_models.inputs(processor, tiny_models.rows())
    shows = [bool(images) for _, images in tiny_models.rows()]

    def logits(method: Any, **options: Any) -> tuple[Tensor, Any]:
        with method(model, processor) as run:
            out = model.generate(**batch, **GREEDY, **options, return_dict_in_generate=True, output_logits=True)
        return torch.stack(out.logits), run.report

    vanilla = torch.stack(model.generate(**batch, **GREEDY, return_dict_in_generate=True, output_logits=True).logits)
    idle, quiet = logits(off)
    assert torch.equal(idle, vanilla) and quiet.silent and not quiet.fired
    changed, report = logits(on)
    assert [row.fired for row in report.rows] == shows and report.layers == layers
    for row, acted in enumerate(shows):
        assert torch.equal(changed[:, row], vanilla[:, row]) is not acted
    _, report = logits(on, num_beams=2)
    assert [row.fired for row in report.rows] == shows
    torch.testing.assert_close(logits(on, use_cache=False)[0], changed, rtol=1e-3, atol=2e-3)
