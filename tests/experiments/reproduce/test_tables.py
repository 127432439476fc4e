"""A table of the paper measured again: plans, figures side by side, and what is not compared."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airvlm.evaluation.statistics import Estimate
from experiments.reproduce.__main__ import main
from experiments.reproduce.tables import Compared

CELL = Compared("chair", "air", "air:keep=3", "CHAIR_S", 18.4, Estimate(19.0, 17.0, 21.0, 1.0, 500), -3.6,
                Estimate(-1.0, -2.0, 0.0, 0.5, 500), same_model=True)  # fmt: skip


def _run(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    assert main(list(words)) == code
    return capsys.readouterr().out


def test_the_papers_figure_is_compared_with_our_interval() -> None:
    assert CELL.differs is False and CELL.change_differs is True
    assert replace(CELL, paper=25.0).differs is True
    assert replace(CELL, paper=None).differs is None


def test_figures_of_another_model_are_neither_equal_nor_different() -> None:
    other = replace(CELL, same_model=False)
    assert other.differs is None and other.change_differs is None
    assert other.to_json()["differs"] is None and other.to_json()["paper"] == 18.4


def test_a_plan_names_what_is_missing_and_where_it_comes_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = _run(capsys, "table3", "--plan", "--data", str(tmp_path), "--model", "nowhere/at-all")
    assert "mme: cannot be asked" in said and "mmbench: cannot be asked" in said
    assert str(tmp_path) in said
    assert "BradyFU/Awesome-Multimodal-Large-Language-Models" in said
    assert "answers: 0; hours: not measured" in said
    assert "what nobody can reproduce" in said
    assert said.count("--method air:keep=3") == 1  # each method once, not once per part


@pytest.mark.slow
def test_a_plan_counts_answers_and_measures_hours(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["table18", "--plan", "--model", "tiny", "--air", "air:keep=6", "--json"]
    plan: dict[str, Any] = json.loads(_run(capsys, *words))
    [part] = plan["parts"]
    assert [row["method"] for row in part["rows"]] == ["vanilla", "air:keep=6", "random-crops(air:keep=6)"]
    assert plan["answers"] == part["answers"] == 4500
    assert 0 < plan["hours"] < 100


@pytest.mark.slow
def test_a_table_is_printed_beside_the_papers_and_not_compared_for_another_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["table8", "--model", "tiny", "--limit", "12", "--air", "air:keep=3", "--batch-size", "16"]
    words += ["--output", str(tmp_path)]
    found: dict[str, Any] = json.loads(_run(capsys, *words, "--json"))
    cells = {(c["row"], c["metric"]): c for c in found["cells"]}
    air = cells["air", "CHAIR_S"]
    assert (air["paper"], air["method"], air["paper_change"]) == (6.8, "air:keep=3", 0.0)
    assert cells["crop-blend", "CHAIR_S"]["paper"] is None
    assert {cell["differs"] for cell in cells.values()} == {None}  # an emoji model against a 7B one
    assert cells["vanilla", "CHAIR_S"]["change"] is None
    assert not found["same_model"] and found["paper_model"] == "LLaVA-1.5-7B"
    before = (tmp_path / "answers.jsonl").read_bytes()
    said = _run(capsys, *words)
    assert (tmp_path / "answers.jsonl").read_bytes() == before  # nothing is asked twice
    assert "another model than ours: they are shown, not compared" in said
    assert "figures are not compared" in said and "outside our interval" not in said
    assert "≠" not in said and "≈" not in said
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
        (["table5", "--model", "tiny", "--air", "crop-blend"], "has no layers"),
        (["table1", "--model", "tiny", "--air", "magic"], "magic"),
        (["docs", "/nowhere/README.md"], "No such file"),
    ],
)
def test_bad_input_ends_in_one_line(words: list[str], trouble: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and trouble in said
