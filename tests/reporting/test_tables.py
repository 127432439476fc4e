"""Tables of results, and how each format writes them."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from fakes import FakeMethod, FakeVLM
from rich.console import Console

from airvlm.evaluation.evaluate import evaluate
from airvlm.methods import CropBlend, EOSBias, MeanToken
from airvlm.methods.composed import Composed
from airvlm.reporting.tables import (
    Cell,
    Column,
    Table,
    describe_methods,
    find_best,
    legend,
    order_metrics,
    summarize,
    task_table,
    task_title,
)

EQUAL = "difference to EOS bias at equal recall"


def cells(task) -> dict[str, dict[str, str]]:
    """{column: {method: text}} of the brief table."""
    table = task_table(task)
    return {
        column.full_title: {label: " ".join(row[i].lines) for label, row in table.rows}
        for i, column in enumerate(table.columns)
    }


@pytest.fixture(scope="module")
def run(fake_names, tmp_path_factory):
    methods = {"better": FakeMethod("better", 0.7), "idle": FakeMethod("idle", fires=False)}
    folder = tmp_path_factory.mktemp("run")
    return evaluate(FakeVLM(), ["fake-captions", "fake-questions"], methods, out=folder, progress=False)


def test_the_table_tells_changes_actions_and_the_distance_at_equal_recall(run):
    by_title = cells(run.tasks["fake-captions"])
    assert by_title["acted, of 40 answers"] == {"vanilla": "", "better": "40", "idle": "0"}
    assert by_title["changed, of 40 answers"]["idle"] == "0" != by_title["changed, of 40 answers"]["better"]
    assert by_title[f"CHAIR_S, {EQUAL}"]["idle"] == "+0.0 [+0.0, +0.0]"
    assert by_title[f"CHAIR_S, {EQUAL}"]["vanilla"] == ""
    assert "p = " in by_title["CHAIR_S, difference to vanilla"]["better"]
    assert not any("not counted" in title for title in by_title)
    words = run.tasks["fake-captions"].mean_tokens("better")
    assert by_title["mean tokens, of 40 answers"]["better"] == f"{words:.1f}"  # the task has no length of its own


def test_markdown_is_a_table_of_equal_rows(run):
    task = run.tasks["fake-questions"]
    lines = task_table(task, task_title(task, "fake")).to_markdown().splitlines()
    assert lines[0].startswith("**fake-questions, test split; 60 items on 30 images")
    assert lines[0].endswith("model fake**")
    assert len({line.count("|") for line in lines[2:]}) == 1 and len(lines) == 2 + 2 + 3


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_the_terminal_shows_everything_whole_at_any_width(run, width):
    text = io.StringIO()
    console = Console(file=text, width=width)
    for task in run.tasks.values():
        for table in task_table(task).to_rich(width):
            console.print(table)
        for _, row in task_table(task).rows:
            for cell in row:
                for line in cell.lines:
                    assert line in text.getvalue()
    assert "…" not in text.getvalue()
    assert all(len(line.rstrip()) <= width for line in text.getvalue().splitlines())


def test_the_legend_says_what_the_columns_mean(run):
    text = " ".join(legend(run))
    for word in ("standard error", "McNemar", "equal recall", "equal yes-ratio", "EOS bias", "yes bias"):
        assert word in text


@pytest.mark.parametrize(("name", "held"), [("fake-captions", "recall"), ("fake-questions", "yes-ratio")])
def test_a_matched_control_shows_its_strength_and_what_it_is_compared_at(run, name, held):
    facts = {"label": "better", "method": {}, "controls": "idle", "strength": "weight=0.23"}
    shown = cells(replace(run.tasks[name], matched={"idle": facts}))
    (own,) = (column for title, column in shown.items() if "matched" in title and "at equal" in title)
    (beyond,) = (column for title, column in shown.items() if "minus it" in title)
    assert "weight=0.23," in own["idle"] and f" {held} " in beyond["idle"]


def test_what_does_not_count_is_shown(fake_names, tmp_path):
    vlm = FakeVLM(fails=["test/3.png"])
    found = evaluate(vlm, ["fake-captions"], {}, out=tmp_path, curve=False, progress=False)
    assert cells(found.tasks["fake-captions"])["not counted, of 40 answers"] == {"vanilla": "1 failed"}


def test_few_images_have_no_interval_and_say_so(fake_names, tmp_path):
    methods = {"b": FakeMethod("b", 1.0)}
    found = evaluate(FakeVLM(), ["fake-captions"], methods, out=tmp_path, progress=False, limit=4)
    task = found.tasks["fake-captions"]
    by_title = cells(task)
    assert by_title["recall"]["vanilla"].endswith("± ?") and "± 0.0" not in str(by_title)
    assert "[?]" in by_title["CHAIR_S, difference to vanilla"]["b"]
    assert task.figures("b")["recall"]["low"] is None
    assert any("not enough images" in note for note in task_table(task, full=True).notes)


def test_only_the_primary_column_is_marked_and_it_comes_first_on_the_page(fake_names, tmp_path):
    methods = {"worse": FakeMethod("worse", -3.0)}
    found = evaluate(FakeVLM(), ["fake-captions"], methods, out=tmp_path, progress=False).tasks["fake-captions"]
    table = task_table(found, full=True)
    assert table.columns[0] == Column("CHAIR_S", EQUAL, primary=True)
    for _, row in table.rows:
        assert not any(cell.significance for cell, column in zip(row, table.columns) if not column.primary)


def test_bold_is_only_what_is_better_than_every_other_beyond_the_interval(fake_names, tmp_path):
    methods = {"same": FakeMethod("same", 0.0), "less": FakeMethod("less", 6.0)}
    options = {"progress": False, "curve": False}
    task = evaluate(FakeVLM(), ["fake-captions"], methods, out=tmp_path, **options).tasks["fake-captions"]
    assert find_best(task, "recall") is None
    del task.methods["same"]
    assert find_best(task, "recall") == "vanilla"
    assert find_best(task, "CHAIR_S") is None  # whatever says least has the lowest


def test_the_methods_settings_are_told_in_full():
    methods = {"vanilla": None, "a": MeanToken(CropBlend(keep=2)), "b": Composed(CropBlend(), EOSBias(2.0))}
    lines = describe_methods({k: None if m is None else m.to_json() for k, m in methods.items()})
    assert len(lines) == 2
    assert lines[0].startswith("a: method=crop-blend(num_crops=4,") and "keep=2" in lines[0]
    assert "eos-bias(bias=2.0)" in lines[1] and "num_prototypes=none" in lines[1]


def test_a_summary_says_better_worse_or_neither(run):
    [better, idle] = summarize(run.tasks["fake-captions"])
    assert better.startswith("fake-captions, better: no significant difference; CHAIR_S ") and EQUAL in better
    assert "no significant difference; CHAIR_S +0.0 [+0.0, +0.0]" in idle


# -- the formats

TABLE = Table(
    "50 % of R&D_x | <b>",
    (Column("CHAIR_S ↓", "ours"), Column("CHAIR_S", "theirs", primary=True)),
    (
        ("a|b_c", (Cell("1.5", "[1.0, 2.0]", best=True), Cell("−2.0", significance="worse"))),
        ("<i>", (Cell(), Cell("3"))),
    ),
    ("a note with 5 % & more",),
)


def test_html_escapes_and_marks() -> None:
    text = TABLE.to_html()
    assert "<i>" not in text
    assert "&lt;i&gt;" in text
    assert "<b>1.5</b><small>[1.0, 2.0]</small>" in text
    assert '<td class="worse primary">−2.0</td>' in text
    assert 'colspan="1" scope="colgroup" class="primary">theirs<' in text


def test_markdown_keeps_its_columns_whatever_the_names_hold() -> None:
    rows = [line for line in TABLE.to_markdown().splitlines() if line.startswith("|")]
    assert len(rows) == 4
    assert all(row.replace("\\|", "").count("|") == 4 for row in rows)
    assert "**1.5 [1.0, 2.0]**" in rows[2]
    assert TABLE.to_markdown(bare=True).splitlines() == rows


def test_latex_escapes_and_balances() -> None:
    text = TABLE.to_latex()
    assert "R\\&D\\_x" in text
    assert "5 \\% \\& more" in text
    assert "\\textbf{1.5 [1.0, 2.0]}" in text
    assert text.count("{") - text.count("\\{") == text.count("}") - text.count("\\}")
    assert "\\cmidrule(lr){2-2}\\cmidrule(lr){3-3}" in text


def test_a_link_in_a_name_is_no_link_in_markdown() -> None:
    table = Table("t", (Column("x"),), (("[click](http://x)", (Cell("1"),)),))
    assert "\\[click\\](http://x)" in table.to_markdown()


def test_the_yes_ratio_stands_beside_accuracy_and_recall_and_length_beside_chair():
    pope = ["accuracy", "precision", "recall", "f1", "yes_ratio", "accuracy-random", "f1-random", "yes_ratio-random"]
    ordered = ["accuracy", "yes_ratio", "precision", "recall", "f1", "accuracy-random", "yes_ratio-random", "f1-random"]
    assert order_metrics(pope) == ordered and order_metrics(pope, 7) == ordered[:7]
    assert order_metrics(pope, 6) == ordered[:5]  # an accuracy is not shown without its yes-ratio
    assert order_metrics(["perception", "accuracy", "accuracy_plus"]) == ["perception", "accuracy", "accuracy_plus"]
    chair = ["CHAIR_S", "CHAIR_I", "BLEU", "recall", "length"]
    assert order_metrics(chair) == ["CHAIR_S", "CHAIR_I", "recall", "length", "BLEU"]
    assert order_metrics(["CHAIR", "Cover", "Hal"]) == ["CHAIR", "Cover", "Hal"] and order_metrics(["all"]) == ["all"]
