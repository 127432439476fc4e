"""The command line: what it prints, where, and how it fails."""

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from airvlm import cli
from airvlm.methods import METHODS
from airvlm.models.families import FAMILIES
from tests import tiny_models
from tests.checkpoints import save_llava

QUESTION = "is there a fork in the image ?"
SETTINGS = ["--set", "num_crops=4", "--set", "num_prototypes=4", "--max-new-tokens", "6"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_llava(tmp_path_factory.mktemp("llava")))


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("images") / "scene.png"
    tiny_models.sample_image(1, (96, 80)).save(path)
    return str(path)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*arguments: str) -> tuple[int, str, str]:
        code = cli.run(arguments)
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


def one_object(text: str) -> dict[str, Any]:
    """Standard output that is one JSON object and nothing else."""
    assert text.count("\n") == 1
    value: dict[str, Any] = json.loads(text)
    return value


def test_no_help_and_no_version_needs_a_model_library() -> None:
    script = """
import sys
from airvlm import cli
for line in [["--help"], ["--version"], *([name, "--help"] for name in cli.COMMANDS)]:
    assert cli.run(line) == 0, line
    loaded = {"torch", "transformers", "numpy", "PIL", "matplotlib"} & set(sys.modules)
    assert not loaded, (line, loaded)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert all(name in done.stdout for name in cli.COMMANDS)


@pytest.mark.parametrize("name", list(cli.COMMANDS))
def test_every_command_explains_itself_with_examples(name: str, run: Any) -> None:
    code, out, _ = run(name, "--help")
    assert code == 0
    assert "Usage: airvlm" in out
    assert "Examples" in out


def test_ask_prints_the_answer_and_tells_apart_what_it_did(run: Any, model: str, image: str) -> None:
    code, out, err = run("ask", image, QUESTION, "-m", model, "--method", "air", *SETTINGS)
    assert code == 0
    assert out.strip()
    assert "air: acted" in err
    assert "acted" not in out


def test_ask_without_a_method_has_no_report(run: Any, model: str, image: str) -> None:
    code, out, _ = run("ask", image, QUESTION, "-m", model, "--method", "none", "--json", "--max-new-tokens", "4")
    answer = one_object(out)
    assert code == 0
    assert answer["method"] is None
    assert answer["report"] is None
    assert answer["tokens"] <= 4


def test_ask_as_json_is_one_object(run: Any, model: str, image: str) -> None:
    code, out, _ = run("ask", image, QUESTION, "-m", model, "--json", *SETTINGS)
    answer = one_object(out)
    assert code == 0
    assert answer["method"]["patches"] == 4
    assert answer["report"]["fired"] is True
    assert len(answer["report"]["crops"][0]) == 4


def test_several_images_and_standard_input_make_one_question(
    run: Any, model: str, image: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open(image, "rb") as piped:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(piped))
        code, out, err = run("ask", "-", QUESTION, "--image", image, "-m", model, "--json", *SETTINGS)
    assert code == 0, err
    assert len(one_object(out)["report"]["crops"]) == 2


def test_a_seed_repeats_a_sampled_answer(run: Any, model: str, image: str) -> None:
    line = ["ask", image, QUESTION, "-m", model, "--json", *SETTINGS, "--temperature", "5", "--top-p", "0.99"]
    texts = [one_object(run(*line, "--seed", seed)[1])["text"] for seed in ("1", "1", "2", "3")]
    assert texts[0] == texts[1]
    assert len(set(texts)) > 1


def test_models_cuts_no_name(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    code, out, _ = run("models")
    assert code == 0
    for family in FAMILIES.values():
        assert f"  {family.checkpoint}\n" in out
        assert f"{family.title}  {family.model_type}\n" in out


def test_help_shows_brackets_as_they_are(run: Any) -> None:
    assert "airvlm[lora]" in run("ask", "--help")[1]


def test_what_is_stopped_by_the_keyboard_says_so(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("airvlm.cli.models.models_markdown", interrupted)
    assert run("models", "--markdown") == (130, "", "airvlm: stopped by Ctrl-C\n")


def test_describe_asks_the_sentence_of_the_evaluations(run: Any, model: str, image: str) -> None:
    code, out, _ = run("describe", image, "-m", model, "--json", *SETTINGS)
    assert code == 0
    assert one_object(out)["question"] == "Please describe this image in detail."


def test_compare_shows_every_method(run: Any, model: str, image: str) -> None:
    methods = ["--method", "none", "--method", "air:num_crops=4,num_prototypes=4,weight=0.9"]
    code, out, _ = run("compare", image, QUESTION, "-m", model, *methods, "--max-new-tokens", "6")
    assert code == 0
    assert "none" in out
    assert "air:num_crops=4" in out
    code, out, _ = run("compare", image, QUESTION, "-m", model, *methods, "--max-new-tokens", "6", "--json")
    assert list(one_object(out)["answers"]) == methods[1::2]


def test_look_writes_an_image(run: Any, model: str, image: str, tmp_path: Path) -> None:
    target = tmp_path / "look.png"
    code, out, _ = run("look", image, QUESTION, "-m", model, "-o", str(target), "--json", *SETTINGS)
    assert code == 0
    assert one_object(out)["output"] == str(target)
    with Image.open(target) as drawing:
        assert drawing.width > 600


def test_models_lists_every_family(run: Any) -> None:
    code, out, _ = run("models", "--json")
    assert code == 0
    assert {row["model_type"] for row in one_object(out)["families"]} >= {"llava", "qwen2_5_vl", "gemma3"}


def test_methods_explains_every_field(run: Any) -> None:
    code, out, _ = run("methods", "--json")
    listed = one_object(out)["methods"]
    assert code == 0
    assert list(listed) == list(METHODS)
    for name, about in listed.items():
        assert about["summary"], name
        for field in about["fields"]:
            assert field["meaning"], f"{name}.{field['name']} has no meaning"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["ask", "/no/such.png", "what ?"], "/no/such.png does not exist"),
        (["ask", "CORRUPT", "what ?"], "not a readable image"),
        (["ask", "IMAGE", ""], "the question is empty"),
        (["ask", "IMAGE", "what ?", "--method", "magic"], "unknown method 'magic'"),
        (["ask", "IMAGE", "what ?", "--set", "colour=red"], "colour"),
        (["ask", "IMAGE", "what ?", "--set", "top_q"], "write field=value"),
        (["ask", "IMAGE", "what ?", "--set", "num_prototypes=many"], "top_q"),
        (["ask", "IMAGE", "what ?", "--set", "num_crops=-1"], "patches"),
        (["ask", "IMAGE", "what ?", "--method", "none", "--set", "num_prototypes=3"], "no method"),
        (["ask", "https://example.org/x.png", "what ?"], "add --allow-urls"),
        (["ask", "IMAGE", "what ?", "--seed", "1"], "add --temperature"),
        (["ask", "IMAGE", "what ?", "--stop", ""], "--stop"),
        (["ask", "IMAGE", "what ?", "--temperature", "0", "--top-p", "0.5"], "greedy"),
        (["ask", "-", "what ?", "--image", "-"], "one image"),
        (["ask", "IMAGE"], "Missing argument"),
        (["ask", "IMAGE", "what ?", "--max-new-tokens", "0"], "max-new-tokens"),
        (["compare", "IMAGE", "--method", "air", "--method", "air"], "named twice"),
        (["look", "IMAGE", "--method", "none"], "looks at nothing"),
        (["look", "IMAGE", "-o", "/no/such/folder/x.png"], "no folder"),
        (["look", "IMAGE", "-o", "x.txt"], "write to .png"),
        (["methods", "magic"], "unknown method 'magic'"),
        (["scene", "--context", "moon"], "no context 'moon'"),
        (["dance"], "No such command"),
    ],
)
def test_bad_input_is_one_line_and_code_2(
    run: Any, model: str, image: str, tmp_path: Path, arguments: list[str], said: str
) -> None:
    corrupt = tmp_path / "corrupt.png"
    corrupt.write_bytes(b"\x89PNG\r\n\x1a\nnothing of use")
    places = {"IMAGE": image, "CORRUPT": str(corrupt)}
    line = [places.get(word, word) for word in arguments]
    if line[0] in ("ask", "compare", "look"):
        line += ["-m", model]
    for extra in [[], ["--json"]] if line[0] != "dance" else [[]]:
        code, out, err = run(*line, *extra)
        assert code == 2
        assert out == ""
        assert err.startswith("airvlm: ")
        assert err.count("\n") == 1, err
        assert said in err


@pytest.mark.parametrize("folder", ["/no/such/model", "EMPTY", "NOT_A_VLM"])
def test_a_wrong_model_folder_is_one_line_and_code_2(run: Any, image: str, tmp_path: Path, folder: str) -> None:
    (tmp_path / "EMPTY").mkdir()
    (tmp_path / "NOT_A_VLM").mkdir()
    (tmp_path / "NOT_A_VLM" / "config.json").write_text('{"model_type": "bert"}')
    where = folder if folder.startswith("/") else str(tmp_path / folder)
    code, out, err = run("ask", image, "what ?", "-m", where)
    assert code == 2
    assert out == ""
    assert err.count("\n") == 1, err
    assert where in err


def test_no_traceback_reaches_a_person() -> None:
    line = [sys.executable, "-m", "airvlm", "scene", "--context", "moon"]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1, done.stderr
