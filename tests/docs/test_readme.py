"""README.md is short, its links work, its example prints what it shows, and generated parts are up to date."""

import re
from pathlib import Path
from typing import Any

import pytest

from airvlm import VLM
from airvlm.models.families import FAMILIES
from airvlm.testing import check_method
from tools import readme

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
LINKS = re.findall(r"\]\(([^)\s]+)\)|(?:src|href)=\"([^\"]+)\"", README)
TARGETS = [link or attribute for link, attribute in LINKS]
PHOTOGRAPH = ROOT / "src/airvlm/serve/photographs/astronaut.webp"


def table(first_cell: str) -> list[list[str]]:
    """The rows of the table whose head begins with this cell, without the line below the head."""
    lines = README[README.index(f"| {first_cell} |") :].split("\n\n")[0].splitlines()
    rows = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines if line.startswith("|")]
    return [rows[0], *rows[2:]]


def test_it_has_at_most_130_lines() -> None:
    assert len(README.splitlines()) <= 130


def test_every_linked_file_exists() -> None:
    files = {target.partition("#")[0] for target in TARGETS if not target.startswith(("https://", "#"))}
    assert files
    assert not [file for file in files if not (ROOT / file).exists()]


def test_every_anchor_is_a_heading() -> None:
    headings = {
        re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")
        for heading in re.findall(r"^#+ (.+)$", README, re.MULTILINE)
    }
    assert {target[1:] for target in TARGETS if target.startswith("#")} <= headings


@pytest.mark.slow
def test_the_shipped_model_gives_the_answers_shown() -> None:
    vlm = VLM.load()
    question = "Is there a dining table in the image?"
    row = next(line for line in README.splitlines() if line.startswith(f"| {question}"))
    answers = [vlm.ask(PHOTOGRAPH, question, method=method).text for method in (None, "crop-blend")]
    assert row.replace("**", "") == f"| {question} | {answers[0]} | {answers[1]} |"
    assert f'print(vlm.ask(photograph, "{question}", method=method).text)  # {answers[0]}, then {answers[1]}' in README

    row = next(line for line in README.splitlines() if PHOTOGRAPH.name in line and line.startswith("| <img"))
    shown = [cell.strip().replace("**", "") for cell in row.strip("| ").split(" | ")[1:]]
    assert shown == [vlm.describe(PHOTOGRAPH, method=method).text for method in (None, "crop-blend")]


@pytest.mark.slow
def test_the_method_of_the_readme_keeps_the_laws() -> None:
    names: dict[str, Any] = {"__name__": "__example__"}
    code = next(block for block in re.findall(r"^```python\n(.*?)^```", README, re.M | re.S) if "class Damp" in block)
    exec(code[: code.index("print(")], names)
    assert check_method(names["Damp"](strength=0.5), families=["llava"])


def test_the_results_have_at_most_8_rows_and_5_columns() -> None:
    head, *rows = table("method")
    assert len(head) <= 5
    assert len(rows) <= 8


def test_it_counts_the_model_families() -> None:
    assert f"[{len(FAMILIES)} model families]" in README


def test_generated_parts_are_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    assert readme.main(["--check"]) == 0, capsys.readouterr().out


def test_a_part_is_replaced_between_its_markers() -> None:
    text = "a\n<!-- generated: x -->\nold\n<!-- end of x -->\nb\n"
    assert readme.replace_part(text, "x", "new\n") == text.replace("old", "new")
    with pytest.raises(ValueError, match="generated: y"):
        readme.replace_part(text, "y", "new")


def test_a_block_of_mkdocstrings_becomes_markers_of_options() -> None:
    text = "## Options\n\n::: airvlm.methods.vcd.VCD\n    options:\n      members: false\n\n## Limits\n"
    new = "## Options\n\n<!-- generated: options of vcd -->\n<!-- end of options of vcd -->\n\n## Limits\n"
    assert readme.add_markers(text) == new
    assert "| `alpha` | `1.0` |" in readme.options_on(new)["options of vcd"]()


def test_every_method_has_a_page() -> None:
    page = (ROOT / "docs/reference/methods/index.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| ") and "`" in line]
    assert rows
    assert not [row for row in rows if not row.startswith("| [`")], "write docs/reference/methods/NAME.md"
