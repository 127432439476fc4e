"""An exported folder makes transformers' own generate, and its server, answer under the method."""

import base64
import json
import os
import shutil
import sys
import threading
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForImageTextToText, AutoProcessor

from airvlm import VLM, CropBlend, get_method, tiny
from airvlm.cli import run
from airvlm.inputs.images import load_image
from airvlm.integrations.custom_generate import export, generate
from airvlm.tiny import scenes
from tests.external.servers import free_port, serving

QUESTION = "Please describe this image in detail."
COUNT = 8


@pytest.fixture(scope="module")
def vlm() -> VLM:
    return VLM.load("tiny")


@pytest.fixture(scope="module")
def images() -> list[Any]:
    return [load_image(scene.path) for scene in scenes("test")[4 : 4 + COUNT]]


def _inputs(vlm: VLM, image: Any) -> dict[str, Any]:
    return vlm.builder.build([vlm.builder.read(image, QUESTION)], pixels=True)


def _text(vlm: VLM, inputs: dict[str, Any], ids: Any) -> str:
    return vlm.processor.decode(ids[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True).strip()


def _from_pixels(vlm: VLM, image: Any, method: Any) -> str:
    """What the method says where only the pixel tensor is known, as in every call that transformers itself makes."""
    inputs = _inputs(vlm, image)
    with torch.no_grad(), method(vlm.model) as under:
        ids = vlm.model.generate(**inputs, max_new_tokens=24, do_sample=False)
    assert under.report.fired
    return _text(vlm, inputs, ids)


@pytest.mark.slow
def test_generate_from_the_exported_folder_is_the_methods(vlm, images, tmp_path):
    assert run(["export-generate", str(tmp_path), "--method", "crop-blend", "--set", "weight=0.5"]) == 0
    options = {"custom_generate": str(tmp_path), "trust_remote_code": True}
    options |= {"max_new_tokens": 24, "do_sample": False}
    changed = 0
    for image in images:
        inputs = _inputs(vlm, image)
        default = _text(vlm, inputs, vlm.model.generate(**inputs, **options))
        assert default == _from_pixels(vlm, image, CropBlend(weight=0.5))
        plain = _text(vlm, inputs, vlm.model.generate(**inputs, method="vanilla", **options))
        assert plain == vlm.ask(image, QUESTION, max_new_tokens=24).text
        chosen = {"method": "crop-blend", "images": [image], "processor": vlm.processor}
        given = _text(vlm, inputs, vlm.model.generate(**inputs, **chosen, **options))
        assert given == vlm.ask(image, QUESTION, method=CropBlend(), max_new_tokens=24).text
        changed += plain != default
    assert changed
    assert "generate" not in vars(vlm.model)


def test_without_trust_nothing_runs(vlm, images, tmp_path):
    export(tmp_path, CropBlend())
    with pytest.raises(ValueError, match="trust_remote_code"):
        vlm.model.generate(**_inputs(vlm, images[0]), custom_generate=str(tmp_path), trust_remote_code=False)


def test_a_method_that_is_unknown_is_refused_when_it_is_exported(tmp_path, capsys):
    assert run(["export-generate", str(tmp_path), "--method", "nonsense"]) == 2
    assert "nonsense" in capsys.readouterr().err
    assert not (tmp_path / "custom_generate").exists()


def test_what_was_exported_is_every_field(tmp_path):
    written = export(tmp_path, get_method("crop-blend:weight=0.5"), tmp_path / "reports.jsonl")
    space: dict[str, Any] = {}
    exec(written.read_text(), space)
    assert space["METHOD"] == CropBlend(weight=0.5).to_json()
    assert space["REPORTS"] == str(tmp_path / "reports.jsonl")


@pytest.mark.slow
@pytest.mark.parametrize("clients", [2, 4])
def test_threads_that_share_a_model_take_turns(vlm, images, tmp_path, clients):
    """As a server does: `model.generate` is taken while another call runs, and called later."""
    folder = tmp_path / "model"
    shutil.copytree(tiny.model_path(), folder)
    reports = tmp_path / "reports.jsonl"
    export(folder, CropBlend(weight=0.5), reports)
    model = AutoModelForImageTextToText.from_pretrained(folder, trust_remote_code=True, dtype=torch.float32).eval()
    expected = [_from_pixels(vlm, image, CropBlend(weight=0.5)) for image in images]
    taken = threading.Barrier(clients)

    def answer(i: int) -> str:
        inputs = _inputs(vlm, images[i])
        call = model.generate
        if i < clients:
            taken.wait()
        return _text(vlm, inputs, call(**inputs, max_new_tokens=24, do_sample=False))

    with ThreadPoolExecutor(clients) as pool:
        texts = list(pool.map(answer, range(COUNT)))
    assert texts == expected
    fired = [json.loads(line)["fired"] for line in reports.read_text().splitlines()]
    assert fired == [True] * COUNT


def test_a_text_alone_is_answered_as_it_is(vlm):
    ids = vlm.processor.tokenizer("USER: hello ASSISTANT:", return_tensors="pt")
    texts = generate(model=vlm.model, **ids, max_new_tokens=4, do_sample=False)
    assert torch.equal(texts, vlm.model.generate(**ids, max_new_tokens=4, do_sample=False))


def test_an_error_in_generate_is_the_callers_and_leaves_the_model_as_it_was(vlm, images):
    inputs = _inputs(vlm, images[0])
    with pytest.raises(ValueError, match="prefill_chunk_size"):
        generate(model=vlm.model, **inputs, prefill_chunk_size=4)
    assert "generate" not in vars(vlm.model)
    texts = generate(model=vlm.model, **inputs, max_new_tokens=24, do_sample=False)
    assert _text(vlm, inputs, texts) == _from_pixels(vlm, images[0], CropBlend())


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """`transformers serve` on a folder with an exported generate."""
    folder = tmp_path_factory.mktemp("served") / "model"
    shutil.copytree(tiny.model_path(), folder)
    reports = folder.parent / "reports.jsonl"
    export(folder, CropBlend(weight=0.5), reports)
    port = free_port()
    script = str(Path(sys.executable).with_name("transformers"))
    command = [script, "serve", str(folder), "--host", "127.0.0.1", "--port", str(port)]
    command += ["--trust-remote-code", "--device", "cpu", "--dtype", "float32"]
    source = str(Path(__file__).resolve().parents[2] / "src")
    found = {"PYTHONPATH": os.pathsep.join([source, os.environ.get("PYTHONPATH", "")])}
    with serving(command, folder.parent / "log", port=port, environment=found) as server:
        yield server.address, str(folder), reports


def _complete(address: str, model: str, path: Path) -> str:
    data = base64.b64encode(path.read_bytes()).decode()
    content = [
        {"type": "image_url", "image_url": {"url": f"data:image/webp;base64,{data}"}},
        {"type": "text", "text": QUESTION},
    ]
    body = {
        "model": model,
        "messages": [{"role": "user", "content": content}],
        "max_tokens": 24,
        "temperature": 0,
    }
    request = urllib.request.Request(
        f"{address}/v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=300) as response:
        return str(json.load(response)["choices"][0]["message"]["content"]).strip()


@pytest.mark.slow
@pytest.mark.parametrize("clients", [2, 4])
def test_every_answer_of_transformers_serve_is_the_methods(vlm, images, served, clients):
    address, model, reports = served
    paths = [scene.path for scene in scenes("test")[4 : 4 + COUNT]]
    before = len(reports.read_text().splitlines()) if reports.exists() else 0
    with ThreadPoolExecutor(clients) as pool:
        texts = list(pool.map(lambda path: _complete(address, model, path), paths))
    assert texts == [_from_pixels(vlm, image, CropBlend(weight=0.5)) for image in images]
    fired = [json.loads(line)["fired"] for line in reports.read_text().splitlines()[before:]]
    assert fired == [True] * COUNT


@pytest.mark.slow
def test_a_processor_of_the_folder_is_unchanged(tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(tiny.model_path(), folder)
    export(folder, CropBlend())
    assert AutoProcessor.from_pretrained(folder).image_token == "<image>"
