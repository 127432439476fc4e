"""The examples: what a package or a file adds from outside is used like what airvlm has, by ask and evaluate."""

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

from airvlm import VLM, CropBlend, ModelParts, UnsupportedModel, cli, evaluate, tiny
from airvlm.models.families import FAMILIES
from airvlm.tasks import TASKS, load_task
from airvlm.testing import check_method
from airvlm.testing.small_models import build_tokenizer

SCENE = str(tiny.scenes("test")[0].path)
EXAMPLES = Path(__file__).parents[2] / "examples"

pytestmark = pytest.mark.slow  # packages are built and installed


@pytest.fixture(scope="module")
def vlm() -> VLM:
    return VLM.load("tiny")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    """The JSON of a command that must succeed."""
    code = cli.run([*arguments, "--json"])
    printed = capsys.readouterr()
    assert code == 0, printed.err
    result: dict[str, Any] = json.loads(printed.out)
    return result


# -- a method


def test_the_method_is_shown_with_its_options_and_its_package(
    installed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    about = run(capsys, "info", "methods", "steering")
    assert about["package"] == "airvlm-steering"
    assert [option["name"] for option in about["options"]] == ["toward", "away", "strength"]
    assert all(option["help"] for option in about["options"])


@pytest.mark.parametrize(
    "spelled", ["steering:strength=0.5", "airvlm_steering:Steering:strength=0.5", "crop-blend+steering:strength=0.5"]
)
def test_the_method_answers_however_it_is_spelled(installed: Path, vlm: VLM, spelled: str) -> None:
    report = vlm.ask(SCENE, "Is there a cup?", method=spelled).report
    assert report is not None and report.fired
    steering = (report.parts or [report])[-1]
    assert steering.tokens == 64
    assert steering.norm_ratio is not None and steering.norm_ratio.mean == pytest.approx(0.5, rel=1e-3)


def test_the_method_changes_answers_and_keeps_the_laws(installed: Path, vlm: VLM) -> None:
    from airvlm_steering import Steering

    plain = vlm.describe(SCENE).text
    assert vlm.describe(SCENE, method=Steering(strength=2.0)).text != plain
    check_method(Steering(toward="cat", away="dog", strength=2.0), families=["llava"])
    with pytest.raises(ValueError, match="strength"):
        Steering(strength=-1.0)


def test_the_method_is_compared_and_evaluated(
    installed: Path, vlm: VLM, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = run(capsys, "ask", SCENE, "--model", "tiny", "--method", "vanilla", "--method", "steering")
    assert found["answers"]["steering"]["report"]["fired"]
    results = evaluate(
        vlm, "tiny-existence", ["steering"], limit=8, curve=False, out=tmp_path / "run", workers=1, progress=False
    )
    assert set(results.to_frame()["method"]) == {"vanilla", "steering"}


# -- a method in one file


def test_a_file_is_enough_for_a_method(vlm: VLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    for spelled in ("pai:PAI", "pai:PAI:alpha=3.0", "pai:PAI"):  # also again, once the method is known
        report = vlm.describe(SCENE, method=spelled).report
        assert report is not None and report.layers == (2, 3, 4, 5)
    plain, raised = (
        vlm.likelihood(SCENE, "Is there a cup?", ["Yes", "No"], method=m) for m in (None, "pai:PAI:alpha=3.0")
    )
    assert plain != raised


def test_the_method_in_one_file_keeps_the_laws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    check_method("pai:PAI:alpha=2.0", families=["llava"])


# -- a task


def test_the_task_has_twenty_questions_and_its_package(installed: Path) -> None:
    task = load_task("twenty-questions")
    items = task.items()
    assert len(items) == 20
    assert {item.truth for item in items} == {"yes", "no"}
    for item in items:
        named = item.question.removeprefix("Is there a").removeprefix("n").removesuffix(" in the image?").strip()
        assert (named in item.image.names) is (item.truth == "yes"), item
    assert TASKS.package("twenty-questions") == "airvlm-twenty-questions"


def test_the_task_is_evaluated_and_reported(
    installed: Path, vlm: VLM, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    results = evaluate(vlm, "twenty-questions", ["crop-blend"], curve=False, out=out, workers=1, progress=False)
    frame = results.to_frame().set_index(["method", "metric"])
    assert frame.loc[("vanilla", "accuracy"), "n"] == 20
    assert frame.loc[("vanilla", "accuracy"), "value"] > 60  # the embedded model answers nine of ten such questions
    assert frame.loc[("crop-blend", "accuracy"), "fired"] == 20
    report = run(capsys, "report", str(out), "--output", str(tmp_path / "page"))
    assert "twenty-questions" in Path(report["files"]["html"]).read_text()


def test_without_its_package_the_task_is_unknown() -> None:
    with pytest.raises(ValueError, match="'twenty-questions'"):
        load_task("twenty-questions")


# -- a family


@pytest.fixture(scope="module")
def deepseek(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random DeepSeek-VL of a few thousand weights, saved as people save theirs."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("deepseek")
    words = build_tokenizer()
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
    rows = {row["model_type"]: row for row in run(capsys, "info", "models")["families"]}
    assert rows["deepseek_vl"]["title"] == "DeepSeek-VL"
    assert rows["deepseek_vl"]["package"] == "airvlm-deepseek-vl"
    assert FAMILIES.package("llava") == "airvlm"


def test_the_family_answers_under_a_method(installed: Path, deepseek: Path) -> None:
    vlm = VLM.load(deepseek)
    question = "is there a fork in the image ?"
    plain = vlm.ask(SCENE, question, max_new_tokens=8)
    blend = vlm.ask(SCENE, question, method=CropBlend(weight=0.9), max_new_tokens=8)
    assert blend.report is not None and blend.report.fired
    assert blend.report.tokens == 16
    assert vlm.ask(SCENE, question, max_new_tokens=8).text == plain.text


def test_the_family_is_evaluated(installed: Path, deepseek: Path, tmp_path: Path) -> None:
    results = evaluate(
        VLM.load(deepseek),
        "tiny-existence",
        ["crop-blend", "vaf"],
        limit=4,
        max_new_tokens=4,
        curve=False,
        out=tmp_path / "run",
        workers=1,
        progress=False,
    )
    fired = results.to_frame().groupby("method")["fired"].max()
    assert fired["crop-blend"] == fired["vaf"] == len(results.tasks["tiny-existence"].items) > 0
