"""Scores are formulas over summed counts, and files of records are read however they are written."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airvlm.tasks import TASKS, load_task
from airvlm.tasks.base import Item, Metric, Ratio, Scores, Task, TaskDataMissing, read_records

HALVES = {"share": Metric(Ratio("hit", "n"))}
COUNTS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=12)


def _scores(counts: list[tuple[int, int]]) -> Scores:
    per_item = [{"hit": float(a), "n": float(b)} for a, b in counts]
    return Scores(per_item, HALVES, [str(i) for i in range(len(counts))])


@given(COUNTS, st.data())
def test_a_resample_scores_like_its_items_written_out(counts: list[tuple[int, int]], data: st.DataObject) -> None:
    scores = _scores(counts)
    drawn = data.draw(st.lists(st.integers(0, len(counts) - 1), min_size=1, max_size=12))
    weights = np.bincount(drawn, minlength=len(counts))[None, :]
    written_out = scores.only(drawn).metrics["share"]
    assert scores.resampled("share", weights)[0] == pytest.approx(written_out, nan_ok=True)


def test_a_ratio_without_anything_to_count_is_nan_and_not_zero() -> None:
    assert np.isnan(_scores([(0, 0)]).metrics["share"])


def test_a_count_that_an_item_lacks_is_zero() -> None:
    scores = Scores([{"n": 1.0, "hit": 1.0}, {"n": 1.0}], HALVES, ["a", "b"])
    assert scores.metrics == {"share": 50.0}
    assert scores.totals == {"hit": 1.0, "n": 2.0}


def test_missing_answers_count_in_no_metric_but_are_told() -> None:
    scores = Scores([{"n": 1.0, "hit": 1.0}, {"missing": 1.0}], HALVES, ["a", "b"])
    assert (scores.n, scores.missing, scores.metrics["share"]) == (1, 1, 100.0)


RECORDS = [{"id": 1, "text": "a\nb"}, {"id": 2, "text": "ü"}]


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(RECORDS),
        "\n".join(json.dumps(r) for r in RECORDS) + "\n",
        "\n".join(json.dumps(r, indent=2) for r in RECORDS),
        "\n\n".join(json.dumps(r) for r in RECORDS),
    ],
    ids=["list", "lines", "pretty-printed", "blank lines"],
)
@pytest.mark.parametrize("packed", [False, True])
def test_records_are_read_however_they_are_written(tmp_path: Path, text: str, packed: bool) -> None:
    path = tmp_path / "records"
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    assert read_records(path) == RECORDS


def test_a_broken_file_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "torn.jsonl"
    path.write_text('{"id": 1}\n{"id": \n')
    with pytest.raises(ValueError, match=r"torn\.jsonl, line 3"):
        read_records(path)


@dataclass(frozen=True)
class _Toy(Task):
    loud: bool = False

    name = "toy"
    variants = {"loud": {"loud": True}}  # noqa: RUF012 - a class attribute of a test


def test_a_variant_is_the_same_task_with_other_fields_and_both_are_in_the_settings() -> None:
    assert _Toy().variant("loud") == _Toy(loud=True)
    assert _Toy(loud=True).settings() == {"task": "toy", "loud": True}
    with pytest.raises(ValueError, match="no variant 'quiet'; it has: loud"):
        _Toy().variant("quiet")


@pytest.mark.parametrize("name", TASKS)
def test_every_task_of_the_registry_can_be_made_with_each_of_its_variants(name: str) -> None:
    task = load_task(name)
    assert task.source and task.max_new_tokens > 0
    for variant in task.variants:
        assert load_task(name, variant=variant).settings()["task"] == task.name


@pytest.mark.parametrize("name", [name for name in TASKS if not name.startswith("tiny-") and name != "bleu"])
def test_a_task_without_its_data_says_what_it_needs(name: str) -> None:
    with pytest.raises(TaskDataMissing, match="--data FOLDER"):
        load_task(name).items()


def test_unknown_tasks_and_options_are_answered_with_those_that_exist() -> None:
    with pytest.raises(ValueError, match="no task 'chairs'; there are: chair"):
        load_task("chairs")
    with pytest.raises(ValueError, match="chair has no option word; its options: count, drop_incomplete"):
        load_task("chair", word="pattern")


def test_items_about_one_image_share_their_unit_of_resampling() -> None:
    assert Item("q1", None, "", meta={"group": "p"}).group == "p"
    assert Item("q1", None, "").group == "q1"


def test_former_names_of_the_unit_of_resampling_still_work() -> None:
    with pytest.warns(DeprecationWarning, match="is now called"):
        assert Item("q1", None, "", meta={"picture": "p"}).group == "p"
    with pytest.warns(DeprecationWarning, match="now called Item.group"):
        assert Item("q1", None, "").picture == "q1"
    with pytest.warns(DeprecationWarning, match="now called Scores.groups"):
        assert Scores([{"n": 1.0}], {}, ["p"]).pictures == ["p"]


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [("hallusionbench", "pictures_only", "images_only"), ("gpt4v", "pictures", "images")],
)
def test_former_names_of_options_still_work(name: str, old: str, new: str) -> None:
    with pytest.warns(DeprecationWarning, match=f"{old} is now called {new}"):
        assert getattr(load_task(name, **{old: 1}), new) == 1
