"""LLaVA-Bench: official figures from official reviews, and questions to a judge."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from airvlm.tasks import load_task
from airvlm.tasks.answers import score_file
from airvlm.tasks.judges.judge import NoJudge
from airvlm.tasks.llava_bench import LLaVABench, parse_two_scores
from tests.fake_judge import FakeJudge
from tests.golden import golden
from tests.tasks.conftest import judge_at, write_lines

REVIEWS = {"1": (64.7, 77.6, 59.3, 47.7), "2": (65.3, 78.8, 59.0, 48.5), "3": (66.3, 79.6, 59.0, 50.8)}


@pytest.mark.parametrize("run", list(REVIEWS))
def test_official_reviews_give_the_official_figures(run: str) -> None:
    path = golden("llava_bench_wild", f"llava-v1.5-7b-eval{run}.jsonl")
    ours = score_file(load_task("llava-bench"), path).metrics
    assert tuple(round(ours[name], 1) for name in ("all", "complex", "conv", "detail")) == REVIEWS[run]


def test_a_failed_review_is_missing_and_not_minus_one(tmp_path: Path) -> None:
    lines = golden("llava_bench_wild", "llava-v1.5-7b-eval1.jsonl").read_text().splitlines()
    failed = json.dumps(json.loads(lines[0]) | {"content": "error", "tuple": [-1, -1]})
    (tmp_path / "reviews.jsonl").write_text("\n".join([failed, *lines[1:]]))
    (tmp_path / "without.jsonl").write_text("\n".join(lines[1:]))
    with_gap = score_file(load_task("llava-bench"), tmp_path / "reviews.jsonl")
    assert with_gap.missing == 1
    assert with_gap.metrics == score_file(load_task("llava-bench"), tmp_path / "without.jsonl").metrics


def wild(folder: Path) -> Path:
    questions = [
        {"question_id": 0, "image": "001.jpg", "category": "conv", "text": "What?"},
        {"question_id": 1, "image": "001.jpg", "category": "detail", "text": "Describe."},
    ]
    write_lines(folder / "questions.jsonl", questions)
    write_lines(folder / "answers_gpt4.jsonl", [{"question_id": i, "text": f"reference {i}"} for i in range(2)])
    write_lines(folder / "context.jsonl", [{"id": "001", "image": "001.jpg", "caption": "A dog."}])
    return folder


def test_both_orders_are_judged_unless_the_official_one_is_chosen(tmp_path: Path) -> None:
    with FakeJudge("8 6\nbecause") as fake:
        task = LLaVABench(wild(tmp_path), judge=judge_at(fake))
        items = task.items()
        assert items[0].image == tmp_path / "images" / "001.jpg"
        both = task.score(items, ["mine 0", "mine 1"])
        assert len(fake.requests) == 4
        assert both.metrics["all"] == 100.0  # a judge that only looks at the place says nothing
        official = task.with_variant("official").score(items, ["mine 0", "mine 1"])
        assert official.metrics["all"] == 75.0
        assert "A dog." in fake.requests[0]["messages"][1]["content"]


def test_an_item_without_an_answer_or_a_verdict_is_missing(tmp_path: Path) -> None:
    with FakeJudge(lambda prompt, n: "no idea" if "mine 0" in prompt else "8 4") as fake:
        task = LLaVABench(wild(tmp_path), judge=judge_at(fake), order="official")
        scores = task.score(task.items(), ["mine 0", "mine 1"])
        assert (scores.missing, scores.metrics["all"]) == (1, 50.0)
        assert task.score(task.items(), [None, "mine 1"]).missing == 1


def test_on_coco_the_judge_is_told_captions_and_boxes(tmp_path: Path) -> None:
    write_lines(
        tmp_path / "qa90_questions.jsonl",
        [{"question_id": "7", "image": "0001.jpg", "category": "complex", "text": "Why?"}],
    )
    write_lines(tmp_path / "qa90_gpt4_answer.jsonl", [{"question_id": "7", "text": "So."}])
    boxes = [{"category": "dog", "bbox": [0, 0, 1, 1]}]
    write_lines(
        tmp_path / "caps_boxes_coco2014_val_80.jsonl",
        [{"image": "0001.jpg", "captions": ["a pet"], "instances": boxes}],
    )
    item = LLaVABench(tmp_path, which="coco").items()[0]
    assert "a pet" in item.meta["context"]
    assert "dog: [0, 0, 1, 1]" in item.meta["context"]


def test_answers_are_judged_if_the_data_are_given(tmp_path: Path) -> None:
    answers = golden("llava_bench_wild", "answers_llava-v1.5-7b.jsonl")
    alone = score_file(load_task("llava-bench"), answers)
    assert (list(alone.metrics), alone.n) == (["length"], 60)
    assert "not judged" in alone.notes[0]
    with FakeJudge("8 8") as fake:
        scores = score_file(LLaVABench(judge=judge_at(fake)), answers, wild(tmp_path), lenient=True)
    assert scores.metrics["all"] == 100.0
    with pytest.raises(NoJudge):
        score_file(LLaVABench(), answers, tmp_path, lenient=True)
    with pytest.raises(ValueError, match="an id that no item has"):
        score_file(LLaVABench(), answers, tmp_path)


@pytest.mark.parametrize(
    ("verdict", "scores"),
    [
        ("8 7\nx", (8, 7)),
        ("8, 7", (8, 7)),
        ("8.5 7", (8.5, 7)),
        ("8", None),
        ("8 7 6", None),
        ("a b", None),
        ("", None),
        ("80 7", None),
    ],
)
def test_two_scores_are_the_whole_first_line(verdict: str, scores: tuple[float, float] | None) -> None:
    assert parse_two_scores(verdict) == scores


def test_reviews_that_lack_a_question_of_the_data_are_incomplete(tmp_path: Path) -> None:
    reviews: list[dict[str, object]] = [{"question_id": 0, "category": "conv", "content": "8 4"}]
    write_lines(tmp_path / "reviews.jsonl", reviews)
    scores = score_file(LLaVABench(wild(tmp_path)), tmp_path / "reviews.jsonl")
    assert (scores.coverage.expected, scores.coverage.missing, scores.metrics["all"]) == (2, 1, 50.0)
    alone = score_file(LLaVABench(), tmp_path / "reviews.jsonl")
    assert alone.coverage.complete and "missing answers are not counted" in alone.notes[0]


def test_a_review_without_its_text_has_its_scores(tmp_path: Path) -> None:
    pairs = ([8, 4], [-1, -1])
    write_lines(
        tmp_path / "reviews.jsonl",
        [{"question_id": i, "category": "conv", "tuple": pair} for i, pair in enumerate(pairs)],
    )
    scores = score_file(load_task("llava-bench"), tmp_path / "reviews.jsonl")
    assert (scores.metrics["all"], scores.missing) == (50.0, 1)
