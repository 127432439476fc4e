"""`airvlm reproduce`: plans, tables beside the paper's, and the README's tables in the command's form."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from airvlm import cli
from airvlm.reporting.readme_tables import blocks

README = Path(__file__).parents[2] / "README.md"
ALONE = ["--workers", "1", "--batch-size", "16"]


def _run(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    assert cli.run(["reproduce", *words]) == code
    return capsys.readouterr().out


def _cells(line: str) -> list[str]:
    return [cell.strip().replace("\\", "") for cell in line.strip().strip("|").split("|")]


def _form(cell: str) -> str:
    return re.sub(r"[+−]?\d+(\.\d+)?", "N", cell)


def test_a_plan_names_what_is_missing_and_where_it_comes_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = _run(capsys, "table3", "--plan", "--data", str(tmp_path), "--model", "nowhere/at-all")
    assert "mme: cannot be asked" in said and "mmbench: cannot be asked" in said
    assert str(tmp_path) in said
    assert "BradyFU/Awesome-Multimodal-Large-Language-Models" in said
    assert "answers to give: 0" in said
    assert "hours: not measured" in said
    assert "what nobody can reproduce" in said


@pytest.mark.slow
def test_a_plan_counts_answers_and_measures_hours(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["table18", "--plan", "--model", "tiny", "--method", "air:keep=6", "--json"]
    plan: dict[str, Any] = json.loads(_run(capsys, *words))
    [part] = plan["parts"]
    assert [row["method"] for row in part["rows"]] == ["vanilla", "air:keep=6", "air-random-crops:keep=6"]
    assert part["rows"][1]["settings"]["keep"] == 6
    assert plan["answers"] == part["items"] * 3 == 4500
    assert 0 < plan["hours"] < 100
    assert "3 of 3 methods tried" in plan["hours_note"]


@pytest.mark.slow
def test_a_table_stands_beside_the_papers_with_intervals_and_marks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["table8", "--model", "tiny", "--limit", "12", "--method", "air", *ALONE, "--out", str(tmp_path)]
    found: dict[str, Any] = json.loads(_run(capsys, *words, "--json"))
    cells = {(c["row"], c["metric"]): c for c in found["cells"]}
    air = cells["air", "CHAIR_S"]
    assert (air["paper"], air["method"], air["paper_change"]) == (6.8, "air", 0.0)
    for cell in cells.values():
        low, high = cell["ours"]["low"], cell["ours"]["high"]
        # where no answer names a wrong object there is no interval, and nothing is said
        assert cell["differs"] is (None if low is None else not low <= cell["paper"] <= high)
    assert {True, False} <= {cell["differs"] for cell in cells.values()}
    assert cells["vanilla", "CHAIR_S"]["change"] is None
    assert not found["same_model"] and found["paper_model"] == "LLaVA-1.5-7B"
    before = (tmp_path / "answers.jsonl").read_bytes()
    said = _run(capsys, *words)
    assert (tmp_path / "answers.jsonl").read_bytes() == before  # nothing is asked twice
    assert "of the paper's figures lie outside our interval" in said
    assert (tmp_path / "table8.png").stat().st_size > 5_000
    assert "what nobody can reproduce" in said


@pytest.mark.parametrize(
    ("words", "trouble"),
    [
        (["table0"], "table1 to table21"),
        (["figure1"], "table1 to table21"),
        (["table1"], "needs --data FOLDER"),
        (["table1", "--data", "/nowhere"], "--plan lists everything"),
        (["table3", "--model", "tiny"], "no counterpart"),
        (["table5", "--model", "tiny", "--method", "air"], "no effect"),
        (["table1", "--model", "tiny", "--method", "magic"], "magic"),
        (["readme", "--readme", "/nowhere/README.md"], "No such file"),
    ],
)
def test_bad_input_ends_in_one_line(words: list[str], trouble: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["reproduce", *words]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and trouble in said


def test_a_readme_without_markers_or_with_broken_ones_is_refused_and_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "README.md"
    nothing = "<!-- results: tiny-chair of " + str(tmp_path / "runs") + " -->\n<!-- end -->\n"
    for text in ("no tables\n", "<!-- results: a of b -->\n", nothing):
        path.write_text(text)
        assert cli.run(["reproduce", "readme", "--readme", str(path)]) == 2
        assert capsys.readouterr().err.count("\n") == 1
        assert path.read_text() == text


@pytest.mark.slow
def test_what_stands_between_the_readmes_markers_has_the_commands_form(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, runs = tmp_path / "README.md", tmp_path / "runs"
    command = "airvlm evaluate tiny-chair --model tiny --limit 12 --workers 1 --batch-size 16 --method air"
    absent = f"<!-- results: chair of airvlm evaluate chair --data {tmp_path}/none --out {tmp_path}/other -->"
    left = f"{absent}\n| left |\n<!-- end -->\nafter\n"
    path.write_text(f"before\n<!-- results: tiny-chair of {command} --out {runs} -->\n<!-- end -->\n{left}")
    said = _run(capsys, "readme", "--readme", str(path))
    assert "1 tables, changed: tiny-chair" in said
    text = path.read_text()
    assert text.startswith("before\n") and text.endswith(left)  # the images of that table are not here
    made = blocks(text)[0].table.splitlines()
    again = _run(capsys, "readme", "--readme", str(path))
    assert "changed: none" in again and path.read_text() == text

    methods: dict[str, list[str]] = {}
    for block in blocks(README.read_text()):
        head, rule, *rows = block.table.splitlines()
        methods[block.folder] = block.methods or methods[block.folder]
        assert [_cells(row)[0] for row in rows] == methods[block.folder]
        assert re.fullmatch(r"\|---(\|---:)+\|", rule)
        assert all(len(_cells(row)) == len(_cells(head)) for row in rows)
        for row in rows:
            for cell in _cells(row)[1:]:
                assert re.fullmatch(r"(|–|N|N ± (N|\?)|N \[(N, N|\?)\].*)", _form(cell)), cell
        if block.task == "tiny-chair":
            assert [c for c in _cells(head) if "matched" not in c] == _cells(made[0])
    assert [_form(c) for c in _cells(made[2])[1:4]] == ["N ± N"] * 3
