"""transformers' pipeline inside a `with` block, and our own task: both give the answers of VLM."""

import threading
from typing import Any

import pytest
import torch
import transformers

import airvlm
from airvlm import VAF, VLM, CropBlend
from airvlm.inputs.images import load_image
from airvlm.integrations.pipeline import TASK
from airvlm.tiny import questions, scenes

GREEDY = {"max_new_tokens": 24, "return_full_text": False}


@pytest.fixture(scope="module")
def vlm() -> VLM:
    return VLM.load("tiny")


@pytest.fixture(scope="module")
def asked() -> list[tuple[Any, str]]:
    by_id = {scene.id: scene for scene in scenes("test")}
    items = questions("test", "random")[:24:6]
    return [(load_image(by_id[item.scene].path), item.text) for item in items] + [
        (load_image(scene.path), "Please describe this image in detail.") for scene in scenes("test")[4:12]
    ]


def _chat(image: Any, question: str) -> list[dict[str, Any]]:
    content = [{"type": "image", "image": image}, {"type": "text", "text": question}]
    return [{"role": "user", "content": content}]


def _text(records: list[dict[str, Any]]) -> str:
    return records[0]["generated_text"].strip()


@pytest.mark.slow
def test_the_ordinary_pipeline_inside_a_block_says_what_vlm_says(vlm, asked):
    pipe = transformers.pipeline("image-text-to-text", model=vlm.model, processor=vlm.processor)
    changed = 0
    for image, question in asked:
        expected = vlm.ask(image, question, method=CropBlend(), max_new_tokens=24)
        with CropBlend()(vlm.model, vlm.processor, images=[image]) as run:
            assert _text(pipe(text=_chat(image, question), **GREEDY)) == expected.text
        assert run.report.fired
        changed += vlm.ask(image, question, max_new_tokens=24).text != expected.text
    assert changed, "no answer differs from vanilla: the test could not tell them apart"
    image, question = asked[0]
    after = _text(pipe(text=_chat(image, question), **GREEDY))
    assert after == vlm.ask(image, question, max_new_tokens=24).text


@pytest.mark.slow
@pytest.mark.parametrize("method", ["crop-blend:weight=0.5", VAF(), "vanilla"])
def test_our_task_says_what_vlm_says_and_reports(vlm, asked, method):
    pipe = airvlm.pipeline(vlm.model, processor=vlm.processor, method=method)
    chosen = airvlm.get_method(method)
    records = pipe(text=[_chat(image, question) for image, question in asked], **GREEDY)
    expected = list(vlm.batch(asked, method=chosen, max_new_tokens=24, progress=False))
    assert [_text(record) for record in records] == [answer.text for answer in expected]
    reports = [record[0]["airvlm"] for record in records]
    if chosen is None:
        assert reports == [None] * len(asked)
    else:
        assert [report["fired"] for report in reports] == [answer.report.fired for answer in expected]
        assert all(report["fired"] for report in reports)


def test_the_method_may_be_chosen_in_each_call(vlm, asked):
    pipe = airvlm.pipeline(vlm.model, processor=vlm.processor)
    image, question = asked[-1]
    for method in (None, CropBlend(weight=0.5)):
        spelled = "vanilla" if method is None else method
        record = pipe(text=_chat(image, question), method=spelled, **GREEDY)
        assert _text(record) == vlm.ask(image, question, method=method, max_new_tokens=24).text


def test_texts_beside_their_images_are_taken_too(vlm, asked):
    pipe = airvlm.pipeline(vlm.model, processor=vlm.processor)
    image, question = asked[-1]
    expected = vlm.ask(image, question, method=CropBlend(), max_new_tokens=24)
    record = pipe(images=image, text=expected.prompt, **GREEDY)
    assert _text(record) == expected.text
    assert record[0]["airvlm"]["fired"]


def test_the_task_is_transformers_own_from_then_on(vlm, asked):
    airvlm.pipeline(vlm.model, processor=vlm.processor)
    pipe = transformers.pipeline(TASK, model=vlm.model, processor=vlm.processor, method="crop-blend")
    image, question = asked[-1]
    expected = vlm.ask(image, question, method=CropBlend(), max_new_tokens=24)
    assert _text(pipe(text=_chat(image, question), **GREEDY)) == expected.text


def test_a_streamer_in_a_thread_hears_the_same_words(vlm, asked):
    for image, question in asked[-2:]:
        expected = vlm.ask(image, question, method=CropBlend(), max_new_tokens=24)
        row = vlm.builder.read(image, question)
        inputs = vlm.builder.build([row], pixels=True)
        streamer = transformers.TextIteratorStreamer(
            vlm.processor.tokenizer, skip_prompt=True, skip_special_tokens=True, timeout=20
        )
        with torch.no_grad(), CropBlend()(vlm.model, vlm.processor, images=[image]) as run:
            options = {**inputs, "streamer": streamer, "max_new_tokens": 24, "do_sample": False}
            thread = threading.Thread(target=vlm.model.generate, kwargs=options)
            thread.start()
            heard = "".join(streamer)
            thread.join()
        assert heard.strip() == expected.text
        assert run.report.fired


def test_assisted_decoding_and_continuous_batching_raise(vlm, asked):
    image, question = asked[0]
    pipe = airvlm.pipeline(vlm.model, processor=vlm.processor)
    with pytest.raises(ValueError, match="continuous batching"):
        pipe(text=_chat(image, question), generate_kwargs={"cache_implementation": "paged"}, **GREEDY)
    inputs = vlm.builder.build([vlm.builder.read(image, question)], pixels=True)
    for assistant in (vlm.model, VLM.load("tiny").model):
        with pytest.raises(ValueError, match="assisted decoding"):
            with CropBlend()(vlm.model, vlm.processor, images=[image]):
                vlm.model.generate(**inputs, assistant_model=assistant, max_new_tokens=4)
