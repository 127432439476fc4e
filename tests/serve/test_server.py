"""The server as OpenAI's own client sees it: the texts of VLM.ask, and a report of what the method did."""

from __future__ import annotations

import asyncio
import json
import random
import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest
from PIL import Image

from airvlm import VAF, VCD, VLM, Composed, CropBlend, MemVR, Method, RandomCrops, tiny
from airvlm.serve.limits import Limits
from tests.serve.conftest import content

DESCRIBE = "Please describe this image in detail."
pytestmark = pytest.mark.filterwarnings("ignore::airvlm.runtime.session.MethodInactiveWarning")
METHODS: list[Method | None] = [None, CropBlend(), CropBlend(weight=0.3), VAF(), VCD(), MemVR()]


@pytest.fixture(scope="module")
def images() -> list[Image.Image]:
    return [Image.open(scene.path).convert("RGB") for scene in tiny.scenes("test")[:12]]


@pytest.fixture(scope="module")
def client(address: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)


def ask(client: openai.OpenAI, image: Any, question: str = DESCRIBE, model: str = "tiny", **more: Any) -> Any:
    messages: Any = [{"role": "user", "content": content(image, question)}]
    return client.chat.completions.create(model=model, messages=messages, **{"max_tokens": 48} | more)


def expected(vlm: VLM, image: Any, method: Method | str | None = None, question: str = DESCRIBE) -> Any:
    return vlm.ask(image, question, method=method, max_new_tokens=48)


def setting(method: Method | None) -> dict[str, Any]:
    """The method as a request gives it."""
    return {"airvlm": {"method": None if method is None else method.to_json()}}


@pytest.mark.parametrize(
    "method",
    [*METHODS, Composed(CropBlend(), VAF()), RandomCrops(CropBlend(keep=2)), VAF(layers=(1, 3))],
    ids=lambda method: "vanilla" if method is None else method.label,
)
def test_an_answer_is_that_of_the_model_asked_directly(
    client: openai.OpenAI, vlm: VLM, images: list[Image.Image], method: Method | None
) -> None:
    answer = ask(client, images[0], extra_body=setting(method))
    own = expected(vlm, images[0], method)
    assert answer.choices[0].message.content == own.text
    assert answer.choices[0].finish_reason == ("stop" if own.finished else "length")
    assert answer.usage.completion_tokens == own.tokens
    assert answer.usage.prompt_tokens == 77
    proof = answer.model_extra["airvlm"]
    assert proof["fired"] == int(own.report is not None and own.report.fired)
    assert proof["method"] == (None if method is None else method.to_json())


def test_the_method_may_be_part_of_the_model_name(client: openai.OpenAI, vlm: VLM, images: list[Image.Image]) -> None:
    for suffix, method in [
        ("crop-blend", CropBlend()),
        ("crop-blend+vaf", Composed(CropBlend(), VAF())),
        ("vanilla", None),
    ]:
        answer = ask(client, images[1], model=f"tiny+{suffix}")
        assert answer.choices[0].message.content == expected(vlm, images[1], method).text
        assert answer.model_extra["airvlm"]["method"] == (None if method is None else method.to_json())


def test_a_request_changes_the_servers_method(serve: Callable[..., Any], vlm: VLM, images: list[Image.Image]) -> None:
    with serve(method=CropBlend(num_crops=80)) as address:
        client = openai.OpenAI(base_url=f"{address}/v1", api_key="none")
        for body, method in [
            ({}, CropBlend(num_crops=80)),
            ({"airvlm": True}, CropBlend(num_crops=80)),
            ({"airvlm": {"method": {"weight": 0.35}}}, CropBlend(num_crops=80, weight=0.35)),
            ({"airvlm": {"method": "vaf"}}, VAF()),
            ({"airvlm": {"method": {"name": "vaf", "enhance": 0.3}}}, VAF(enhance=0.3)),
            ({"airvlm": {"method": "vanilla"}}, None),
            ({"airvlm": {"method": None}}, None),
            ({"airvlm": False}, None),
            ({"model": "tiny+vaf"}, VAF()),
            ({"model": "tiny+vaf", "airvlm": {"method": {"enhance": 0.3}}}, VAF(enhance=0.3)),
        ]:
            answer = ask(client, images[2], extra_body=body)
            assert answer.model_extra["airvlm"]["method"] == (None if method is None else method.to_json())
            assert answer.choices[0].message.content == expected(vlm, images[2], method).text


@pytest.mark.parametrize("name", ["tiny+lora", "org/model", "a+b+c"])
def test_a_model_answers_to_its_own_name(
    serve: Callable[..., Any], vlm: VLM, images: list[Image.Image], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Also with an adapter or a folder in it."""
    monkeypatch.setattr(vlm, "name", name)
    with serve() as address:
        client = openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)
        assert client.models.retrieve(f"{name}+vaf").id == f"{name}+vaf"
        assert ask(client, images[0], model=name, max_tokens=2).model_extra["airvlm"]["method"] is None
        under = ask(client, images[0], model=f"{name}+vaf", max_tokens=2)
        assert under.model_extra["airvlm"]["method"] == VAF().to_json()
        for other in (f"{name}vaf", name[:-1], "x" + name, ""):
            with pytest.raises(openai.NotFoundError, match="not served here"):
                ask(client, images[0], model=other, max_tokens=2)


def test_a_stream_adds_up_to_the_answer(client: openai.OpenAI, vlm: VLM, images: list[Image.Image]) -> None:
    stream = ask(client, images[0], model="tiny+crop-blend", stream=True, stream_options={"include_usage": True})
    chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    own = expected(vlm, images[0], "crop-blend")
    assert text == own.text
    assert sum(bool(c.choices and c.choices[0].delta.content) for c in chunks) > 3  # it came in pieces
    assert chunks[-1].usage.completion_tokens == own.tokens
    assert [c for c in chunks if c.choices][-1].model_extra["airvlm"]["fired"] == 1


def test_a_stream_ends_with_done(address: str, images: list[Image.Image]) -> None:
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": content(images[0], DESCRIBE)}],
        "stream": True,
        "max_tokens": 4,
    }
    lines = httpx.post(f"{address}/v1/chat/completions", json=body, timeout=60).text.split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    assert all(json.loads(line.removeprefix("data: ")) for line in lines[:-2])


def test_conversations_and_system_prompts_go_through_the_template(
    client: openai.OpenAI, vlm: VLM, images: list[Image.Image]
) -> None:
    messages: Any = [
        {"role": "user", "content": content(images[0], "Is there a dog in the image?")},
        {"role": "assistant", "content": "No."},
        {"role": "user", "content": "Is there a cat in the image?"},
    ]
    answer = client.chat.completions.create(model="tiny", messages=messages, max_tokens=16)
    turns: Any = [
        {
            "role": "user",
            "content": [{"type": "image"}, {"type": "text", "text": "Is there a dog in the image?"}],
        },
        *messages[1:],
    ]
    assert answer.choices[0].message.content == vlm.ask(images[0], turns, max_new_tokens=16).text


def test_a_question_that_the_model_cannot_be_asked_is_refused_in_words(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="the question is empty"):
        client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": " "}])


def test_a_request_without_an_image_is_answered_without_the_method(client: openai.OpenAI) -> None:
    answer = ask(client, None, "Is there a dog?", model="tiny+crop-blend", max_tokens=4)
    report = answer.model_extra["airvlm"]["reports"][0]
    assert not report["fired"]
    assert "no image" in report["reason"]


@pytest.mark.slow
def test_greedy_is_the_default_and_a_seed_means_the_same_every_time(
    client: openai.OpenAI, images: list[Image.Image]
) -> None:
    greedy = [ask(client, images[3]).choices[0].message.content for _ in range(2)]
    drawn = [ask(client, images[3], temperature=1.5, seed=s).choices[0].message.content for s in (5, 5, 6)]
    assert greedy[0] == greedy[1]
    assert drawn[0] == drawn[1]
    several = ask(client, images[3], temperature=1.5, seed=5, n=2)
    assert [c.message.content for c in several.choices] == [drawn[0], drawn[2]]


def test_stop_strings_and_token_limits_end_an_answer(
    client: openai.OpenAI, vlm: VLM, images: list[Image.Image]
) -> None:
    whole = expected(vlm, images[4]).text
    word = whole.split()[2]
    cut = ask(client, images[4], stop=word).choices[0]
    assert cut.message.content == whole[: whole.index(word)].rstrip()
    assert cut.finish_reason == "stop"
    short = ask(client, images[4], max_completion_tokens=3)
    assert short.choices[0].finish_reason == "length"
    assert short.usage.completion_tokens == 3


def test_top_p_of_zero_is_greedy_and_a_seed_may_be_negative(client: openai.OpenAI, images: list[Image.Image]) -> None:
    greedy = ask(client, images[3]).choices[0].message.content
    assert ask(client, images[3], temperature=1.5, top_p=0, seed=5).choices[0].message.content == greedy
    drawn = [ask(client, images[3], temperature=1.5, seed=-7).choices[0].message.content for _ in range(2)]
    assert drawn[0] == drawn[1] != greedy


def test_the_clients_own_message_begins_the_next_turn(client: openai.OpenAI, images: list[Image.Image]) -> None:
    first: Any = {"role": "user", "content": content(images[0], "Is there a dog in the image?")}
    answer = client.chat.completions.create(model="tiny", messages=[first], max_tokens=8)
    again: Any = [first, answer.choices[0].message, {"role": "user", "content": "Is there a cat in the image?"}]
    assert client.chat.completions.create(model="tiny", messages=again, max_tokens=8).choices[0].message.content


def test_log_probabilities_are_the_models_own(client: openai.OpenAI, images: list[Image.Image]) -> None:
    tokens = ask(client, images[5], logprobs=True, top_logprobs=3, max_tokens=5).choices[0].logprobs.content
    assert len(tokens) == 5
    for token in tokens:
        assert token.logprob == pytest.approx(token.top_logprobs[0].logprob)  # greedy takes the likeliest
        assert token.logprob <= 0


@pytest.mark.parametrize("stop", [None, "right of"])
def test_log_probabilities_stream_with_their_tokens(
    client: openai.OpenAI, images: list[Image.Image], stop: str | None
) -> None:
    whole = ask(client, images[0], logprobs=True, stop=stop).choices[0].logprobs.content
    chunks = [chunk.choices[0] for chunk in ask(client, images[0], logprobs=True, stop=stop, stream=True)]
    streamed = [token for chunk in chunks if chunk.logprobs for token in chunk.logprobs.content]
    assert [token.token for token in streamed] == [token.token for token in whole]
    texts = [chunk.delta.content for chunk in chunks if chunk.delta.content]
    assert sum(bool(chunk.logprobs) for chunk in chunks if chunk.delta.content) == len(texts) > 3


@pytest.mark.slow
def test_two_hundred_requests_of_sixteen_clients_get_their_own_answers(
    client: openai.OpenAI, vlm: VLM, images: list[Image.Image]
) -> None:
    draw = random.Random(0)
    asked = [(draw.randrange(len(images)), draw.choice(METHODS)) for _ in range(200)]
    known = {key: expected(vlm, images[key[0]], key[1], "Is there a dog in the image?") for key in set(asked)}

    def one(key: tuple[int, Method | None]) -> tuple[str, int]:
        answer = ask(client, images[key[0]], "Is there a dog in the image?", extra_body=setting(key[1]))
        return answer.choices[0].message.content, answer.model_extra["airvlm"]["fired"]

    with ThreadPoolExecutor(16) as clients:
        answers = list(clients.map(one, asked))
    fired = [int(known[k].report is not None and known[k].report.fired) for k in asked]
    assert answers == [(known[k].text, f) for k, f in zip(asked, fired, strict=True)]


@pytest.mark.slow
def test_the_async_client_works_and_requests_run_together(
    serve: Callable[..., Any], vlm: VLM, images: list[Image.Image]
) -> None:
    with serve(limits=Limits(window=0.2)) as address:

        async def main() -> list[str]:
            client = openai.AsyncOpenAI(base_url=f"{address}/v1", api_key="none")
            return [
                a.choices[0].message.content
                for a in await asyncio.gather(*(ask(client, image, model="tiny+crop-blend") for image in images[:6]))
            ]

        assert asyncio.run(main()) == [expected(vlm, image, "crop-blend").text for image in images[:6]]
        counted = httpx.get(f"{address}/metrics").text
    batches = float(
        next(line for line in counted.splitlines() if line.startswith("airvlm_batch_rows_count")).split()[1]
    )
    assert batches < 6
    assert 'airvlm_fired_total{method="crop-blend"} 6.0' in counted


@pytest.mark.slow
def test_a_full_queue_answers_429_and_says_when_to_come_back(
    serve: Callable[..., Any], images: list[Image.Image]
) -> None:
    with serve(limits=Limits(queue=2, batch=1)) as address:
        body = {"model": "tiny", "messages": [{"role": "user", "content": content(images[0], DESCRIBE)}]}

        def post(_: int) -> httpx.Response:
            return httpx.post(f"{address}/v1/chat/completions", json=body, timeout=60)

        with ThreadPoolExecutor(12) as clients:
            answers = list(clients.map(post, range(12)))
    codes = sorted({a.status_code for a in answers})
    assert codes == [200, 429]
    refused = next(a for a in answers if a.status_code == 429)
    assert refused.headers["retry-after"]
    assert refused.json()["error"]["type"] == "rate_limit_error"


def test_a_prefill_for_a_client_that_has_left_is_not_started(
    serve: Callable[..., Any], vlm: VLM, images: list[Image.Image]
) -> None:
    """The first request keeps the model busy, the second one's client leaves while it waits."""
    lengths: list[int] = []
    go = threading.Event()
    real = vlm.model.forward

    def wait(*arguments: Any, **options: Any) -> Any:
        lengths.append(options["input_ids"].shape[1])
        go.wait(30)
        return real(*arguments, **options)

    with serve(limits=Limits(batch=1)) as address, pytest.MonkeyPatch.context() as patch:
        patch.setattr(vlm.model, "forward", wait)
        client = openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)
        with ThreadPoolExecutor(2) as clients:
            first = clients.submit(ask, client, images[0], max_tokens=1)
            while not lengths:
                time.sleep(0.01)
            left = {"model": "tiny", "messages": [{"role": "user", "content": content(images[0], "dog " * 20)}]}
            with pytest.raises(httpx.ReadTimeout):
                httpx.post(f"{address}/v1/chat/completions", json=left, timeout=0.5)
            while not re.search(r"^airvlm_queue 1", httpx.get(f"{address}/metrics").text, re.M):
                time.sleep(0.01)
            stream = httpx.stream("POST", f"{address}/v1/chat/completions", json=left | {"stream": True}, timeout=60)
            with stream as opened:
                next(opened.iter_lines())
            time.sleep(0.3)  # until the server has noticed both
            go.set()
            assert first.result().choices[0].message.content
            assert ask(client, images[1], max_tokens=1).choices[0].message.content
        assert max(lengths) == 77  # the longer prompts were never seen


@pytest.mark.slow
def test_a_client_that_leaves_stops_its_answer(serve: Callable[..., Any], vlm: VLM, images: list[Image.Image]) -> None:
    steps = []
    real = vlm.model.forward

    def slow(*arguments: Any, **options: Any) -> Any:
        steps.append(time.sleep(0.05))
        return real(*arguments, **options)

    with serve() as address, pytest.MonkeyPatch.context() as patch:
        patch.setattr(vlm.model, "forward", slow)
        client = openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)
        stream = ask(client, images[0], stream=True, max_tokens=1000, temperature=2.0, seed=1)
        next(iter(stream))
        stream.close()
        time.sleep(1.0)
        seen = len(steps)
        time.sleep(0.5)
        assert len(steps) == seen
        patch.undo()
        assert ask(client, images[0], max_tokens=2).choices[0].message.content


def test_a_key_is_asked_for_where_one_is_set(serve: Callable[..., Any]) -> None:
    with serve(api_key="s3cret") as address:
        assert httpx.get(f"{address}/health").status_code == 200
        for path in ("/v1/models", "/metrics"):
            assert httpx.get(f"{address}{path}").status_code == 401
            assert httpx.get(f"{address}{path}", headers={"Authorization": "Bearer s3cre"}).status_code == 401
            for scheme in ("Bearer", "bearer", "BEARER"):
                given = {"Authorization": f"{scheme} s3cret"}
                assert httpx.get(f"{address}{path}", headers=given).status_code == 200
            for twice in (["Bearer s3cret", "Bearer wrong"], ["Bearer wrong", "Bearer s3cret"], ["Bearer s3cret"] * 2):
                headers = [("Authorization", value) for value in twice]
                assert httpx.get(f"{address}{path}", headers=headers).status_code == 401
            assert httpx.get(f"{address}{path}", headers={"Authorization": "Basic s3cret"}).status_code == 401


def test_models_are_listed_alone_and_with_each_method(client: openai.OpenAI) -> None:
    names = [model.id for model in client.models.list()]
    assert {"tiny", "tiny+crop-blend", "tiny+vcd"} <= set(names)
    assert client.models.retrieve("tiny+vaf").id == "tiny+vaf"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("llava")


def test_bodies_images_and_tokens_are_limited(serve: Callable[..., Any], images: list[Image.Image]) -> None:
    with serve(limits=Limits(body=1_500_000, images=1, pixels=220_000, tokens=8)) as address:

        def post(body: Any) -> httpx.Response:
            return httpx.post(f"{address}/v1/chat/completions", json=body, timeout=60)

        def asked(**more: Any) -> dict[str, Any]:
            return {
                "model": "tiny",
                "messages": [{"role": "user", "content": content(images[0], "?")}],
            } | more

        two = content(images[0], "?") + content(images[1], "?")
        big = content(Image.new("RGB", (500, 500)), "?")
        assert post(asked(user="x" * 2_000_000)).status_code == 413
        assert "at most 1" in post(asked(messages=[{"role": "user", "content": two}])).json()["error"]["message"]
        assert post(asked(messages=[{"role": "user", "content": big}])).status_code == 400
        assert post(asked(max_tokens=9)).status_code == 400
        assert post(asked()).status_code == 200


@pytest.mark.parametrize(
    "url",
    ["file:///etc/passwd", "http://127.0.0.1/x.png", "ftp://a/b", "data:image/png;base64,%%%", "data:,x", ""],
)
def test_no_address_is_fetched_unless_allowed(client: openai.OpenAI, url: str) -> None:
    messages: Any = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]
    with pytest.raises(openai.BadRequestError, match="image_url"):
        client.chat.completions.create(model="tiny", messages=messages)


def test_private_addresses_are_never_fetched(serve: Callable[..., Any]) -> None:
    with serve(allow_urls=True) as address:
        client = openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)
        for url in (f"{address}/health", "http://localhost:1/x.png", "http://10.0.0.1/x.png"):
            messages: Any = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]
            with pytest.raises(openai.BadRequestError, match="not on the public internet"):
                client.chat.completions.create(model="tiny", messages=messages)


def _mutations(good: dict[str, Any]) -> list[bytes]:
    """Bodies that should do no harm: damaged bytes, and every field with values of other kinds."""
    draw = random.Random(1)
    text = json.dumps(good).encode()
    bodies = [b"", b"[]", b"null", b"\xff\xfe", b"{" * 5000, text[:-1], b'{"model": NaN}', text + b"x"]
    odd = [None, -1, 1e300, "", "x" * 1000, [], {}, [[]], True, {"type": "text"}, ["\ud800"], 2**70]
    for field in (
        "model",
        "messages",
        "max_tokens",
        "temperature",
        "top_p",
        "n",
        "stop",
        "stream",
        "airvlm",
        "seed",
    ):
        bodies += [json.dumps(good | {field: value}).encode() for value in odd]
    for value in odd:
        bodies.append(json.dumps(good | {"messages": [value]}).encode())
        bodies.append(json.dumps(good | {"messages": [{"role": "user", "content": value}]}).encode())
        bodies.append(json.dumps(good | {"messages": [{"role": value, "content": "x"}]}).encode())
        image = {"type": "image_url", "image_url": {"url": value}}
        bodies.append(json.dumps(good | {"messages": [{"role": "user", "content": [image]}]}).encode())
    while len(bodies) < 300:
        damaged = bytearray(text)
        for _ in range(3):
            damaged[draw.randrange(len(damaged))] = draw.randrange(256)
        bodies.append(bytes(damaged))
    return bodies


def test_three_hundred_malformed_requests_do_no_harm(address: str, client: openai.OpenAI, vlm: VLM) -> None:
    image = Image.new("RGB", (8, 8))
    good = {
        "model": "tiny",
        "messages": [{"role": "user", "content": content(image, "Is there a dog?")}],
        "max_tokens": 2,
    }
    with httpx.Client(timeout=60) as plain:
        for body in _mutations(good):
            answer = plain.post(
                f"{address}/v1/chat/completions", content=body, headers={"Content-Type": "application/json"}
            )
            assert answer.status_code == 200 or 400 <= answer.status_code < 500, (body[:200], answer.text)
            if answer.status_code != 200:
                assert answer.json()["error"]["message"]
                assert "Traceback" not in answer.text
    assert (
        ask(client, image, max_tokens=2).choices[0].message.content == vlm.ask(image, DESCRIBE, max_new_tokens=2).text
    )


def test_unknown_routes_and_verbs_are_errors_in_the_same_form(address: str) -> None:
    assert httpx.get(f"{address}/nowhere").json()["error"]["type"] == "not_found_error"
    assert httpx.get(f"{address}/v1/chat/completions").status_code == 405
    assert "error" in httpx.get(f"{address}/v1/chat/completions").json()
