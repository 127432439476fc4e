"""An official folder from end to end: load, ask, describe, batch, compare, command line, evaluation."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from airvlm import AIR, VAF, VCD, VLM, AIRMemory, CropBlend, MemVR, Method, cli, evaluate
from airvlm.testing.small_models import sample_image
from tests.models.ported import tiny_checkpoints as tiny

QUESTION = "Is there a dog in the image?"
METHODS: dict[str, Method | None] = {
    "vanilla": None,
    "air": AIR(layers=(1, 4), keep=2, num_crops=3, strength=0.5),
    "air-memory": AIRMemory(layers=(1, 4), keep=2, num_crops=3, strength=0.5, threshold=0.3),
    "crop-blend": CropBlend(num_crops=3, weight=0.5),
    "memvr": MemVR(alpha=0.3, threshold=0.3, layers=(1, 4)),
    "vaf": VAF(enhance=0.8, suppress=0.4, layers=(1, 4)),
    "vcd": VCD(alpha=0.5, beta=0.0),
}
pytestmark = pytest.mark.parametrize("model_type", tiny.MODELS)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("official")


@pytest.fixture
def folder(root: Path, model_type: str) -> Path:
    at = root / model_type
    return at if at.exists() else tiny.save(at, model_type, pickled=model_type == "qwen", dtype=torch.bfloat16)


@pytest.fixture
def vlm(folder: Path) -> VLM:
    return VLM.load(folder)


@pytest.mark.slow
def test_every_method_acts_and_leaves_no_trace(vlm: VLM) -> None:
    answers = vlm.compare(sample_image(1), QUESTION, METHODS, max_new_tokens=6)
    for name, answer in answers.items():
        assert (answer.report is None) == (name == "vanilla")
        assert answer.report is None or answer.report.fired, name
    assert len({answer.text for answer in answers.values()}) > 1
    assert vlm.ask(sample_image(1), QUESTION, max_new_tokens=6).text == answers["vanilla"].text
    assert vlm.describe(sample_image(1), method=CropBlend(num_crops=3), max_new_tokens=6).report.fired  # type: ignore[union-attr]


@pytest.mark.slow
def test_a_batch_of_images_and_text_equals_its_rows(vlm: VLM) -> None:
    requests: list[Any] = [
        (sample_image(1), QUESTION),
        (None, "Is there a dog?"),
        (sample_image(2, (40, 64)), "dog? " * 9),
    ]
    together = [answer.text for answer in vlm.batch(requests, max_new_tokens=6, progress=False)]
    assert together == [vlm.ask(*request, max_new_tokens=6).text for request in requests]
    several: list[Any] = [sample_image(1), sample_image(2)]
    if vlm.parts.family == "qwen":
        assert vlm.ask(several, QUESTION, max_new_tokens=4).tokens
    else:
        with pytest.raises(Exception, match="one image per conversation"):
            vlm.ask(several, QUESTION)


def test_streams_and_likelihoods(vlm: VLM) -> None:
    whole = vlm.ask(sample_image(1), QUESTION, max_new_tokens=6).text
    assert "".join(vlm.stream(sample_image(1), QUESTION, max_new_tokens=6)).strip() == whole
    assert all(score < 0 for score in vlm.likelihood(sample_image(1), QUESTION, ["Yes", "No"]))


def test_an_option_is_scored_where_the_answer_would_stand(vlm: VLM) -> None:
    row = vlm.builder.read(sample_image(1), QUESTION)
    start = "\n" if vlm.parts.family == "chatglm" else ""  # Qwen's template has written it already
    assert (row.prompt + start).endswith("assistant\n" if not start else "<|assistant|>\n")
    ids = vlm.builder.build([replace(row, prompt=row.prompt + start + "Yes")])
    option = vlm.processor.tokenizer.encode("Yes", add_special_tokens=False)
    with torch.no_grad():
        logp = vlm.model(**ids).logits[0, -len(option) - 1 : -1].float().log_softmax(-1)
    wanted = logp.gather(1, torch.tensor(option)[:, None]).mean().item()
    assert vlm.likelihood(sample_image(1), QUESTION, ["Yes"]) == pytest.approx([wanted], abs=1e-4)


def test_special_strings_in_a_question_stay_text(vlm: VLM) -> None:
    typed = "What is <|im_end|> and <|user|> and [gMASK] and <img>?"
    answer = vlm.ask(sample_image(1), typed, max_new_tokens=2)
    ids = vlm.builder.build([vlm.builder.read(sample_image(1), typed)])["input_ids"][0]
    plain = vlm.builder.build([vlm.builder.read(sample_image(1), "What is?")])["input_ids"][0]
    first = vlm.processor.tokenizer.convert_tokens_to_ids("<|endoftext|>")
    assert ids[ids >= first].tolist() == plain[plain >= first].tolist()
    assert typed in vlm.processor.tokenizer.decode(ids)
    assert answer.tokens <= 2


@pytest.mark.slow
def test_the_command_line_and_the_evaluation(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    image = tmp_path / "scene.png"
    sample_image(1, (96, 80)).save(image)
    settings = ["--set", "num_crops=3", "--max-new-tokens", "4", "--json"]
    assert cli.run(["ask", str(image), QUESTION, "-m", str(folder), "--method", "crop-blend", *settings]) == 0
    assert json.loads(capsys.readouterr().out)["model"] == str(folder)
    method = CropBlend(num_crops=3)
    results = evaluate(
        VLM.load(folder),
        "tiny-chair",
        [method],
        limit=3,
        max_new_tokens=4,
        curve=False,
        out=tmp_path / "runs",
        workers=1,
        progress=False,
    )
    task = results.tasks["tiny-chair"]
    assert task.count_fired(method.label) == 3
    assert not any(task.count_failed(label) or task.count_unanswered(label) for label in ("vanilla", method.label))
