"""Marked tables of a page are found, replaced and refused by their markers."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.reproduce.__main__ import main
from experiments.reproduce.docs import find_blocks, replace_blocks, update

TEXT = """before
<!-- results: tiny-chair of airvlm evaluate tiny-chair --output runs/tiny --method air
     --method crop-blend:num_prototypes=24 -->
| old |
<!-- end -->
between
<!-- results: tiny-pope of runs/tiny -->
<!-- end -->
<!-- output: airvlm info tasks -->
<!-- end -->
after
"""


def test_a_marker_names_a_task_and_the_command_or_folder_it_is_of() -> None:
    first, second, third = find_blocks(TEXT)
    assert (first.task, first.folder) == ("tiny-chair", "runs/tiny")
    assert (second.task, second.folder) == ("tiny-pope", "runs/tiny")
    assert first.methods == ["vanilla", "air", "crop-blend:num_prototypes=24"]
    assert first.command is not None and first.command[0] == "evaluate"
    assert second.command is None and second.methods == []
    assert third.task == "" and third.command == ["info", "tasks"]


def test_only_what_is_between_the_markers_is_replaced() -> None:
    text = replace_blocks(TEXT, ["| new |\n", "| pope |\n", "| tasks |\n"])
    assert "| old |" not in text
    assert text.replace("| new |", "| old |").replace("| pope |\n", "").replace("| tasks |\n", "") == TEXT
    assert replace_blocks(text, ["| new |", "| pope |", "| tasks |"]) == text


@pytest.mark.parametrize(
    ("text", "trouble"),
    [
        ("<!-- results: a of runs -->\n| table |\n", "no '<!-- end -->'"),
        ("<!-- results: a -->\n<!-- end -->", "write a marker as"),
        ("<!-- results: a of airvlm serve --output x -->\n<!-- end -->", "airvlm evaluate"),
        ("<!-- results: a of airvlm evaluate a -->\n<!-- end -->", "--output FOLDER"),
        ("<!-- results: a of x -->\n<!-- results: b of y -->\n<!-- end -->", "write a marker as"),
        ("<!-- output: rm -rf x -->\n<!-- end -->", "give an airvlm command"),
    ],
)
def test_a_marker_that_cannot_be_read_is_refused_and_the_page_left_alone(
    text: str, trouble: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ValueError, match=trouble):
        find_blocks(text)
    page = tmp_path / "page.md"
    page.write_text(text)
    assert main(["docs", str(page)]) == 2 and capsys.readouterr().err.count("\n") == 1
    assert page.read_text() == text


def test_a_plan_says_what_would_be_run_and_runs_nothing(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(TEXT)
    lines = update(page, plan=True)
    assert [line.split(": ")[1] for line in lines] == ["tiny-chair", "tiny-pope", "airvlm info tasks"]
    assert page.read_text() == TEXT


@pytest.mark.slow
def test_a_page_gets_the_tables_of_its_commands(tmp_path: Path) -> None:
    page, runs = tmp_path / "page.md", tmp_path / "runs"
    command = "airvlm evaluate tiny-chair --model tiny --limit 12 --workers 1 --batch-size 16 --method crop-blend"
    absent = f"<!-- results: chair of airvlm evaluate chair --data {tmp_path}/none --output {tmp_path}/other -->"
    left = f"{absent}\n| left |\n<!-- end -->\nafter\n"
    listed = "<!-- output: airvlm score --list -->\n<!-- end -->\n"
    page.write_text(f"before\n<!-- results: tiny-chair of {command} --output {runs} -->\n<!-- end -->\n{listed}{left}")
    lines = update(page)
    assert [line.split(": ")[-1] for line in lines][:2] == ["changed", "changed"]
    assert "left as it is" in lines[2]
    text = page.read_text()
    assert text.startswith("before\n") and text.endswith(left)  # the images of that table are not here
    chair, tasks, _ = find_blocks(text)
    head, rule, vanilla, method = chair.table.splitlines()
    assert head.startswith("| method | CHAIR\\_S | CHAIR\\_I | recall | CHAIR\\_S, difference to vanilla |")
    assert set(rule) == set("|-:") and vanilla.startswith("| vanilla |") and method.startswith("| crop-blend |")
    assert "tiny-pope" in tasks.table
    assert all(line.endswith("unchanged") for line in update(page)[:2]) and page.read_text() == text
