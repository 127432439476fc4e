"""Every example of the documentation and the README runs as it stands, page by page, in an empty folder.

```python blocks of a page share one namespace; `$ airvlm ...` lines of ```console blocks are run by the command line.
A block that cannot run here says so in its title: ```sh title="not run: needs a GPU".
"""

import re
import shlex
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from airvlm import cli

ROOT = Path(__file__).parents[2]
PAGES = [
    path
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")))
    if path.exists()
]
FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
PLAIN = {"", "text", "toml", "json", "yaml"}  # what is shown and not run: output, files


@dataclass(frozen=True)
class Block:
    """One fenced block of a page."""

    language: str
    excuse: str  # why it is not run; "" for one that is
    body: str
    line: int


def blocks(text: str) -> list[Block]:
    found = []
    for match in FENCE.finditer(text):
        language = match["info"].split(" ")[0].strip()
        excuse = re.search(r'title="not run: ([^"]+)"', match["info"])
        line = text.count("\n", 0, match.start()) + 1
        found.append(Block(language, excuse[1] if excuse else "", match["body"], line))
    return found


def commands(body: str) -> list[str]:
    """The lines after `$ `, continued ones joined."""
    joined = re.sub(r"\\\n", " ", body)
    return [line[2:].strip() for line in joined.splitlines() if line.startswith("$ ")]


def run_command(line: str, where: str) -> None:
    words = shlex.split(line, comments=True)
    if words[0] == "airvlm":
        assert cli.run(words[1:]) == 0, f"{where}: {line}"
    elif words[0] == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert set(words[1:]) <= set(targets), f"{where}: no such target: {line}"
    elif words[:2] == ["python", "-m"]:
        assert find_spec(words[2]) is not None, f"{where}: no such module: {line}"
    else:
        raise AssertionError(f"{where}: neither airvlm, make nor python -m: {line}")


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_examples_of_a_page_run(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    names: dict[str, Any] = {"__name__": "__example__"}
    for block in blocks(page.read_text()):
        where = f"{page.relative_to(ROOT)}:{block.line}"
        if block.excuse or block.language in PLAIN:
            continue
        if included := re.fullmatch(r'--8<-- "(.+)"\n', block.body):
            assert (ROOT / included[1]).is_file(), where  # run where it lives: tests/examples
        elif block.language == "python":
            exec(compile("\n" * block.line + block.body, str(page), "exec"), names)
        elif block.language == "console":
            for line in commands(block.body):
                run_command(line, where)
        else:
            raise AssertionError(f"{where}: a block of {block.language!r} is not run and does not say why")


def check_command(line: str, where: str) -> None:
    """A command that is not run has a name and options that exist."""
    words = shlex.split(line, comments=True)
    assert words[1] in cli.COMMANDS, f"{where}: no such command: {line}"
    known = {name for param in cli.load_command(words[1]).params for name in (*param.opts, *param.secondary_opts)}
    ours = words[2 : words.index("--")] if "--" in words else words[2:]
    unknown = [word for word in ours if word.startswith("--") and word.partition("=")[0] not in known | {"--help"}]
    assert not unknown, f"{where}: no such option: {' '.join(unknown)} in {line}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_that_are_not_run_have_names_and_options_that_exist(page: Path) -> None:
    text = page.read_text()
    for block in blocks(text):
        if block.language == "sh":
            for line in re.sub(r"\\\n", " ", block.body).splitlines():
                if line.startswith("airvlm "):
                    check_command(line, f"{page.relative_to(ROOT)}:{block.line}")
    for name in re.findall(r"(?<!`)`airvlm ([a-z-]+)[^`]*`", FENCE.sub("", text)):
        assert name in cli.COMMANDS, f"{page.relative_to(ROOT)}: no such command: airvlm {name}"


def test_a_command_that_does_not_exist_is_found() -> None:
    check_command("airvlm ask photo.jpg --method vcd  # a comment", "here")
    with pytest.raises(AssertionError, match="no such option: --sett"):
        check_command("airvlm ask photo.jpg --sett weight=1", "here")
    with pytest.raises(AssertionError, match="no such command"):
        check_command("airvlm describe photo.jpg", "here")


def test_blocks_are_found_with_their_languages_and_excuses() -> None:
    text = 'a\n```python\nx = 1\n```\n\n```sh title="not run: needs a GPU"\nls\n```\n'
    assert blocks(text) == [Block("python", "", "x = 1\n", 2), Block("sh", "needs a GPU", "ls\n", 6)]


def test_commands_are_the_lines_after_the_dollar() -> None:
    assert commands("$ airvlm ask a \\\n    b\noutput\n$ make test\n") == ["airvlm ask a      b", "make test"]
