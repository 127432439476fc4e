"""Help texts: nothing of what was written is lost, every command has examples, and the examples run as printed."""

import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from airvlm import cli, tiny
from tests.cli.conftest import Run
from tests.fuzz import kinds
from tests.golden import DATA

WIDTH = 80
NEEDS = re.compile(
    r"needs the network|needs vllm|serves until|need 4 GB|several people measured|needs an artifact"
)  # said in the text before an example
# what an example needs that is not here: a model or data of the hub, or NLTK's data
ABSENT = ("llava-hf/", "runs/llava", "--variant wordnet", "score amber", "data get", "data where", "data verify")
SHORTER = {"evaluate": ["--limit", "2", "--workers", "1", "--no-curve"]}  # 1,500 scenes take minutes
LONG = ("calibrate",)  # spends a budget: tests/evaluation/test_calibration.py


def squeeze(text: str) -> str:
    return "".join(text.split())


@pytest.fixture(params=list(cli.COMMANDS))
def command(request: pytest.FixtureRequest) -> Any:
    return cli.load_command(request.param)


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(WIDTH))


def test_no_word_of_a_help_text_is_lost(command: Any, run: Run) -> None:
    printed = squeeze(run(command.name, "--help").out)
    assert squeeze(command.help.replace("\b", "")) in printed
    for param in command.params:
        assert squeeze(param.help or "") in printed, param.name
        assert all(option in printed for option in param.opts if option.startswith("-"))


def test_help_fits_a_terminal_and_shows_no_types_of_flags(command: Any, run: Run) -> None:
    printed = run(command.name, "--help").out
    text = [line for line in printed.splitlines() if not line.startswith("    airvlm ")]  # examples are not wrapped
    assert [line for line in text if len(line) > WIDTH] == []
    assert "<bool>" not in printed and "...." not in printed
    assert run(command.name, "-h").out == printed


def test_every_option_is_explained_in_a_sentence(command: Any) -> None:
    for param in command.params:
        assert param.help, param.name
        assert re.match(r"[A-Z0-9a-z-]", param.help)
        assert param.help.rstrip().endswith((".", "]", "all)")), param.help


def examples(name: str) -> list[str]:
    """The examples in a command's help that can be run here."""
    found, skip = [], False
    for line in cli.load_command(name).help.splitlines():
        if not line.startswith("  airvlm "):
            skip = bool(NEEDS.search(line))
        elif not skip and not any(word in line for word in ABSENT):
            found.append(line.strip())
    return found


def test_every_command_has_examples() -> None:
    for name in cli.COMMANDS:
        assert f"  airvlm {name}" in cli.load_command(name).help, name


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with the files that the examples use."""
    Image.effect_noise((320, 200), 60).convert("RGB").save(tmp_path / "photo.jpg")
    (tmp_path / "photos").mkdir()
    for number in range(2):
        Image.effect_noise((96, 80), 60 + number).convert("RGB").save(tmp_path / "photos" / f"{number}.jpg")
    (tmp_path / "questions.txt").write_text("Is there a cup in the image?\n/report\n/quit\n")
    shutil.copytree(tiny.model_path(), tmp_path / "my-llava")
    (tmp_path / "answers.jsonl").write_text("\n".join(map(json.dumps, kinds.ANSWERS)))
    (tmp_path / "coco_pope_random.json").write_text("\n".join(map(json.dumps, kinds.QUESTIONS)))
    shutil.copytree(DATA / "amber" / "data", tmp_path / "AMBER" / "data")
    shutil.copy(DATA / "amber" / "generative.json", tmp_path / "answers.json")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in cli.COMMANDS if name not in LONG])
def test_every_example_runs_as_printed(name: str, run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airvlm.analysis.attribution.OCCLUSIONS", 4)  # 64 passes per answer take half a minute
    shown = examples(name)
    if name == "report":
        assert run(*"evaluate tiny-chair --limit 2 --workers 1 --no-curve --output runs/tiny".split()).code == 0
    if name not in ("serve", "bake"):  # which runs until it is stopped, and needs a file: test_artifacts.py
        assert shown
    for example in shown:
        words = [*shlex.split(example)[1:], *SHORTER.get(name, [])]
        if "<" in words:
            with open(words[words.index("<") + 1]) as piped:
                monkeypatch.setattr("sys.stdin", piped)
                done = run(*words[: words.index("<")])
        else:
            done = run(*words)
        assert done.code == 0, (example, done.err)
        assert done.out.strip(), example
        assert "emoji scene" not in done.err, f"{example}: the wrong model for its image"


def test_the_overview_s_examples_are_commands(run: Run) -> None:
    lines = [line.strip() for line in cli.EXAMPLES.splitlines() if line.startswith("  airvlm ")]
    assert lines
    for line in lines:
        assert shlex.split(line)[1] in cli.COMMANDS
