"""The result as people and programs read it."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest
from fakes import FakeMethod, FakeVLM
from rich.console import Console

from airvlm.evaluation.evaluate import evaluate
from airvlm.evaluation.plan import Asked
from airvlm.reporting import tables
from airvlm.reporting.task_sheet import figure_cells, task_sheet
from airvlm.tasks import load_task


def cells(task) -> dict[str, dict[str, str]]:
    """{column: {method: text}} of the brief table."""
    sheet = task_sheet("t", task, brief=True)
    return {
        sheet.full_title(column): {label: " ".join(row[i].lines) for label, row in sheet.rows}
        for i, column in enumerate(sheet.columns)
    }


@pytest.fixture(scope="module")
def run(fake_names, tmp_path_factory):
    methods = {"better": FakeMethod("better", 0.7), "idle": FakeMethod("idle", fires=False)}
    folder = tmp_path_factory.mktemp("run")
    return evaluate(FakeVLM(), ["fake-captions", "fake-questions"], methods, folder, progress=False)


def test_json_has_value_low_high_and_n_for_every_metric_of_every_method(run):
    found = json.loads(json.dumps(tables.to_json(run), allow_nan=False))
    assert set(found) == {"fake-captions", "fake-questions"}
    assert list(found["fake-captions"]) == ["vanilla", "better", "idle"]
    for methods in found.values():
        for metrics in methods.values():
            for figure in metrics.values():
                assert set(figure) == {"value", "low", "high", "n"}
    recall = found["fake-captions"]["vanilla"]["recall"]
    assert recall["n"] == 40 and recall["low"] < recall["value"] < recall["high"] <= 100
    assert "CHAIR_S_at_equal_recall" in found["fake-captions"]["better"]
    assert "accuracy_at_equal_yes_ratio" in found["fake-questions"]["better"]
    assert "CHAIR_S_at_equal_recall" not in found["fake-captions"]["vanilla"]


def test_the_table_tells_changes_actions_and_the_distance_at_equal_recall(run):
    by_title = cells(run.tasks["fake-captions"])
    assert by_title["acted of 40"] == {"vanilla": "", "better": "40", "idle": "0"}
    assert by_title["changed of 40"]["idle"] == "0" != by_title["changed of 40"]["better"]
    assert by_title["Δ CHAIR_S at equal recall"]["idle"] == "+0.0 [+0.0, +0.0]"
    assert by_title["Δ CHAIR_S at equal recall"]["vanilla"] == ""
    assert "p = " in by_title["Δ CHAIR_S to vanilla"]["better"]
    assert not any("not counted" in title for title in by_title)


def test_markdown_is_a_table_of_equal_rows(run):
    lines = tables.markdown(run.tasks["fake-questions"]).splitlines()
    assert lines[0].startswith("**fake-questions, test split; 60 items on 30 images")
    assert len({line.count("|") for line in lines[2:]}) == 1 and len(lines) == 2 + 2 + 3


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_the_terminal_shows_everything_whole_at_any_width(run, width):
    text = io.StringIO()
    console = Console(file=text, width=width)
    for task in run.tasks.values():
        for table in tables.rich_tables(task, width):
            console.print(table)
        for _, row in task_sheet("t", task, brief=True).rows:
            for cell in row:
                for line in cell.lines:
                    assert line in text.getvalue()
    assert "…" not in text.getvalue()
    assert all(len(line.rstrip()) <= width for line in text.getvalue().splitlines())


def test_the_legend_says_what_the_columns_mean(run):
    text = " ".join(tables.legend(run))
    for word in ("standard error", "McNemar", "equal recall", "equal yes-ratio", str(run.folder)):
        assert word in text


@pytest.mark.parametrize(("name", "held"), [("fake-captions", "recall"), ("fake-questions", "yes-ratio")])
def test_a_matched_control_shows_its_strength_and_what_it_is_compared_at(run, name, held):
    facts = {"label": "better", "method": {}, "controls": "idle", "weight": 0.23}
    shown = cells(replace(run.tasks[name], matched={"idle": facts}))
    (own,) = (column for title, column in shown.items() if "matched" in title and "equal" in title)
    (beyond,) = (column for title, column in shown.items() if "minus it" in title)
    assert "weight=0.23," in own["idle"] and f" {held} " in beyond["idle"]


def test_what_does_not_count_is_shown(fake_names, tmp_path):
    vlm = FakeVLM(fails=["test/3.png"])
    found = evaluate(vlm, ["fake-captions"], {}, tmp_path, curve=False, progress=False)
    assert cells(found.tasks["fake-captions"])["not counted of 40"] == {"vanilla": "1 failed"}


def test_few_images_have_no_interval_and_say_so(fake_names, tmp_path):
    asked = [Asked.of("fake-captions", load_task("fake-captions"), limit=4)]
    found = evaluate(FakeVLM(), asked, {"b": FakeMethod("b", 1.0)}, tmp_path, progress=False)
    task = found.tasks["fake-captions"]
    by_title = cells(task)
    assert by_title["recall"]["vanilla"].endswith("± ?") and "± 0.0" not in str(by_title)
    assert "[?]" in by_title["Δ CHAIR_S to vanilla"]["b"]
    assert tables.to_json(found)["fake-captions"]["b"]["recall"]["low"] is None
    assert any("too few images" in note for note in task_sheet("t", task).notes)


def test_only_the_deciding_column_is_ticked_and_it_comes_first_on_the_page(run):
    sheet = task_sheet("t", run.tasks["fake-captions"])
    assert sheet.columns[0].deciding and sheet.columns[0].group == "at equal recall"
    for _, row in sheet.rows:
        assert not any(cell.mood for cell, column in zip(row, sheet.columns) if not column.deciding)


def test_bold_is_only_what_is_better_than_every_other_beyond_the_interval(fake_names, tmp_path):
    methods = {"same": FakeMethod("same", 0.0), "less": FakeMethod("less", 6.0)}
    task = evaluate(FakeVLM(), ["fake-captions"], methods, tmp_path, progress=False, curve=False).tasks["fake-captions"]
    assert not any(cell.best for cell in figure_cells(task, "recall", ["vanilla", "same", "less"]).values())
    del task.methods["same"]
    found = figure_cells(task, "recall", ["vanilla", "less"])
    assert found["vanilla"].best and not found["less"].best
