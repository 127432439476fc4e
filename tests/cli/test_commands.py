"""Every command line: where it prints, how it fails, and what it may import."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from airvlm import cli
from airvlm.cli.info import DRIVERS
from tests.cli.conftest import Run

OPTIONAL = {"matplotlib", "pandas", "ray", "fastapi", "uvicorn", "gradio", "pyarrow", "nltk", "vllm", "lmms_eval"}
HEAVY = OPTIONAL | {"torch", "transformers", "tokenizers", "huggingface_hub", "scipy", "jinja2"}


def run_python(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, env=os.environ | environment
    )


@pytest.mark.parametrize(
    ("line", "most"),
    [
        (["--help"], 300),
        (["--version"], 300),
        *([[name, "--help"], 700] for name in cli.COMMANDS),
        (["info"], 600),
        (["info", "methods"], 600),
        (["info", "crop-blend"], 600),
        (["info", "models"], 600),
        (["info", "tasks"], 800),
        pytest.param(
            ["info", "installation"],
            600,
            marks=pytest.mark.skipif(any(map(os.path.exists, DRIVERS)), reason="torch is asked for GPUs"),
        ),
        (["data", "list"], 700),
        (["scene", "-o", "SCENE"], 700),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_needs_no_model_imports_no_model_library(line: list[str], most: int, tmp_path: Path) -> None:
    line = [str(tmp_path / "scene.png") if word == "SCENE" else word for word in line]
    script = f"""
import sys
from airvlm import cli
from airvlm.cli.info import DRIVERS
assert cli.run({line!r}) == 0
loaded = {HEAVY!r} & set(sys.modules)
assert not loaded, loaded
assert len(sys.modules) < {most}, len(sys.modules)
"""
    done = run_python(script)
    assert done.returncode == 0, done.stderr


def test_ask_imports_what_the_model_needs_and_nothing_else(image: str) -> None:
    script = f"""
import sys
from airvlm import cli
from airvlm.cli.info import DRIVERS
assert cli.run(["ask", {image!r}, "Is there a cat?", "--model", "tiny", "--max-new-tokens", "1"]) == 0
ports = [name for name in sys.modules if name.startswith(("airvlm.models.", "airvlm.serve", "airvlm.evaluation"))]
print(sorted({OPTIONAL!r} & set(sys.modules)), sorted(ports))
"""
    done = run_python(script)
    assert done.returncode == 0, done.stderr
    assert (
        done.stdout.splitlines()[-1] == "[] ['airvlm.models.families', 'airvlm.models.loading', 'airvlm.models.parts']"
    )


def test_the_overview_has_every_command_in_full(run: Run) -> None:
    printed = " ".join(run().out.split())
    for name, (_, line) in cli.COMMANDS.items():
        assert f"{name} {line}" in printed
    assert run("-h").out == run("--help").out == run().out


def test_the_version_is_printed_alone(run: Run) -> None:
    assert run("--version").out == f"{cli.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["aks"], "did you mean airvlm ask?"),
        (["dance"], "unknown command 'dance'; the commands are demo, ask"),
        (["describe", "x.png"], "unknown command 'describe'; did you mean airvlm ask?"),
        (["methods"], "unknown command 'methods'; did you mean airvlm info methods?"),
        (["evalute"], "unknown command 'evalute'; did you mean airvlm evaluate?"),
        (["ask", "/no/such.png"], "/no/such.png does not exist"),
        (["ask", "CORRUPT"], "not a readable image"),
        (["ask", "IMAGE", ""], "the question is empty"),
        (["ask", "IMAGE", "--method", "magic"], "unknown method 'magic'"),
        (["ask", "IMAGE", "--method", "crop-blnd"], "unknown method 'crop-blnd'; did you mean crop-blend?\n"),
        (["ask", "IMAGE", "--set", "wieght=1"], "did you mean weight?"),
        (["ask", "IMAGE", "--set", "color=red"], "crop-blend has no option 'color'; it has num_crops"),
        (["ask", "IMAGE", "--set", "weight"], "write option=value"),
        (["ask", "IMAGE", "--set", "weight="], "has no value"),
        (["ask", "IMAGE", "--set", "num_crops=many"], "num_crops = 'many': give an integer"),
        (["ask", "IMAGE", "--set", "num_crops=-1"], "num_crops"),
        (["ask", "IMAGE", "--method", "vanilla", "--set", "weight=3"], "vanilla has no options"),
        (["ask", "IMAGE", "--method", "vaf", "--method", "air", "--set", "keep=3"], "--set with several --method"),
        (["ask", "IMAGE", "--method", "crop-blend+crop-blend", "--set", "weight=0"], "write it behind the one"),
        (["ask", "IMAGE", "--method", "air", "--method", "air"], "given twice"),
        (["ask", "IMAGE", "--chat", "--method", "air", "--method", "vaf"], "one --method at a time"),
        (["ask", "-", "--chat"], "give the image as a file"),
        (["ask", "IMAGE", "--system", "be short"], "--system is for --chat"),
        (["ask", "https://example.org/x.png"], "add --allow-urls"),
        (["ask", "IMAGE", "--seed", "1"], "add --temperature"),
        (["ask", "IMAGE", "--stop", ""], "--stop"),
        (["ask", "IMAGE", "--temperature", "0", "--top-p", "0.5"], "greedy"),
        (["ask", "-", "--image", "-"], "one image"),
        (["ask"], "Missing argument"),
        (["ask", "IMAGE", "--max-new-tokens", "0"], "max-new-tokens"),
        (["ask", "IMAGE", "--dtype", "int8"], "Invalid value for '--dtype': 'int8' is not one of 'float32'"),
        (["ask", "IMAGE", "--modle", "x"], "--model"),
        (["visualize", "IMAGE", "--method", "vanilla"], "vanilla uses no crops and changes no visual token"),
        (["visualize", "IMAGE", "--method", "vcd"], "vcd uses no crops and changes no visual token"),
        (["visualize", "IMAGE", "--method", "vaf"], "vaf uses no crops and changes no visual token"),
        (["visualize", "IMAGE", "-o", "/no/such/folder/x.png"], "does not exist"),
        (["visualize", "IMAGE", "-o", "x.txt"], "must end in .png"),
        (["info", "methdos"], "did you mean methods?"),
        (["info", "photo.jpg"], "photo.jpg does not exist"),
        (["info", "methods", "magic"], "unknown method 'magic'"),
        (["info", "models", "lava"], "did you mean llava?"),
        (["info", "tasks", "chiar"], "did you mean chair?"),
        (["info", "--markdown"], "--markdown is for"),
        (["scene", "--context", "moon"], "no context 'moon'"),
        (["demo", "--scene", "elsewhere"], "no such scene"),
        (["demo", "--method", "vanilla"], "choose a method"),
        (["analyze", "everything"], "unknown analysis 'everything'; there are tokens"),
        (["analyze", "margins", "--model", "photo"], "add --data FOLDER"),
        (["analyze", "agreement", "--data", "."], "add --objects FILE"),
        (["bench", "--method", "vaf", "--method", "vaf"], "given twice"),
        (["bench", "--model", "/no/such/folder", "--method", "vaf"], "no such"),
        (["serve", "--", "--max-model-len", "9"], "options after -- are for --engine vllm"),
        (["serve", "--page", "--engine", "vllm"], "leave out --engine vllm"),
        (["check", "vanilla"], "nothing to check"),
        (["check", "vaf", "--family", "lava"], "there are llava"),
    ],
)
def test_bad_input_is_one_line_and_code_2(
    run: Run, model: str, image: str, tmp_path: Path, arguments: list[str], said: str
) -> None:
    corrupt = tmp_path / "corrupt.png"
    corrupt.write_bytes(b"\x89PNG\r\n\x1a\nnothing of use")
    places = {"IMAGE": image, "CORRUPT": str(corrupt)}
    line = [places.get(word, word) for word in arguments]
    if line[0] in ("ask", "visualize"):
        line += ["-m", model]
    done = run(*line)
    assert (done.code, done.out) == (2, ""), done
    assert done.err.startswith("airvlm: ")
    assert done.err.count("\n") == 1, done.err
    assert said in done.err


def test_attention_that_is_not_installed_is_one_line(run: Run, model: str, image: str) -> None:
    done = run("ask", image, "-m", model, "--attention", "flash_attention_2")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"airvlm: cannot load {model}: ")
    assert "flash" in done.err.lower()
    assert run("ask", image, "-m", model, "--attention", "eager").code == 0


@pytest.mark.parametrize("folder", ["/no/such/model", "EMPTY", "NOT_A_VLM"])
def test_a_wrong_model_folder_is_one_line_and_code_2(run: Run, image: str, tmp_path: Path, folder: str) -> None:
    (tmp_path / "EMPTY").mkdir()
    (tmp_path / "NOT_A_VLM").mkdir()
    (tmp_path / "NOT_A_VLM" / "config.json").write_text('{"model_type": "bert"}')
    where = folder if folder.startswith("/") else str(tmp_path / folder)
    done = run("ask", image, "-m", where)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert where in done.err


def test_no_traceback_reaches_a_user() -> None:
    line = [sys.executable, "-m", "airvlm", "scene", "--context", "moon"]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)


def test_ctrl_c_is_reported(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("airvlm.cli.info.models_markdown", interrupt)
    done = run("info", "models", "--markdown")
    assert (done.code, done.out, done.err) == (130, "", "airvlm: stopped by Ctrl-C\n")


@pytest.mark.parametrize("line", ["info methods", "--help", "ask --help", "info models --json"])
def test_a_reader_that_closes_the_pipe_is_no_error(line: str) -> None:
    command = f"{sys.executable} -m airvlm {line} | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("airvlm vis", ["visualize"]),
        ("airvlm ask --quan", ["--quantize"]),
        ("airvlm ask a.png --method crop-b", ["crop-blend"]),
    ],
)
def test_the_shell_completes_commands_options_and_methods(typed: str, found: list[str]) -> None:
    environment = {
        "_AIRVLM_COMPLETE": "complete_bash",
        "COMP_WORDS": typed,
        "COMP_CWORD": str(len(typed.split()) - 1),
    }
    done = run_python("from airvlm import cli; cli.main()", **environment)
    assert done.stdout.split() == found, done


def test_every_word_that_is_redirected_leads_to_a_command() -> None:
    from airvlm.cli import COMMANDS, WORDS

    for word, command in WORDS.items():
        assert word not in COMMANDS
        assert command == "--version" or command.split()[0] in COMMANDS


def test_a_method_in_the_working_folder_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An installed script does not search the working folder by itself."""
    (tmp_path / "of_somebody.py").write_text(
        "from dataclasses import dataclass\nfrom airvlm import VisualTokenMethod\n\n\n@dataclass(frozen=True)\n"
        'class Same(VisualTokenMethod):\n    name, summary = "same", "leaves every token as it is"\n'
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if folder])
    monkeypatch.setattr(sys, "argv", ["airvlm", "info", "methods", "of_somebody:Same"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 0, capsys.readouterr().err
    assert "leaves every token as it is" in capsys.readouterr().out
    del sys.modules["of_somebody"]
