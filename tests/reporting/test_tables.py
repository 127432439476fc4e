"""The result as people and programs read it."""

from __future__ import annotations

import io
import json

import pytest
from fakes import FakeMethod, FakeVLM
from rich.console import Console

from airvlm.evaluation.evaluate import evaluate
from airvlm.reporting import tables


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
    by_title = {column.title: column.cells for column in tables.columns(run.tasks["fake-captions"])}
    assert by_title["acted"] == {"better": "40", "idle": "0"}
    assert by_title["changed"]["idle"] == "0" and by_title["changed"]["better"] != "0"
    assert set(by_title["Δ CHAIR_S at equal recall"]) == {"better", "idle"}
    assert "p = " in by_title["Δ CHAIR_S"]["better"]
    assert "not counted" not in by_title


def test_markdown_is_a_table_of_equal_rows(run):
    lines = tables.markdown(run.tasks["fake-questions"]).splitlines()
    assert lines[0].startswith("**fake-questions, test split; 60 items on 30 pictures")
    assert len({line.count("|") for line in lines[2:]}) == 1 and len(lines) == 2 + 2 + 3


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_the_terminal_shows_everything_whole_at_any_width(run, width):
    text = io.StringIO()
    console = Console(file=text, width=width)
    for task in run.tasks.values():
        for table in tables.rich_tables(task, width):
            console.print(table)
        for column in tables.columns(task):
            for cell in column.cells.values():
                for line in cell.split("\n"):
                    assert line in text.getvalue()
    assert "…" not in text.getvalue()
    assert all(len(line.rstrip()) <= width for line in text.getvalue().splitlines())


def test_the_legend_says_what_the_columns_mean(run):
    text = " ".join(tables.legend(run))
    for word in ("standard error", "McNemar", "equal recall", "equal yes-ratio", str(run.folder)):
        assert word in text


def test_what_does_not_count_is_shown(fake_names, tmp_path):
    vlm = FakeVLM(fails=["test/3.png"])
    found = evaluate(vlm, ["fake-captions"], {}, tmp_path, curve=False, progress=False)
    by_title = {column.title: column.cells for column in tables.columns(found.tasks["fake-captions"])}
    assert by_title["not counted"] == {"vanilla": "1 failed"}
