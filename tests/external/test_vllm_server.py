"""`airvlm serve --engine vllm`: vLLM's own server in its own processes, with the plug-in found by its entry point."""

import base64
import io
import json
import sys
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from servers import free_port, serving
from vllm_models import padded_tiny

from airvlm import VLM, CropBlend
from airvlm.inputs.images import load_image
from airvlm.tiny import scenes

DESCRIBE = "Please describe this image in detail."


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """The address, the model's name and the log of a running server."""
    folder, port = padded_tiny(tmp_path_factory.mktemp("served") / "model"), free_port()
    command = [sys.executable, "-m", "airvlm", "serve", "--engine", "vllm", "--model", str(folder)]
    command += ["--set", "weight=0.5", "--port", str(port), "--", "--dtype", "float32", "--max-model-len", "512"]
    command += ["--enforce-eager", "--max-num-seqs", "8", "--trust-request-mm-kwargs"]
    environment = {"VLLM_ENABLE_V1_MULTIPROCESSING": "1", "VLLM_LOGGING_LEVEL": "INFO"}
    environment["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"  # two cores: nothing to reserve
    log = folder.parent / "log"
    with serving(command, log, port=port, environment=environment, seconds=1200) as server:
        yield server.address, str(folder), log


def _post(server: Any, image: Any, **more: Any) -> tuple[int, dict[str, Any]]:
    address, model, _ = server
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    url = f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"
    content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": DESCRIBE}]
    body = {
        "model": model,
        "messages": [{"role": "user", "content": content}],
        "temperature": 0,
        "max_tokens": 24,
    }
    request = urllib.request.Request(
        f"{address}/v1/chat/completions",
        json.dumps(body | more).encode(),
        {"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=300) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def test_requests_at_once_are_answered_each_under_its_own_setting(server):
    vlm = VLM.load("tiny")
    images = [load_image(scene.path) for scene in scenes("test")[4:12]]
    kinds = [(None, CropBlend(weight=0.5)), (False, None), ({"method": {"weight": 0.6}}, CropBlend(weight=0.6))]
    asked = [(image, *kind) for image in images for kind in kinds]

    def answer(one: tuple[Any, Any, Any]) -> str:
        image, setting, _ = one
        more = {} if setting is None else {"mm_processor_kwargs": {"airvlm": setting}}
        status, said = _post(server, image, **more)
        assert status == 200, said
        return str(said["choices"][0]["message"]["content"]).strip()

    with ThreadPoolExecutor(8) as pool:
        got = list(pool.map(answer, asked))
    expected = [vlm.ask(image, DESCRIBE, method=method, max_new_tokens=24).text for image, _, method in asked]
    assert got == expected
    assert got[0::3] != got[1::3]


def test_a_method_that_cannot_run_there_is_a_bad_request_and_the_server_goes_on(server):
    image = load_image(scenes("test")[4].path)
    for setting, name in (
        ({"method": "memvr"}, "memvr"),
        ({"method": "air"}, "air"),
        ("crop-blend", "give false"),
        ({"method": {"weight": "x"}}, "weight"),
    ):
        status, said = _post(server, image, mm_processor_kwargs={"airvlm": setting})
        assert status == 400, said
        assert name in json.dumps(said)
    assert _post(server, image)[0] == 200
