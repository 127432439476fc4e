"""Every table of the paper has its tasks, its rows and its figures, and says what nobody can reproduce."""

from __future__ import annotations

from typing import Any

import pytest

import airvlm.methods
from airvlm.reporting.paper import LLAVA, QWEN
from airvlm.reporting.paper_tables import READINGS, TABLES, rows_of
from airvlm.reporting.reproduction import beside
from airvlm.tasks import TASKS


@pytest.fixture(autouse=True)
def real_methods(fake_names: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The evaluation's fakes replace the parser; here the real one is needed."""
    monkeypatch.setattr(airvlm.methods, "parse_method", fake_names)


def test_the_paper_has_21_tables_by_number() -> None:
    assert list(TABLES) == [f"table{n}" for n in range(1, 22)]


@pytest.mark.parametrize("name", TABLES)
def test_every_part_has_a_task_and_rows_that_the_paper_prints(name: str) -> None:
    for part in TABLES[name].parts:
        assert part.task in TASKS
        rows = rows_of(part, None, 32)
        assert rows[0].label == "vanilla" and rows[0].method is None
        printed = {row for of_model in part.printed.rows.values() for row in of_model}
        assert printed <= {row.name for row in rows}
        for figures in (f for of_model in part.printed.rows.values() for f in of_model.values()):
            assert len(figures) == len(part.printed.metrics)


@pytest.mark.parametrize("name", TABLES)
def test_every_table_says_what_nobody_can_reproduce(name: str) -> None:
    lines = TABLES[name].beyond_reach()
    assert lines and all(line.strip() for line in lines)


@pytest.mark.parametrize(
    ("name", "row", "metric", "value"),
    [
        ("table1", "air", "CHAIR_S", 18.4),
        ("table5", "30-32", "CHAIR_S", 22.0),
        ("table6", "prototype-based token reduction", "CHAIR_I", 6.2),
        ("table7", "vaf", "CHAIR_S", 20.4),
        ("table8", "vcd", "CHAIR_S", 8.2),
        ("table14", "air", "holistic", 2.55),
        ("table15", "memvr", "int:rec+ocr+know", 21.2),
        ("table17", "air", "BLEU", 14.2),
        ("table18", "random patch", "CHAIR_S", 22.3),
        ("table21", "AIR (noise)", "CHAIR_I", 7.9),
    ],
)
def test_a_cell_is_what_the_paper_prints(name: str, row: str, metric: str, value: float) -> None:
    assert TABLES[name].parts[0].printed.value(LLAVA, row, metric) == value


def test_a_share_that_500_images_cannot_give_is_named() -> None:
    assert any("22.7" in line and "22.3" in line for line in TABLES["table6"].beyond_reach())
    assert any("47.5" in line for line in TABLES["table19"].beyond_reach())
    assert not any("no share" in line for line in TABLES["table1"].beyond_reach())


def test_layers_are_shares_of_the_depth_and_each_reading_has_its_own_row() -> None:
    rows = rows_of(TABLES["table5"].parts[0], ["air-paper:keep=3"], 6)
    assert {row.name: row.label for row in rows}["16-32"] == "air-paper:keep=3,layers=(3,6)"
    air = [row.label for row in rows_of(TABLES["table1"].parts[0], None, 32) if row.name == "air"]
    assert air == list(READINGS)


def test_a_reading_without_layers_cannot_stand_in_the_table_of_layers() -> None:
    with pytest.raises(ValueError, match="no effect"):
        rows_of(TABLES["table5"].parts[0], ["air"], 32)


@pytest.mark.parametrize(
    ("name", "model", "theirs", "same"),
    [
        ("table1", "llava-hf/llava-1.5-7b-hf", LLAVA, True),
        ("table1", "Qwen/Qwen-VL-Chat", QWEN, True),
        ("table1", "tiny", LLAVA, False),
        ("table9", "llava-hf/llava-1.5-7b-hf", QWEN, False),
        ("table20", "llava-hf/llava-1.5-13b-hf psp-dada/SENTINEL", "SENTINEL on LLaVA-1.5-13B", True),
        ("table20", "llava-hf/llava-1.5-7b-hf ", LLAVA, True),
    ],
)
def test_figures_stand_beside_those_of_the_same_model(name: str, model: str, theirs: str, same: bool) -> None:
    assert beside(TABLES[name], model) == (theirs, same)
