"""Open sessions and threads: one thread at a time, no call under a method it did not ask for, none without its own."""

import copy
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import TextIteratorStreamer

from airvlm.methods import VAF, CropBlend
from airvlm.runtime.session import ModelInUseError
from airvlm.testing import small_models

GREEDY = {"max_new_tokens": 3, "min_new_tokens": 3, "do_sample": False}


@pytest.fixture
def llava() -> Any:
    model, processor = small_models.build("llava")
    rows = small_models.sample_rows()[:1]
    return model, processor, small_models.build_inputs(processor, rows), [list(rows[0][1])]


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


def test_a_session_of_another_thread_is_refused_and_leaves_nothing_behind(llava: Any) -> None:
    model, processor, batch, images = llava

    def other() -> None:
        with VAF()(model):
            model.generate(**batch, **GREEDY)

    with CropBlend()(model, processor, images=images) as run:
        refused = in_thread(other)
        model.generate(**batch, **GREEDY)
    assert isinstance(refused, ModelInUseError) and "thread MainThread has crop-blend active" in str(refused)
    assert run.report.fired
    assert "generate" not in vars(model) and not model._forward_pre_hooks
    assert in_thread(other) is None


@pytest.mark.parametrize("call", ["generate", "forward"])
def test_a_call_of_another_thread_is_refused_instead_of_running_under_the_method(llava: Any, call: str) -> None:
    model, processor, batch, images = llava
    before = model.generate(**batch, **GREEDY)

    def plain() -> Any:
        return model.generate(**batch, **GREEDY) if call == "generate" else model(**batch)

    with CropBlend(weight=0.9)(model, processor, images=images) as run:
        refused = in_thread(plain)
        model.generate(**batch, **GREEDY)
    assert isinstance(refused, ModelInUseError) and "has crop-blend active" in str(refused)
    assert run.report.fired
    assert torch.equal(in_thread(lambda: model.generate(**batch, **GREEDY)), before)


def test_generate_looked_up_inside_a_block_raises_after_it(llava: Any) -> None:
    model, processor, batch, images = llava
    with CropBlend()(model, processor, images=images):
        taken = model.generate
        taken(**batch, **GREEDY)
    with pytest.raises(ModelInUseError, match="looked up inside a block of crop-blend that has ended"):
        taken(**batch, **GREEDY)
    with VAF()(model):
        with pytest.raises(ModelInUseError, match="that has ended"):
            taken(**batch, **GREEDY)
        with CropBlend()(model, processor, images=images):
            inner = model.generate
        with pytest.raises(ModelInUseError, match="of crop-blend that has ended"):
            inner(**batch, **GREEDY)
        model.generate(**batch, **GREEDY)


def test_a_thread_that_was_given_the_generate_of_the_block_may_stream(llava: Any) -> None:
    model, processor, batch, images = llava
    with CropBlend(weight=0.5)(model, processor, images=images):
        expected = model.generate(**batch, **GREEDY)
    text = processor.tokenizer.decode(expected[0, batch["input_ids"].shape[1] :], skip_special_tokens=True)
    with CropBlend(weight=0.5)(model, processor, images=images) as run:
        for target in (model.generate, run.generate):
            streamer = TextIteratorStreamer(processor.tokenizer, skip_prompt=True, skip_special_tokens=True, timeout=20)
            thread = threading.Thread(target=target, kwargs={**batch, **GREEDY, "streamer": streamer})
            thread.start()
            assert "".join(streamer).strip() == text.strip()
            thread.join()
    assert run.report.fired and run.calls == 2


def test_a_session_is_refused_while_a_stream_is_running(llava: Any) -> None:
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


def test_ending_a_block_while_a_stream_runs_stops_the_stream_and_raises(llava: Any) -> None:
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
    with pytest.raises(ModelInUseError, match="ended while generate was running"):
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
def test_ending_blocks_in_another_order_restores_everything_and_warns(llava: Any, methods: Any) -> None:
    model, processor, batch, images = llava
    before = model.generate(**batch, **GREEDY, return_dict_in_generate=True, output_logits=True).logits
    with methods[1](model, processor, images=images):
        alone = model(**batch).logits
    first, second = (method(model, processor, images=images) for method in methods)
    first.__enter__()
    second.__enter__()
    with pytest.warns(RuntimeWarning, match="ended before blocks that were opened after it"):
        first.__exit__(None, None, None)
    assert torch.equal(model(**batch).logits, alone)
    second.__exit__(None, None, None)
    after = model.generate(**batch, **GREEDY, return_dict_in_generate=True, output_logits=True).logits
    assert torch.equal(torch.stack(after), torch.stack(before))
    assert "generate" not in vars(model) and model.config._attn_implementation == "sdpa"


def test_threads_with_models_of_their_own_do_not_disturb_each_other(llava: Any) -> None:
    model, processor, batch, images = llava
    other, _ = small_models.build("llava")

    def work() -> Any:
        with VAF()(other) as run:
            other.generate(**batch, **GREEDY)
        return run.report.fired

    with CropBlend()(model, processor, images=images):
        assert in_thread(work) is True
        model.generate(**batch, **GREEDY)


def test_a_copy_that_would_keep_the_hooks_is_refused(llava: Any) -> None:
    model, processor, batch, images = llava
    with CropBlend()(model, processor, images=images):
        with pytest.raises(ModelInUseError, match="copy it before or after the block"):
            copy.deepcopy(model)
        with VAF()(model), pytest.raises(ModelInUseError, match=r"crop-blend\+vaf"):
            copy.deepcopy({"model": model})
    other = copy.deepcopy(model)
    assert torch.equal(other.generate(**batch, **GREEDY), model.generate(**batch, **GREEDY))
    assert "__deepcopy__" not in model.__dict__
