"""Weights in 4 and 8 bits: `--quantize` loads them, and every method acts on the model as on any other."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
import torch

from airvlm import VLM, cli, tiny
from airvlm.cli.common import load_model
from airvlm.cli.options import ModelOptions
from airvlm.models.loading import avoid_packing_on_cpu
from airvlm.testing import small_models
from airvlm.testing.method_laws import turn_off
from tests.default_methods import METHODS

pytest.importorskip("bitsandbytes", reason="quantized loading needs airvlm[quantize]")
pytest.importorskip("accelerate", reason="transformers loads quantized weights by accelerate")

pytestmark = pytest.mark.usefixtures("interpreted")
QUESTION = "Please describe this image in detail."
LAYERS = {"4bit": "Linear4bit", "8bit": "Linear8bitLt"}
bits = pytest.mark.parametrize("bits", LAYERS)


@pytest.fixture(scope="module")
def embedded() -> dict[str, VLM]:
    """The embedded model of scenes, whose width (96) is not a multiple of the 64 weights that share a scale."""
    return {bits: load_model(ModelOptions(model="tiny", quantize=bits)) for bits in LAYERS}


@pytest.fixture(scope="module")
def llava(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random LLaVA, saved."""
    folder = tmp_path_factory.mktemp("llava")
    model, _ = small_models.build("llava")
    model.save_pretrained(folder)
    return folder


@bits
def test_the_decoder_is_in_fewer_bits_and_the_answer_is_near(bits: str, embedded: dict[str, VLM]) -> None:
    scene = tiny.scenes("test")[0]
    vlm = embedded[bits]
    kinds = {type(module).__name__ for module in vlm.model.get_decoder().layers[0].modules()}
    assert LAYERS[bits] in kinds
    assert "Linear" not in kinds
    said = vlm.ask(scene.path, QUESTION, max_new_tokens=24).text
    assert said.startswith("The image")
    assert scene.context in said  # the place is right, whatever becomes of the objects


@bits
@pytest.mark.parametrize("name", METHODS)
def test_every_method_acts_and_is_off_at_strength_0(bits: str, name: str, embedded: dict[str, VLM]) -> None:
    vlm, scene = embedded[bits], tiny.scenes("test")[1]
    plain = vlm.ask(scene.path, QUESTION, max_new_tokens=6)
    acted = vlm.ask(scene.path, QUESTION, method=METHODS[name], max_new_tokens=6)
    assert acted.report is not None
    assert acted.report.fired
    off = turn_off(METHODS[name])
    assert vlm.ask(scene.path, QUESTION, method=off, max_new_tokens=6).text == plain.text
    assert vlm.ask(scene.path, QUESTION, max_new_tokens=6).text == plain.text


@bits
@pytest.mark.parametrize("name", METHODS)
def test_the_hooks_change_the_logits_of_a_quantized_llava(bits: str, name: str, llava: Path) -> None:
    from transformers import AutoModelForImageTextToText, BitsAndBytesConfig

    how = BitsAndBytesConfig(load_in_4bit=bits == "4bit", load_in_8bit=bits == "8bit")
    model = AutoModelForImageTextToText.from_pretrained(llava, quantization_config=how, dtype=torch.float32)
    avoid_packing_on_cpu(model)
    _, processor = small_models.shared_model("llava")
    rows = small_models.sample_rows()[:1]
    batch = small_models.build_inputs(processor, rows)
    with torch.no_grad():
        plain = model(**batch).logits
        with METHODS[name](model, processor, images=[list(images) for _, images in rows]) as run:
            acted = model(**batch).logits
        assert torch.equal(model(**batch).logits, plain)
    assert torch.isfinite(acted).all()
    if name != "vcd":  # acts on logits while it generates
        assert run.report.fired
        assert not torch.equal(acted, plain)


def test_the_command_line_answers_and_says_nothing_else(capfd: pytest.CaptureFixture[str]) -> None:
    line = ["ask", str(tiny.scenes("test")[0].path), "Is there a cup?", "--model", "tiny", "--json"]
    for bits in LAYERS:
        assert cli.run([*line, "--quantize", bits, "--method", "crop-blend"]) == 0
        printed = capfd.readouterr()
        assert json.loads(printed.out)["report"]["fired"]
        assert printed.err == ""


def test_without_bitsandbytes_the_command_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name, *rest: None if name == "bitsandbytes" else real(name, *rest)
    )
    scene = str(tiny.scenes("test")[0].path)
    assert cli.run(["ask", scene, "Is there a cup?", "--model", "tiny", "--quantize", "4bit"]) == 2
    printed = capsys.readouterr()
    assert "pip install" in printed.err
    assert "pip install bitsandbytes" in printed.err
