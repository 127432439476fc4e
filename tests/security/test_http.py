"""Odd HTTP, odd addresses and many clients: what the server has always survived."""

from __future__ import annotations

import json
import random
import re
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from PIL import Image

from airvlm import VAF, VCD, VLM, CropBlend, MemVR, Method, tiny
from tests.serve.conftest import content

QUESTION = {"model": "tiny", "messages": [{"role": "user", "content": "Is there a dog?"}], "max_tokens": 1}
BODY = json.dumps(QUESTION).encode()
HEAD = "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"


def exchange(address: str, *parts: bytes) -> bytes:
    """Everything that the server sends until it closes the connection."""
    place = urlsplit(address)
    received = b""
    with socket.create_connection((place.hostname or "", place.port or 0), 60) as connection:
        try:
            for part in parts:
                connection.sendall(part)
            while chunk := connection.recv(65536):
                received += chunk
        except (ConnectionResetError, BrokenPipeError):
            pass
    return received


def statuses(received: bytes) -> list[int]:
    return [int(code) for code in re.findall(rb"HTTP/1\.1 (\d+) ", received)]


def test_pipelined_requests_are_answered_in_order(address: str) -> None:
    whole = HEAD.encode() + b"Content-Length: %d\r\n\r\n%s" % (len(BODY), BODY)
    last = HEAD.encode() + b"Connection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(BODY), BODY)
    assert statuses(exchange(address, whole * 19 + last)) == [200] * 20


def test_a_chunked_body_is_read(address: str) -> None:
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(BODY[i : i + 7]), BODY[i : i + 7]) for i in range(0, len(BODY), 7))
    sent = HEAD.encode() + b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"
    assert statuses(exchange(address, sent)) == [200]


@pytest.mark.parametrize(
    "sent",
    [
        HEAD
        + f"Content-Length: {len(BODY)}\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /metrics HTTP/1.1\r\n\r\n",
        HEAD + "Content-Length: 1\r\nContent-Length: 2\r\n\r\n{}",
        HEAD + "Content-Length: -1\r\n\r\n{}",
        HEAD + "X: " + "a" * 2_000_000 + "\r\n\r\n",
        "POST /v1/chat/completions HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}",
        "GARBAGE\r\n\r\n",
        "\x16\x03\x01\x02\x00\x01\x00",
    ],
    ids=["smuggling", "two lengths", "negative length", "2 MB of headers", "no host", "garbage", "tls"],
)
def test_odd_http_is_refused_and_the_next_request_answered(address: str, sent: str) -> None:
    received = statuses(exchange(address, sent.encode("latin-1") + b"\r\n\r\n"))
    assert all(400 <= status < 500 for status in received)
    assert httpx.post(f"{address}/v1/chat/completions", json=QUESTION, timeout=60).status_code == 200


def test_a_body_beyond_the_limit_is_refused_whatever_its_header_says(address: str) -> None:
    chunk = b"100000\r\n" + b" " * 0x100000 + b"\r\n"
    head = HEAD.encode() + b"Transfer-Encoding: chunked\r\n\r\n"
    assert statuses(exchange(address, head, *[chunk] * 33))[:1] in ([413], [])
    assert httpx.post(f"{address}/v1/chat/completions", json=QUESTION, timeout=60).status_code == 200


ADDRESSES = """
http://127.0.0.1/ http://127.1/ http://2130706433/ http://0x7f000001/ http://0x7f.0.0.1/ http://017700000001/
http://0177.0.0.1/ http://localhost/ http://LOCALHOST/ http://localhost./ http://[::1]/ http://[::]/ http://0.0.0.0/ http://0/
http://[::ffff:127.0.0.1]/ http://[::ffff:7f00:1]/ http://[0:0:0:0:0:ffff:127.0.0.1]/ http://[64:ff9b::7f00:1]/
http://[64:ff9b:1::7f00:1]/ http://[2002:7f00:1::]/ http://[fe80::1]/ http://[fec0::1]/ http://[fc00::1]/ http://[::127.0.0.1]/
http://[::ffff:0:127.0.0.1]/ http://10.0.0.1/ http://172.16.0.1/ http://192.168.1.1/ http://169.254.169.254/latest/meta-data/
http://①②⑦.⓪.⓪.①/ http://user@127.0.0.1/ http://127.0.0.1:80@10.0.0.1/ http://127.0.0.1#@example.com/ file:///etc/passwd
ftp://127.0.0.1/ gopher://127.0.0.1/ dict://127.0.0.1/ HTTP://127.0.0.1/ http:127.0.0.1 //127.0.0.1/ http://\r\n127.0.0.1/
""".split(" ")


MALFORMED = ["https://[", "http://[::1", "http://\u2100.com/", "http://a:b:c", "https://[v1.x]/"]


def test_no_spelling_of_a_private_address_is_fetched(
    serve: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from airvlm.inputs import download

    def connect(place: Any, timeout: Any) -> Any:
        raise AssertionError(f"connected to {place}")

    monkeypatch.setattr(download, "_connect", connect)
    with serve(allow_urls=True) as address, httpx.Client(timeout=60) as client:
        for url in [
            *" ".join(ADDRESSES).split(),
            "http://a\r\nHost: b/",
            "http://127.0.0.1\t/",
            " http://127.0.0.1/",
            *MALFORMED,
        ]:
            shown = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "a"}]
            asked = QUESTION | {"messages": [{"role": "user", "content": shown}]}
            answer = client.post(f"{address}/v1/chat/completions", json=asked)
            assert answer.status_code == 400, url
            assert "AssertionError" not in answer.text
            text = answer.json()["error"]["message"]
            assert not re.search(r"\d+\.\d+\.\d+\.\d+|::", text), text  # no address that a name resolved to


def test_streams_of_sixteen_clients_with_mixed_methods_get_their_own_answers(address: str, vlm: VLM) -> None:
    draw = random.Random(7)
    methods: list[Method | None] = [None, CropBlend(), VCD(), VAF(), MemVR()]
    images = [Image.open(scene.path).convert("RGB") for scene in tiny.scenes("test")[30:33]]
    questions = ["Is there a dog in the image?", "Please describe this image in detail."]
    asked = [(draw.randrange(3), draw.randrange(5), draw.randrange(2), draw.random() < 0.5) for _ in range(48)]
    known = {
        (i, m, q): vlm.ask(images[i], questions[q], method=methods[m], max_new_tokens=8).text
        for i, m, q in {one[:3] for one in asked}
    }

    def post(one: tuple[int, int, int, bool]) -> str:
        i, m, q, stream = one
        method = methods[m]
        body = {
            "model": "tiny",
            "messages": [{"role": "user", "content": content(images[i], questions[q])}],
            "max_tokens": 8,
            "stream": stream,
            "airvlm": {"method": None if method is None else method.to_json()},
        }
        answer = httpx.post(f"{address}/v1/chat/completions", json=body, timeout=300)
        if not stream:
            return str(answer.json()["choices"][0]["message"]["content"])
        lines = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]
        chunks = [json.loads(line) for line in lines if line != "[DONE]"]
        return "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks if chunk["choices"])

    with ThreadPoolExecutor(16) as clients:
        texts = list(clients.map(post, asked))
    assert texts == [known[one[:3]] for one in asked]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::airvlm.runtime.session.MethodInactiveWarning")
def test_whatever_thirty_two_clients_mix_or_leave_the_others_texts_stay_right(
    address: str, vlm: VLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Options that join a batch and options that do not, clients that leave, and prompts that the model fails on."""
    draw = random.Random(3)
    scenes = tiny.scenes("test")[40:44]
    questions = ["Please describe this image in detail.", "Is there a dog in the image?"]
    options: list[tuple[dict[str, Any], dict[str, Any]]] = [  # of a request, and the same of VLM.ask
        ({}, {}),
        ({"stop": "on"}, {"stop_strings": ["on"]}),
        ({"logprobs": True, "top_logprobs": 2}, {}),
        ({"temperature": 1.5, "top_p": 0.9, "seed": 4}, {"temperature": 1.5, "top_p": 0.9, "seed": 4}),
    ]
    kinds = [
        (scene, question, method, tokens, option)
        for scene in [None, *range(4)]
        for question in range(2)
        for method in ([None] if scene is None else [None, "crop-blend", "air", "vcd"])
        for tokens in (1, 32, 48)
        for option in (0, 0, 0, 1, 2, 3)  # most are greedy, and join
    ]
    asked = [draw.choice(kinds) for _ in range(96)]
    fail, real = "zebra zebra zebra", vlm.builder.build
    known = {}
    for kind in set(asked):
        scene, question, method, tokens, option = kind
        image = None if scene is None else scenes[scene].path
        answer = vlm.ask(image, questions[question], method=method, max_new_tokens=tokens, **options[option][1])
        known[kind] = answer.text

    def build(rows: Any, **more: Any) -> Any:
        if any(fail in row.prompt for row in rows):
            raise RuntimeError("the model failed")
        return real(rows, **more)

    monkeypatch.setattr(vlm.builder, "build", build)

    def post(number: int) -> str | None:
        scene, question, method, tokens, option = asked[number]
        shown = content(None if scene is None else Image.open(scenes[scene].path), questions[question])
        body = {"model": "tiny", "messages": [{"role": "user", "content": shown}], "max_tokens": tokens}
        body |= {"airvlm": {"method": method}, "stream": False, **options[option][0]}
        if number % 8 == 3:
            shown[-1]["text"] = fail
            assert httpx.post(f"{address}/v1/chat/completions", json=body, timeout=300).status_code == 500
            return None
        if number % 8 == 5:
            body |= {"stream": True, "max_tokens": 200}
            with httpx.stream("POST", f"{address}/v1/chat/completions", json=body, timeout=300) as left:
                next(left.iter_lines())
            return None
        return str(
            httpx.post(f"{address}/v1/chat/completions", json=body, timeout=300).json()["choices"][0]["message"][
                "content"
            ]
        )

    with ThreadPoolExecutor(32) as clients:
        texts = list(clients.map(post, range(len(asked))))
    answered = [(text, known[kind]) for text, kind in zip(texts, asked, strict=True) if text is not None]
    assert len(answered) == 72
    assert all(text == own for text, own in answered), answered
