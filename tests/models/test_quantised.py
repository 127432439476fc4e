"""Weights in 4 and 8 bits: `--quantise` loads them, and every method acts on the model as on any other."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
import torch

from airvlm import VLM, cli, tiny
from airvlm.cli.asking import load
from tests import tiny_models
from tests.default_methods import METHODS, Case

pytest.importorskip("bitsandbytes", reason="quantised loading needs airvlm[quantise]")
pytest.importorskip("accelerate", reason="transformers loads quantised weights by accelerate")

pytestmark = pytest.mark.usefixtures("interpreted")
QUESTION = "Please describe this image in detail."
LAYERS = {"4bit": "Linear4bit", "8bit": "Linear8bitLt"}
bits = pytest.mark.parametrize("bits", LAYERS)


@pytest.fixture(scope="module")
def embedded() -> dict[str, VLM]:
    """The embedded model of scenes, whose width (96) is no multiple of the 64 weights that share a scale."""
    return {bits: load("tiny", quantise=bits) for bits in LAYERS}


@pytest.fixture(scope="module")
def llava(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random LLaVA, saved."""
    folder = tmp_path_factory.mktemp("llava")
    model, _ = tiny_models.build("llava")
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
@pytest.mark.parametrize("case", METHODS, ids=lambda case: case.name)
def test_every_method_acts_and_is_off_at_strength_0(bits: str, case: Case, embedded: dict[str, VLM]) -> None:
    vlm, scene = embedded[bits], tiny.scenes("test")[1]
    plain = vlm.ask(scene.path, QUESTION, max_new_tokens=6)
    acted = vlm.ask(scene.path, QUESTION, method=case.on, max_new_tokens=6)
    assert acted.report is not None
    assert acted.report.fired
    if case.off is not None:
        assert vlm.ask(scene.path, QUESTION, method=case.off, max_new_tokens=6).text == plain.text
    assert vlm.ask(scene.path, QUESTION, max_new_tokens=6).text == plain.text


@bits
@pytest.mark.parametrize("case", METHODS, ids=lambda case: case.name)
def test_the_hooks_change_the_logits_of_a_quantised_llava(bits: str, case: Case, llava: Path) -> None:
    from transformers import AutoModelForImageTextToText, BitsAndBytesConfig

    from airvlm.models.quantised import any_size_on_a_cpu

    how = BitsAndBytesConfig(load_in_4bit=bits == "4bit", load_in_8bit=bits == "8bit")
    model = AutoModelForImageTextToText.from_pretrained(llava, quantization_config=how, dtype=torch.float32)
    any_size_on_a_cpu(model)
    _, processor = tiny_models.shared("llava")
    rows = tiny_models.rows()[:1]
    batch = tiny_models.inputs(processor, rows)
    with torch.no_grad():
        plain = model(**batch).logits
        with case.on(model, processor, images=[list(images) for _, images in rows]) as run:
            acted = model(**batch).logits
        assert torch.equal(model(**batch).logits, plain)
    assert torch.isfinite(acted).all()
    if case.name != "vcd":  # acts on logits while it generates
        assert run.report.fired
        assert not torch.equal(acted, plain)


def test_the_command_line_answers_and_says_nothing_else(capfd: pytest.CaptureFixture[str]) -> None:
    line = ["ask", str(tiny.scenes("test")[0].path), "Is there a cup?", "--model", "tiny", "--json"]
    for bits in LAYERS:
        assert cli.run([*line, "--quantise", bits, "--method", "air"]) == 0
        printed = capfd.readouterr()
        assert json.loads(printed.out)["report"]["fired"]
        assert printed.err == ""


def test_without_bitsandbytes_the_command_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name, *rest: None if name == "bitsandbytes" else real(name, *rest)
    )
    scene = str(tiny.scenes("test")[0].path)
    assert cli.run(["ask", scene, "Is there a cup?", "--model", "tiny", "--quantise", "4bit"]) == 2
    printed = capsys.readouterr()
    assert "pip install" in printed.err
    assert "airvlm[quantise]" in printed.err
