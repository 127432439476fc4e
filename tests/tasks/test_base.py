"""Scores are formulas over summed counts; tasks have variants and settings."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airvlm.tasks import TASKS, load_task
from airvlm.tasks.base import Coverage, Item, Metric, Ratio, Scores, Task, TaskDataMissing

HALVES = {"share": Metric(Ratio("hit", "n"))}
COUNTS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=12)


def _scores(counts: list[tuple[int, int]]) -> Scores:
    per_item = [{"hit": float(a), "n": float(b)} for a, b in counts]
    return Scores(per_item, HALVES, [str(i) for i in range(len(counts))])


@given(COUNTS, st.data())
def test_a_resample_scores_as_its_items_listed_one_by_one(counts: list[tuple[int, int]], data: st.DataObject) -> None:
    scores = _scores(counts)
    drawn = data.draw(st.lists(st.integers(0, len(counts) - 1), min_size=1, max_size=12))
    weights = np.bincount(drawn, minlength=len(counts))[None, :]
    written_out = scores.select(drawn).metrics["share"]
    assert scores.resample("share", weights)[0] == pytest.approx(written_out, nan_ok=True)


def test_a_ratio_with_denominator_zero_is_nan() -> None:
    assert np.isnan(_scores([(0, 0)]).metrics["share"])


def test_a_count_that_an_item_lacks_is_zero() -> None:
    scores = Scores([{"n": 1.0, "hit": 1.0}, {"n": 1.0}], HALVES, ["a", "b"])
    assert scores.metrics == {"share": 50.0}
    assert scores.totals == {"hit": 1.0, "n": 2.0}


def test_missing_answers_count_in_no_metric() -> None:
    scores = Scores([{"n": 1.0, "hit": 1.0}, {"missing": 1.0}], HALVES, ["a", "b"])
    assert (scores.n, scores.missing, scores.metrics["share"]) == (1, 1, 100.0)


@dataclass(frozen=True)
class _Toy(Task):
    loud: bool = False

    name = "toy"
    variants = {"loud": {"loud": True}}  # noqa: RUF012 - a class attribute of a test


def test_a_variant_sets_fields_and_is_part_of_the_settings() -> None:
    assert _Toy().with_variant("loud") == _Toy(loud=True)
    assert _Toy(loud=True).settings() == {"task": "toy", "variant": "loud", "loud": True}
    with pytest.raises(ValueError, match=r"no variant 'quiet'\. Known: loud"):
        _Toy().with_variant("quiet")


@pytest.mark.parametrize("name", TASKS)
def test_every_task_can_be_loaded_with_each_of_its_variants(name: str) -> None:
    task = load_task(name)
    assert task.source and task.max_new_tokens > 0
    for variant in task.variants:
        chosen = load_task(name, variant=variant)
        assert chosen.settings()["task"] == task.name and chosen.settings()["variant"] == variant == chosen.variant_name


@pytest.mark.parametrize("name", [name for name in TASKS if not name.startswith("tiny-") and name != "bleu"])
def test_a_task_without_its_data_names_what_it_needs(name: str) -> None:
    with pytest.raises(TaskDataMissing, match="--data FOLDER"):
        load_task(name).items()


CAPS = {
    8: "tiny-pope tiny-pope-random tiny-pope-popular tiny-pope-adversarial tiny-existence tiny-count tiny-position "
    "tiny-color",
    16: "pope pope-coco-random pope-coco-popular pope-coco-adversarial pope-aokvqa-random pope-aokvqa-popular "
    "pope-aokvqa-adversarial pope-gqa-random pope-gqa-popular pope-gqa-adversarial pope-annotated pope-annotated-pairs "
    "repope repope-random repope-popular repope-adversarial dash-b amber-yesno mme vstar reefknot reefknot-choice",
    32: "mmbench hr-bench hr-bench-8k reefknot-vqa",
    64: "chair bleu tiny-chair",
    128: "hallusionbench haloquest",
    512: "amber object-halbench detailcaps mmhal mmvet gpt4v",
    1024: "llava-bench",
}


def test_answers_are_at_most_as_long_as_figures_were_measured_with() -> None:
    """A cap is part of a benchmark's protocol: another one makes figures that do not compare."""
    wanted = {name: cap for cap, names in CAPS.items() for name in names.split()}
    assert {name: load_task(name).max_new_tokens for name in TASKS} == wanted


def test_errors_about_unknown_tasks_and_options_list_the_known_ones() -> None:
    with pytest.raises(ValueError, match="unknown task 'chairs'; did you mean chair"):
        load_task("chairs")
    with pytest.raises(ValueError, match=r"chair has no option language\. Known: approximate, count, drop_incomplete"):
        load_task("chair", language="pattern")
    with pytest.raises(ValueError, match=r"chair has no option word; did you mean words\?$"):
        load_task("chair", word="pattern")


def test_items_about_one_image_are_resampled_together() -> None:
    assert Item("q1", None, "", meta={"group": "p"}).group == "p"
    assert Item("q1", None, "").group == "q1"


def test_coverage_follows_from_the_counts_if_no_file_was_read() -> None:
    scores = Scores([{"n": 1.0, "unparsed": 1.0}, {"n": 1.0}, {"missing": 1.0}], HALVES, ["a", "b", "c"])
    assert scores.coverage == Coverage(expected=3, given=2, matched=2, unreadable=1)
    assert scores.select([0, 1]).coverage == Coverage(expected=2, given=2, matched=2, unreadable=1)


def test_settings_that_no_variant_has_are_the_default_or_spelled_out() -> None:
    assert _Toy().variant_name == "default"
    assert Task().variant_name == ""


@pytest.mark.parametrize(
    ("name", "limit"),
    [
        ("chair", 64), ("pope", 16), ("amber", 512), ("amber-yesno", 16), ("object-halbench", 512), ("mme", 16),
        ("mmbench", 32), ("hallusionbench", 128), ("vstar", 16), ("mmhal", 512), ("mmvet", 512), ("llava-bench", 1024),
        ("gpt4v", 512), ("tiny-chair", 64), ("tiny-pope", 8), ("tiny-count", 8),
    ],
)  # fmt: skip
def test_the_number_of_new_tokens_is_limited_as_published(name: str, limit: int) -> None:
    assert load_task(name).max_new_tokens == limit
