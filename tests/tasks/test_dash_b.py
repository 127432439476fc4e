"""DASH-B: both layouts of its data, and its official figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from airvlm.evaluation.trade_off import trade_off_of
from airvlm.tasks import TaskDataMissing, load_task
from airvlm.tasks.answers import score_file
from airvlm.testing import check_task
from tests.golden import DATA


@pytest.fixture
def official(tmp_path: Path) -> Path:
    (tmp_path / "images").mkdir()
    for part in ("neg", "pos"):
        tree = {"coco": {"fire hydrant": ["1.png", "2.png"]}, "objects_365": {"ladder": ["7.jpg"]}}
        (tmp_path / "images" / f"dash_benchmark_{part}.json").write_text(json.dumps(tree))
    return tmp_path


@pytest.fixture
def converted(tmp_path: Path) -> Path:
    rows = [
        {"question_id": i, "image": f"images/{i}.jpg", "object": "ladder", "answer": answer}
        for i, answer in enumerate(("no", "no", "no", "yes"))
    ]
    (tmp_path / "questions.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return tmp_path


def test_figures_are_those_of_the_official_script() -> None:
    expected = json.loads((DATA / "dash_b/expected.json").read_text())
    scores = score_file(load_task("dash-b", variant="dash-b"), DATA / "dash_b/answers.json")
    theirs = {"accuracy": "ACC", "TNR": "TNR", "TPR": "TPR", "harmonic_mean": "Harmonic Mean"}
    ours = {name: scores.metrics[name] / 100 for name in theirs}
    assert ours == pytest.approx({name: expected[key] for name, key in theirs.items()}, rel=1e-12)
    rows = json.loads((DATA / "dash_b/answers.json").read_text())
    assert [row["parsed"] for row in scores.details] == [row["answer"] for row in rows]


def test_the_yes_ratio_stands_beside_accuracy(converted: Path) -> None:
    task = load_task("dash-b", converted)
    scores = task.score(task.items(), ["yes", "no", "yes", "yes"])
    assert list(scores.metrics)[:2] == ["accuracy", "yes_ratio"]
    assert scores.metrics["yes_ratio"] == 75
    trade = trade_off_of(scores)
    assert trade is not None and trade.control == "yes-bias"


def test_always_yes_has_a_harmonic_mean_of_zero(converted: Path) -> None:
    task = load_task("dash-b", converted)
    metrics = task.score(task.items(), ["yes"] * 4).metrics
    assert (metrics["TNR"], metrics["TPR"], metrics["harmonic_mean"]) == (0, 100, 0)


def test_a_limit_takes_as_many_of_either_answer(official: Path) -> None:
    items = load_task("dash-b", official).items(limit=4)
    assert [item.truth for item in items] == ["no", "yes", "no", "yes"]
    assert items[0].image == official / "images/neg/coco/fire hydrant/1.png"
    assert items[0].question == "Can you see a fire hydrant in this image? Please answer only with yes or no."


@pytest.mark.parametrize("layout", ["official", "converted"])
def test_it_keeps_the_laws(layout: str, request: pytest.FixtureRequest) -> None:
    check_task(load_task("dash-b", request.getfixturevalue(layout)))


def test_missing_and_damaged_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(TaskDataMissing, match="dash_benchmark_neg"):
        load_task("dash-b", tmp_path).items()
    (tmp_path / "dash_benchmark_neg.json").write_text('["a"]')
    with pytest.raises(ValueError, match="source -> object"):
        load_task("dash-b", tmp_path).items()
