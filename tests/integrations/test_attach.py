"""attach and detach: the method in every call, the model as it was afterwards, threads in turn."""

import copy
import gc
import inspect
import io
import pickle
import threading
import weakref
from typing import Any

import pytest
import torch

import airvlm
from airvlm import VAF, VLM, CropBlend, ModelInUseError, Report, tiny
from airvlm.inputs.remember import is_wrapped
from airvlm.runtime.contexts import ActiveContexts
from airvlm.testing import small_models
from tests.all_families import FAMILIES

GREEDY = {"max_new_tokens": 4, "do_sample": False}
BLEND = CropBlend(weight=0.5, num_crops=3)
TEXT = "USER: <image> is there a fork in the image ? ASSISTANT:"


def build(family: str = "llava") -> tuple[Any, Any]:
    return small_models.build(family)


def scores(model: Any, inputs: Any) -> torch.Tensor:
    out = model.generate(**inputs, **GREEDY, output_scores=True, return_dict_in_generate=True)
    return torch.stack(out.scores)


def count_hooks(model: Any) -> int:
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())


@pytest.mark.parametrize("family", FAMILIES)
def test_attached_equals_a_block_and_detached_equals_before(family: str) -> None:
    model, processor = build(family)
    image = small_models.sample_image(1)
    inputs = processor(text=[TEXT], images=[[image]])
    vanilla = scores(model, inputs)
    kind, state, hooks = type(model), set(model.__dict__), count_hooks(model)
    with BLEND(model, processor, images=[image]):
        expected = scores(model, inputs)
    assert not torch.equal(vanilla, expected)

    assert airvlm.attach(model, processor, BLEND) is model
    inputs = processor(text=[TEXT], images=[[image]])
    for _ in range(2):
        assert torch.equal(scores(model, inputs), expected)
    attachment = airvlm.get_attachment(model)
    assert attachment is not None
    assert attachment.report is not None
    assert attachment.report.fired
    assert count_hooks(model) == hooks

    assert airvlm.detach(model) is model
    assert airvlm.get_attachment(model) is None
    assert torch.equal(scores(model, inputs), vanilla)
    assert type(model) is kind
    assert set(model.__dict__) == state
    assert not is_wrapped(processor)


def test_a_call_without_an_image_is_the_models_own_and_says_so() -> None:
    model, processor = build()
    inputs = processor(text=["USER: how many . ASSISTANT:"])
    vanilla = scores(model, inputs)
    airvlm.attach(model, processor, BLEND)
    assert torch.equal(scores(model, inputs), vanilla)
    attachment = airvlm.get_attachment(model)
    assert attachment is not None
    assert attachment.report is not None
    assert attachment.report.reason == "this call shows no image"


def test_a_call_that_raises_leaves_nothing() -> None:
    model, processor = build("qwen2_vl")
    image = small_models.sample_image(1)
    plain = dict(processor(text=[TEXT], images=[[image]]))
    vanilla = scores(model, plain)
    airvlm.attach(model, processor, BLEND)
    with pytest.raises(ValueError, match=r"airvlm\.wrap"):  # these inputs were made before the processor was wrapped
        scores(model, plain)
    assert ActiveContexts.of(model) is None
    assert "generate" not in model.__dict__
    airvlm.detach(model)
    assert torch.equal(scores(model, plain), vanilla)


def test_threads_take_turns_and_each_gets_its_own_answer() -> None:
    model, processor = build()
    airvlm.attach(model, processor, BLEND)
    batches = [processor(text=[TEXT], images=[[small_models.sample_image(seed)]]) for seed in range(6)]
    expected = [scores(model, inputs) for inputs in batches]
    found: dict[int, Any] = {}

    def work(number: int) -> None:
        try:
            found[number] = [torch.equal(scores(model, batches[number]), expected[number]) for _ in range(4)]
        except BaseException as error:
            found[number] = error

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == {number: [True] * 4 for number in range(6)}


def test_every_report_is_handed_over() -> None:
    model, processor = build()
    reports: list[Report] = []
    airvlm.attach(model, processor, BLEND, on_report=reports.append)
    for seed in (1, 2):
        scores(model, processor(text=[TEXT], images=[[small_models.sample_image(seed)]]))
    assert [report.fired for report in reports] == [True, True]
    assert reports[0].crops != reports[1].crops


def test_a_block_replaces_the_attached_method_while_it_is_open() -> None:
    model, processor = build()
    image = small_models.sample_image(1)
    inputs = processor(text=[TEXT], images=[[image]])
    with VAF()(model, processor):
        expected = scores(model, inputs)
    airvlm.attach(model, processor, BLEND)
    with VAF()(model, processor) as run:
        assert torch.equal(scores(model, inputs), expected)
    assert run.calls == 1
    attachment = airvlm.get_attachment(model)
    assert attachment is not None
    assert attachment.report is None


def test_forward_passes_are_the_models_own() -> None:
    model, processor = build()
    inputs = processor(text=[TEXT], images=[[small_models.sample_image(1)]])
    with torch.no_grad():
        vanilla = model(**inputs).logits
        airvlm.attach(model, processor, BLEND)
        assert torch.equal(model(**inputs).logits, vanilla)


def test_copies_pickles_and_saved_models_are_plain(tmp_path: Any) -> None:
    model, processor = build("qwen2_vl")  # others have hooks of transformers' own after a call, which pickle refuses
    kind = type(model)
    inputs = dict(processor(text=[TEXT], images=[[small_models.sample_image(1)]]))
    vanilla = scores(model, inputs)
    airvlm.attach(model, processor, BLEND)
    assert isinstance(model, kind)
    scores(model, processor(text=[TEXT], images=[[small_models.sample_image(1)]]))
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    copies = [
        copy.deepcopy(model),
        pickle.loads(pickle.dumps(model)),
        torch.load(buffer, weights_only=False),
    ]
    for other in copies:
        assert type(other) is kind
        assert torch.equal(scores(other, inputs), vanilla)
    model.save_pretrained(tmp_path / "attached")
    airvlm.detach(model)
    model.save_pretrained(tmp_path / "plain")
    for file in (tmp_path / "plain").iterdir():
        assert (tmp_path / "attached" / file.name).read_bytes() == file.read_bytes()


def test_an_attached_model_is_forgotten_like_any_other() -> None:
    model, processor = build()
    airvlm.attach(model, processor, BLEND)
    scores(model, processor(text=[TEXT], images=[[small_models.sample_image(1)]]))
    gone = weakref.ref(model)
    del model, processor
    gc.collect()
    assert gone() is None


def test_a_processor_stays_wrapped_while_another_model_needs_it() -> None:
    first, processor = build()
    second, _ = build()
    airvlm.attach(first, processor, BLEND)
    airvlm.attach(second, processor, BLEND)
    airvlm.detach(first)
    assert is_wrapped(processor)
    airvlm.detach(second)
    airvlm.wrap(processor)
    airvlm.attach(first, processor, BLEND)
    airvlm.detach(first)
    assert is_wrapped(processor), "it was wrapped before"


def test_what_cannot_be_is_refused() -> None:
    model, processor = build()
    with pytest.raises(ValueError, match="no method is attached"):
        airvlm.detach(model)
    with pytest.raises(ValueError, match="vanilla already"):
        airvlm.attach(model, processor, "vanilla")
    with BLEND(model, processor), pytest.raises(ModelInUseError, match="a block is open"):
        airvlm.attach(model, processor, BLEND)
    airvlm.attach(model, processor, "crop-blend")
    with pytest.raises(ValueError, match="on this model already"):
        airvlm.attach(model, processor, BLEND)
    with pytest.raises(AttributeError, match="cannot be replaced"):
        model.generate = print
    with pytest.raises(ModelInUseError, match="detach"):
        VLM(model, processor).ask(small_models.sample_image(1), "is there a fork ?")


def test_the_signature_and_a_streamer_in_a_thread() -> None:
    from transformers import AutoModelForImageTextToText, AutoProcessor, TextIteratorStreamer

    path = tiny.model_path()
    model = AutoModelForImageTextToText.from_pretrained(path).eval()
    processor = AutoProcessor.from_pretrained(path)
    signature = inspect.signature(model.generate)
    vanilla = airvlm.VLM(model, processor)
    scene = next(scene for scene in tiny.scenes("test") if scene.id == "test-1275").path
    expected = vanilla.describe(scene, method="crop-blend", max_new_tokens=40).text
    airvlm.attach(model, processor)
    assert inspect.signature(model.generate) == signature
    chat = [
        {
            "role": "user",
            "content": [
                {"type": "image", "image": str(scene)},
                {"type": "text", "text": "Please describe this image in detail."},
            ],
        }
    ]
    inputs = processor.apply_chat_template(
        chat, add_generation_prompt=True, tokenize=True, return_dict=True, return_tensors="pt"
    )
    streamer = TextIteratorStreamer(processor.tokenizer, skip_prompt=True, skip_special_tokens=True, timeout=20)
    options = {**inputs, "max_new_tokens": 40, "do_sample": False, "streamer": streamer}
    thread = threading.Thread(target=model.generate, kwargs=options)
    thread.start()
    text = "".join(streamer)
    thread.join()
    assert text.strip() == expected
