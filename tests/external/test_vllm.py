"""crop-blend and vanilla inside vLLM give the answers of transformers, request by request."""

from typing import Any

import pytest
import torch
from vllm_engine import counts, embedded, engine, request, said, visual
from vllm_models import padded_tiny

from airvlm import VLM, CropBlend
from airvlm.inputs.images import load_image
from airvlm.tiny import questions, scenes

DESCRIBE = "Please describe this image in detail."


@pytest.fixture(scope="module")
def images() -> list[Any]:
    return [load_image(scene.path) for scene in scenes("test")[:32]]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return padded_tiny(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="module")
def vlm() -> VLM:
    return VLM.load("tiny")


@pytest.fixture(scope="module")
def llm(tiny):
    with engine(tiny) as llm:
        yield llm


def test_answers_are_those_of_transformers_with_and_without_the_method_in_one_call(vlm, llm, images):
    counts(llm)
    asked = [(image, DESCRIBE) for image in images[:30]]
    expected = {
        name: list(vlm.batch(asked, method=method, max_new_tokens=24, progress=False))
        for name, method in (("blend", CropBlend()), ("off", None))
    }
    mixed = [request(expected["blend"][i].prompt, [images[i]], setting) for i in range(30) for setting in (None, False)]
    got = said(llm, mixed)
    assert got[0::2] == [answer.text for answer in expected["blend"]]
    assert got[1::2] == [answer.text for answer in expected["off"]]
    assert got[0::2] != got[1::2]
    assert sum(answer.report.fired for answer in expected["blend"]) == 30
    assert counts(llm) == {"fired": 30, "off": 30}


@pytest.mark.parametrize(
    ("setting", "method"),
    [
        ({"method": {"weight": 0.5, "keep": 3}}, CropBlend(weight=0.5, keep=3)),
        ({"method": {"name": "crop-blend", "num_prototypes": 24}}, CropBlend(num_prototypes=24)),
        (
            {"method": {"match": "geometry", "crop_layout": "random", "num_crops": 6}},
            CropBlend(match="geometry", crop_layout="random", num_crops=6),
        ),
        ({"method": {"weight": 0}}, None),
        ({"method": {"keep": 0}}, CropBlend(keep=0)),
    ],
)
def test_a_request_has_its_own_setting(vlm, llm, images, setting, method):
    counts(llm)
    expected = list(
        vlm.batch([(image, DESCRIBE) for image in images[:8]], method=method, max_new_tokens=24, progress=False)
    )
    got = said(llm, [request(a.prompt, [image], setting) for a, image in zip(expected, images)])
    assert got == [answer.text for answer in expected]
    fired = sum(answer.report is not None and answer.report.fired for answer in expected)
    kind = "off" if method is None else "fired" if fired else "unchanged"
    assert counts(llm) == {kind: 8}


@pytest.mark.parametrize(
    ("setting", "method"),
    [(None, CropBlend()), ({"method": {"weight": 0.6, "keep": 2}}, CropBlend(weight=0.6, keep=2))],
)
def test_embeddings_are_those_of_transformers(vlm, llm, images, setting, method):
    prompt = vlm.builder.read(images[0], DESCRIBE).prompt
    for image in (images[0], images[1].crop((0, 0, 300, 170))):
        plain = embedded(llm, prompt, image, False)
        ours = embedded(llm, prompt, image, setting)
        torch.testing.assert_close(ours, visual(vlm, image, method), atol=1e-4, rtol=0)
        torch.testing.assert_close(plain, visual(vlm, image, None), atol=1e-4, rtol=0)
        assert (ours - plain).abs().max() > 1e-2


def test_sixty_four_mixed_requests_are_batched_continuously(vlm, llm, images):
    """Eight run at a time: other methods, other lengths, two images, none; each is answered as if it were alone."""
    counts(llm)
    asked_about = [item.text for item in questions("test", "random")[:64]]
    kinds = [
        (None, CropBlend()),
        (False, None),
        ({"method": {"weight": 0.5}}, CropBlend(weight=0.5)),
        ({"method": {"keep": 3}}, CropBlend(keep=3)),
    ]
    requests, expected, limits, fired = [], [], [], 0
    for i in range(64):
        setting, method = kinds[i % 4]
        shown = [] if i % 16 == 5 else images[i % 32 : i % 32 + 2] if i % 8 == 3 else [images[i % 32]]
        question = DESCRIBE if i % 3 else asked_about[i]
        limits.append(6 + 5 * (i % 5))
        answer = vlm.ask(shown, question, method=method if shown else None, max_new_tokens=limits[-1])
        fired += len(shown) if answer.report is not None and answer.report.fired else 0
        expected.append(answer.text)
        requests.append(request(answer.prompt, shown, setting if shown else None))
    assert said(llm, requests, limits) == expected
    found = counts(llm)
    off = sum(1 for i in range(64) if i % 4 == 1 and i % 16 != 5)
    # an image that two waiting requests show under one method may be embedded for both at once
    assert 0 < found["fired"] <= fired
    assert 0 < found["off"] <= off
    assert set(found) == {"fired", "off"}


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"method": "memvr"}, "memvr cannot run in vLLM"),
        ({"method": "vaf"}, "vaf cannot run in vLLM"),
        ({"method": "vcd"}, "vcd cannot run in vLLM"),
        ({"method": "air"}, "air cannot run in vLLM"),
        ("crop-blend", "give false"),
        ({"method": {"weight": "much"}}, "weight"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name_and_the_next_request_is_answered(vlm, llm, images, setting, message):
    expected = vlm.ask(images[0], DESCRIBE, method=CropBlend(), max_new_tokens=8)
    with pytest.raises(ValueError, match=message):
        said(llm, [request(expected.prompt, [images[0]], setting)])
    assert said(llm, [request(expected.prompt, [images[0]])], 8) == [expected.text]
