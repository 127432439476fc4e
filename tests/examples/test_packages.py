"""What a package brings from outside is used like what airvlm has: by ask, compare and evaluate."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForImageTextToText,
    DeepseekVLConfig,
    DeepseekVLProcessor,
    LlamaConfig,
    PreTrainedTokenizerFast,
    SiglipVisionConfig,
)
from transformers.models.deepseek_vl.image_processing_pil_deepseek_vl import DeepseekVLImageProcessorPil

from airvlm import VLM, CropBlend, cli, tiny
from airvlm.models.families import FAMILIES
from airvlm.models.parts import ModelParts, UnsupportedModel
from airvlm.tasks import TASKS, load_task
from tests import tiny_models

SCENE = str(tiny.scenes("test")[0].path)
EXAMPLES = Path(__file__).parents[2] / "examples"


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    """The JSON of a command that must succeed."""
    code = cli.run([*arguments, "--json"])
    printed = capsys.readouterr()
    assert code == 0, printed.err
    result: dict[str, Any] = json.loads(printed.out)
    return result


# -- a method


def test_the_method_is_listed_with_its_fields_and_its_package(
    installed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    about = run(capsys, "methods")["methods"]["steering"]
    assert about["package"] == "airvlm-steering"
    assert [field["name"] for field in about["fields"]] == ["towards", "away", "strength"]
    assert all(field["meaning"] for field in about["fields"])


@pytest.mark.parametrize(
    "spelled", ["steering:strength=0.5", "airvlm_steering:Steering:strength=0.5", "air+steering:strength=0.5"]
)
def test_the_method_answers_however_it_is_spelled(
    installed: Path, capsys: pytest.CaptureFixture[str], spelled: str
) -> None:
    answer = run(capsys, "ask", SCENE, "Is there a cup?", "--method", spelled, "--model", "tiny")
    assert answer["report"]["fired"]
    steering = (answer["report"]["parts"] or [answer["report"]])[-1]
    assert steering["tokens"] == 64
    assert steering["norm_ratio"]["mean"] == pytest.approx(0.5, rel=1e-3)


def test_the_method_keeps_the_laws_without_a_line_for_them(installed: Path) -> None:
    from airvlm_steering import Steering

    vlm = VLM.load("tiny")
    question = "Please describe this image in detail."
    rows = [(scene.path, question) for scene in tiny.scenes("test")[:3]]
    plain = [vlm.ask(*row).text for row in rows]
    steered = [vlm.ask(*row, method=Steering(strength=2.0)).text for row in rows]
    assert steered != plain
    together = vlm.batch(rows, method=Steering(strength=2.0), batch_size=3, progress=False)
    assert [answer.text for answer in together] == steered
    assert [vlm.ask(*row, method=Steering(strength=0.0)).text for row in rows] == plain
    assert [vlm.ask(*row).text for row in rows] == plain
    with pytest.raises(ValueError, match="strength"):
        Steering(strength=-1.0)


def test_the_method_compares_and_evaluates(installed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = run(capsys, "compare", SCENE, "--method", "none", "--method", "steering")
    assert found["answers"]["steering"]["report"]["fired"]
    line = ["evaluate", "tiny-existence", "--limit", "8", "--method", "steering", "--no-curve"]
    found = run(capsys, *line, "--out", str(tmp_path / "run"))
    assert set(found["tiny-existence"]) == {"vanilla", "steering"}


# -- a task


def test_the_task_has_twenty_questions_and_its_package(installed: Path) -> None:
    task = load_task("twenty-questions")
    items = task.items()
    assert len(items) == 20
    assert {item.truth for item in items} == {"yes", "no"}
    for item in items:
        named = item.question.removeprefix("Is there a").removeprefix("n").removesuffix(" in the image?").strip()
        scene = item.image
        assert (named in scene.names) is (item.truth == "yes"), item
    assert TASKS.package("twenty-questions") == "airvlm-twenty-questions"


def test_the_task_is_evaluated_and_reported(
    installed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "run")
    found = run(
        capsys,
        "evaluate",
        "twenty-questions",
        "--model",
        "tiny",
        "--method",
        "air",
        "--out",
        out,
        "--no-curve",
    )
    accuracy = found["twenty-questions"]["vanilla"]["accuracy"]
    assert accuracy["n"] == 20
    assert accuracy["value"] > 60  # the embedded model answers nine of ten such questions
    assert set(found["twenty-questions"]) == {"vanilla", "air"}
    report = run(capsys, "report", out, "--out", str(tmp_path / "page"))
    assert "twenty-questions" in Path(report["files"]["html"]).read_text()


def test_without_its_package_the_task_is_unknown() -> None:
    with pytest.raises(ValueError, match="no task 'twenty-questions'"):
        load_task("twenty-questions")


# -- a family


@pytest.fixture(scope="module")
def deepseek(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random DeepSeek-VL of a few thousand weights, saved as people save theirs."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("deepseek")
    words = tiny_models.tokenizer()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words.backend_tokenizer, extra_special_tokens={"image_token": "<image>"},
        **{name: getattr(words, name) for name in ("bos_token", "eos_token", "pad_token", "unk_token")},
    )  # fmt: skip
    text = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=4,
        num_attention_heads=4, num_key_value_heads=4, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    vision = SiglipVisionConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, image_size=32,
        patch_size=8, vision_use_head=False,
    )  # fmt: skip
    config = DeepseekVLConfig(
        text_config=text.to_dict(), vision_config=vision.to_dict(), tie_word_embeddings=False,
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
    )  # fmt: skip
    model = AutoModelForImageTextToText.from_config(config)
    for parameter in model.parameters():  # large enough that tokens depend on one another
        torch.nn.init.normal_(parameter, std=0.3) if parameter.dim() > 1 else None
    model.save_pretrained(folder)
    pixels = DeepseekVLImageProcessorPil(size={"height": 32, "width": 32}, min_size=8)
    DeepseekVLProcessor(pixels, tokenizer, num_image_tokens=16).save_pretrained(folder)
    return folder


def test_without_its_package_the_family_is_refused_by_name(deepseek: Path) -> None:
    model = AutoModelForImageTextToText.from_pretrained(deepseek)
    with pytest.raises(UnsupportedModel, match="'deepseek_vl' is not among the known ones"):
        ModelParts.of(model)


def test_the_family_is_listed_with_its_package(installed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = {row["model_type"]: row for row in run(capsys, "models")["families"]}
    assert rows["deepseek_vl"]["title"] == "DeepSeek-VL"
    assert rows["deepseek_vl"]["package"] == "airvlm-deepseek-vl"
    assert FAMILIES.package("llava") == "airvlm"


def test_the_family_answers_under_a_method(installed: Path, deepseek: Path) -> None:
    vlm = VLM.load(deepseek)
    plain = vlm.ask(SCENE, "is there a fork in the image ?", max_new_tokens=8)
    air = vlm.ask(SCENE, "is there a fork in the image ?", method=CropBlend(weight=0.9), max_new_tokens=8)
    assert air.report is not None
    assert air.report.fired
    assert air.report.tokens == 16
    assert vlm.ask(SCENE, "is there a fork in the image ?", max_new_tokens=8).text == plain.text


def test_the_family_compares_and_evaluates_on_the_command_line(
    installed: Path, deepseek: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--model", str(deepseek), "--max-new-tokens", "4"]
    found = run(capsys, "compare", SCENE, "is there a dog ?", "--method", "none", "--method", "vaf", *where)
    assert found["answers"]["vaf"]["report"]["fired"]
    line = ["evaluate", "tiny-existence", "--limit", "4", "--method", "air", "--no-curve", *where]
    code = cli.run([*line, "--out", str(tmp_path / "run"), "--json"])
    printed = capsys.readouterr()
    assert code in (0, 1), printed.err  # a random model's words cannot be read as yes or no: that is code 1
    assert set(json.loads(printed.out)["tiny-existence"]) == {"vanilla", "air"}
