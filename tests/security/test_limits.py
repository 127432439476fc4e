"""Requests that would cost much are refused before the model sees them."""

from __future__ import annotations

import asyncio
import base64
import ctypes
import io
import json
import threading
import time
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from airvlm import VAF, VLM, CropBlend
from airvlm.serve.errors import ApiError
from airvlm.serve.images import ImageReader, RequestImages
from airvlm.serve.limits import Budget, Limits
from tests.serve.conftest import content, data_uri


def post(address: str, timeout: float = 60, **changes: Any) -> httpx.Response:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "Is there a dog?"}], "max_tokens": 2} | changes
    return httpx.post(f"{address}/v1/chat/completions", json=body, timeout=timeout)


def message(answer: httpx.Response) -> str:
    return str(answer.json()["error"]["message"])


def read_images(reader: ImageReader, *files: bytes) -> RequestImages:
    sizes = reader.measure(files)
    asyncio.run(reader.reserve(sizes))
    return reader.read(files, sizes)


@pytest.fixture
def untouched(vlm: VLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model must not be called."""

    def forward(*_: Any, **__: Any) -> Any:
        raise AssertionError("the model was called")

    monkeypatch.setattr(vlm.model, "forward", forward)


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize("count", [200, 200_000])
def test_many_messages(address: str, count: int) -> None:
    asked = [{"role": "user", "content": ""}] * count + [{"role": "user", "content": "a"}]
    answer = post(address, messages=asked)
    assert answer.status_code == 400
    assert "messages" in message(answer) or "values" in message(answer)


@pytest.mark.usefixtures("untouched")
def test_many_tokens(address: str, serve: Callable[..., Any]) -> None:
    answer = post(address, messages=[{"role": "user", "content": "a" * 20_000}])
    assert "16384 characters" in message(answer)
    # within the limit on characters, beyond the model's context: counted after the chat template
    answer = post(address, messages=[{"role": "user", "content": "zebra " * 2_000}])
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "context_length_exceeded"
    with serve(limits=Limits(prompt_tokens=60)) as limited:
        many = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}] * 20
        answer = post(limited, messages=[*many, {"role": "user", "content": "c"}])
        assert "prompt tokens; this server takes at most 60" in message(answer)
        # an image's tokens count as well: 77 with this one
        shown = content(Image.new("RGB", (64, 64)), "Please describe this image in detail.")
        assert "77 prompt tokens" in message(post(limited, messages=[{"role": "user", "content": shown}]))


@pytest.mark.usefixtures("untouched")
def test_long_fields(address: str) -> None:
    for long in (
        {"model": "tiny+" + "a," * 450_000},
        {"model": "tiny" + "+vaf" * 200_000},
        {"airvlm": {"method": "a" * 900_000}},
        {"airvlm": {"method": {"name": "crop-blend", "match": "a," * 450_000}}},
        {"airvlm": {"method": {"name": "crop-blend", "x" * 900_000: 1}}},
        {"stop": ["a" * 900_000]},
    ):
        answer = post(address, **long)
        assert answer.status_code in (400, 404)
        assert len(answer.text) < 3_000  # what was sent is not sent back


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize(
    "method",
    [
        {"name": "crop-blend", "num_crops": 4096},
        {"name": "composed", "methods": [{"name": "crop-blend"}] * 300},
        {"name": "composed", "methods": [{"name": "vcd"}] * 50},
    ],
    ids=["crops", "300 parts", "50 parts"],
)
def test_expensive_methods(address: str, method: dict[str, Any]) -> None:
    assert post(address, airvlm={"method": method}).status_code == 400


@pytest.mark.usefixtures("untouched")
def test_crops_of_another_client_are_refused(address: str) -> None:
    """other-image takes crops from the batch, in which other clients' images are."""
    other = {"name": "other-image", "method": {"name": "crop-blend"}}
    answer = post(address, airvlm={"method": other})
    assert answer.status_code == 400
    assert "another client" in message(answer)
    assert post(address, model="tiny+other-image").status_code == 400


def test_the_event_loop_does_not_wait_for_parsing(serve: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    from airvlm.serve import completions

    go, began = threading.Event(), threading.Event()
    real = completions.parse_request

    def wait(*arguments: Any) -> Any:
        began.set()
        go.wait(30)
        return real(*arguments)

    monkeypatch.setattr(completions, "parse_request", wait)
    with serve() as address, ThreadPoolExecutor(1) as clients:
        asked = clients.submit(post, address)
        assert began.wait(30)
        assert httpx.get(f"{address}/health", timeout=30).status_code == 200
        go.set()
        assert asked.result().status_code == 200


# -- images


def bomb(side: int = 6324) -> bytes:
    """A one-bit PNG of 40 million pixels, in a few kilobytes."""
    file = io.BytesIO()
    Image.new("1", (side, side)).save(file, "PNG", optimize=True)
    return file.getvalue()


def uri(data: bytes, kind: str = "png") -> str:
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def show(*urls: str) -> list[dict[str, Any]]:
    images = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return [{"role": "user", "content": [*images, {"type": "text", "text": "Is there a dog?"}]}]


@pytest.mark.usefixtures("untouched")
def test_pixels_are_limited_per_image_and_per_request(address: str) -> None:
    data = bomb()
    assert len(data) < 10_000
    assert "per request" in message(post(address, messages=show(*[uri(data)] * 8)))
    assert "per image" in message(post(address, messages=show(uri(bomb(6400)))))
    assert "at most 8" in message(post(address, messages=show(*[uri(data)] * 9)))


def test_an_image_may_have_as_many_pixels_as_the_limit(vlm: VLM) -> None:
    file = io.BytesIO()
    Image.new("RGB", (30, 20)).save(file, "PNG")
    assert ImageReader(vlm.processor, Limits(pixels=600)).measure([file.getvalue()]) == ((30, 20),)
    with pytest.raises(ApiError, match="30 x 20 pixels; this server takes at most 599 per image"):
        ImageReader(vlm.processor, Limits(pixels=599)).measure([file.getvalue()])


def test_images_are_reduced_while_they_are_read(vlm: VLM) -> None:
    reader = ImageReader(vlm.processor, Limits())
    assert reader.side == 448
    photo = Image.fromarray(np.random.default_rng(0).integers(0, 255, (2000, 3000, 3), dtype=np.uint8))
    for kind in ("PNG", "JPEG"):
        file = io.BytesIO()
        photo.save(file, kind)
        read = read_images(reader, file.getvalue())
        assert 448 <= min(read.images[0].rgb.size) < 900
        assert read.sizes == ((3000, 2000),)
        assert reader.budget.used == read.pixels == read.images[0].rgb.width * read.images[0].rgb.height
        reader.budget.give_back(read.pixels)
    small = Image.new("RGB", (640, 480), "red")
    assert read_images(reader, base64.b64decode(data_uri(small).partition(",")[2])).images[0].rgb.size == (640, 480)


def test_crops_are_reported_in_the_pixels_that_were_sent(address: str) -> None:
    photo = Image.fromarray(np.random.default_rng(0).integers(0, 255, (1800, 2400, 3), dtype=np.uint8))
    answer = post(address, model="tiny+crop-blend", messages=show(data_uri(photo, "JPEG")))
    boxes = [crop["box"] for crop in answer.json()["airvlm"]["reports"][0]["crops"][0]]
    assert (max(box[2] for box in boxes), max(box[3] for box in boxes)) == (2400, 1800)


def test_requests_share_a_budget_of_pixels(vlm: VLM) -> None:
    limits = Limits(server_pixels=1_000_000, request_pixels=1_000_000, read_seconds=0.2)
    reader = ImageReader(vlm.processor, limits)
    file = io.BytesIO()
    Image.new("RGB", (400, 1600)).save(file, "PNG")  # too small to be reduced
    held = read_images(reader, file.getvalue())
    with pytest.raises(ApiError, match="too many large images") as refused:
        read_images(reader, file.getvalue())
    assert refused.value.status == 429
    reader.budget.give_back(held.pixels)
    reader.budget.give_back(read_images(reader, file.getvalue()).pixels)
    with pytest.raises(ApiError, match=r"readable|damaged"):
        read_images(reader, file.getvalue()[: len(file.getvalue()) // 2])
    assert reader.budget.used == 0


def test_long_and_narrow_images_are_refused_or_reduced(vlm: VLM) -> None:
    reader = ImageReader(vlm.processor, Limits())
    for size in [(40_000_000, 1), (1, 40_000_000), (20_200, 100)]:
        file = io.BytesIO()
        Image.new("1", size).save(file, "PNG")
        with pytest.raises(ApiError, match="one side may be 200 times the other at most"):
            reader.measure([file.getvalue()])
    file = io.BytesIO()
    Image.new("1", (65_535, 600)).save(file, "PNG")
    read = read_images(reader, file.getvalue())
    assert read.pixels <= 4 * 16 * reader.side**2  # a factor of 2 may be left, since factors are integers


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="glibc only")
def test_memory_of_large_images_is_returned(vlm: VLM) -> None:
    def resident() -> int:
        status = Path("/proc/self/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) // 1024  # megabytes

    reader = ImageReader(vlm.processor, Limits(server_pixels=10**9))
    file = io.BytesIO()
    Image.new("1", (8000, 5000)).save(file, "PNG")
    before = resident()
    with ThreadPoolExecutor(3) as threads:  # each has an arena of its own
        for read in threads.map(lambda _: read_images(reader, file.getvalue(), file.getvalue()), range(6)):
            reader.budget.give_back(read.pixels)
        assert resident() - before < 150  # two decoded images of one thread are 320


def test_waiting_for_pixels_keeps_nobody_else_waiting(vlm: VLM) -> None:
    from airvlm.serve.app import make_app
    from tests.serve.conftest import running

    app = make_app(vlm, limits=Limits(server_pixels=1_000_000, request_pixels=1_000_000, read_seconds=60))
    images: ImageReader = app.state.reader.images
    reserve, waiting = images.reserve, []

    async def count(sizes: Any) -> None:
        waiting.append(sizes)
        await reserve(sizes)

    images.reserve = count  # type: ignore[method-assign]
    assert images.budget.take(900_000)  # as if somebody's images were being read
    large = show(data_uri(Image.new("RGB", (500, 500)), "PNG"))
    with running(app) as address, ThreadPoolExecutor(8) as clients:
        answers = [clients.submit(post, address, messages=large) for _ in range(8)]  # more than there are threads
        deadline = time.monotonic() + 30
        while len(waiting) < 8 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert post(address, timeout=30).status_code == 200
        assert not any(answer.done() for answer in answers)
        images.budget.give_back(900_000)
        assert [answer.result().status_code for answer in answers] == [200] * 8
    assert images.budget.used == 0


def test_every_request_returns_its_pixels(serve: Callable[..., Any], vlm: VLM) -> None:
    from airvlm.serve.app import make_app
    from tests.serve.conftest import running

    app = make_app(vlm)
    budget: Budget = app.state.reader.images.budget
    good, shown = data_uri(Image.new("RGB", (500, 500))), []
    with running(app) as address:
        for changes in (
            {},
            {"stream": True},
            {"messages": show(good, uri(b"no image"))},
            {"messages": show(good, *["data:,"])},
            {"messages": [*show(good)[:1], {"role": "user", "content": "zebra " * 2000}]},
        ):
            post(address, **({"messages": show(good)} | changes))
            shown.append(budget.used)
    deadline = time.monotonic() + 10
    while budget.used and time.monotonic() < deadline:
        time.sleep(0.05)
    assert budget.used == 0, shown


def chunk(kind: bytes, data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")


@cache
def bad_images() -> dict[str, bytes]:
    file = io.BytesIO()
    Image.new("RGB", (50, 50), "red").save(file, "PNG")
    png = file.getvalue()
    zeros = zlib.compress(b"0" * 100_000_000, 9)
    head, rest = png[:33], png[33:]
    jpeg = io.BytesIO()
    Image.new("RGB", (50, 50), "red").save(jpeg, "JPEG")
    eps = io.BytesIO()
    Image.new("RGB", (50, 50), "red").save(eps, "EPS")
    return {
        "text bomb": head + chunk(b"zTXt", b"k\0\0" + zeros) + rest,
        "profile bomb": head + chunk(b"iCCP", b"k\0\0" + zeros) + rest,
        "truncated": png[:60],
        "truncated jpeg": jpeg.getvalue()[:200],
        "svg": b"<svg xmlns='http://www.w3.org/2000/svg'/>",
        "eps": eps.getvalue(),
        "empty": b"",
        "header only": png[:33],
        "huge header": png[:16] + (2**31 - 1).to_bytes(4, "big") * 2 + png[24:],
        "zero width": png[:16] + bytes(4) + png[20:],
    }


@pytest.mark.parametrize("name", bad_images())
def test_bad_images_are_refused_without_addresses_of_objects(address: str, name: str) -> None:
    answer = post(address, messages=show(uri(bad_images()[name])))
    # a profile that cannot be read does not matter to the pixels
    assert answer.status_code == (200 if name == "profile bomb" and answer.status_code == 200 else 400)
    assert " at 0x" not in answer.text
    assert "Traceback" not in answer.text


# -- what used to end in an error of the server


@pytest.mark.parametrize(
    "changes",
    [
        {
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "<ima"}, {"type": "text", "text": "ge>"}]}
            ]
        },
        {"temperature": 1e-45},
        {"airvlm": {"method": {"name": "composed", "methods": [{"name": "composed", "methods": [{"name": "vaf"}]}]}}},
    ],
    ids=["split placeholder", "temperature", "nested"],
)
def test_odd_requests_are_refused_by_the_client_s_status(address: str, changes: dict[str, Any]) -> None:
    assert post(address, **changes).status_code == 400


def test_a_placeholder_split_around_an_image_is_refused(address: str) -> None:
    image = {"type": "image_url", "image_url": {"url": data_uri(Image.new("RGB", (8, 8)))}}
    for parts in (["<ima", image, "ge>"], [image, "<ima", "ge>"], ["<ima", "ge>", image]):
        spelled = [{"type": "text", "text": part} if isinstance(part, str) else part for part in parts]
        assert post(address, messages=[{"role": "user", "content": spelled}]).status_code == 400


@pytest.mark.parametrize(
    "changes",
    [
        {"messages": [{"role": "user", "content": "MARK"}]},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "MARK"}}]}]},
        {"model": "MARK"},
        {"stop": "MARK"},
        {"airvlm": {"method": "MARK"}},
    ],
    ids=["text", "url", "model", "stop", "method"],
)
def test_lone_surrogates_are_refused(address: str, changes: dict[str, Any]) -> None:
    body = json.dumps({"model": "tiny", "messages": [{"role": "user", "content": "a"}]} | changes)
    headers = {"Content-Type": "application/json"}
    sent = body.replace("MARK", "\\ud800")
    answer = httpx.post(f"{address}/v1/chat/completions", content=sent, headers=headers)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"]


def test_values_that_are_not_json_are_sent_as_null(address: str) -> None:
    """A regularizer so small that distances become NaN."""
    shown = content(Image.new("RGB", (64, 64)), "Is there a dog?")
    for stream in (False, True):
        answer = post(
            address,
            messages=[{"role": "user", "content": shown}],
            airvlm={"method": {"name": "crop-blend", "eps": 1e-300}},
            stream=stream,
        )
        assert answer.status_code in (200, 400)
        assert "NaN" not in answer.text


def test_the_good_request_is_answered_as_ever(address: str, vlm: VLM) -> None:
    image = Image.new("RGB", (64, 64), "green")
    question = "Please describe this image in detail."
    for method in (None, CropBlend(), VAF()):
        setting = {"method": None if method is None else method.to_json()}
        answer = post(
            address, messages=[{"role": "user", "content": content(image, question)}], airvlm=setting, max_tokens=24
        )
        assert json.loads(answer.text)["choices"][0]["message"]["content"] == (
            vlm.ask(image, question, method=method, max_new_tokens=24).text
        )
