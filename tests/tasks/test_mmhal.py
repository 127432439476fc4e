"""MMHal-Bench: ratings and their aggregation."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from airvlm.tasks import load_task
from airvlm.tasks.answers import score_file
from airvlm.tasks.mmhal import KINDS, MMHal, parse_rating
from tests.fake_judge import FakeJudge
from tests.tasks.conftest import judge_at


def hal(folder: Path, n: int = 16) -> Path:
    records = [
        {
            "image_src": f"https://x/{i}.jpg",
            "image_id": str(i),
            "image_content": ["dog", "cat"],
            "question": f"q{i}?",
            "gt_answer": "Two.",
        }
        for i in range(n)
    ]
    (folder / "response_template.json").write_text(json.dumps(records))
    return folder


def test_ratings_are_averaged_and_those_below_three_count_as_hallucination(tmp_path: Path) -> None:
    def rate(prompt: str, n: int) -> str:
        number = int(re.findall(r"answer (\d+)", prompt)[0])
        return f"Because.\nRating: {number % 7}" if number < 14 else "Rating: 2, or rather Rating: 5"

    with FakeJudge(rate) as fake:
        task = MMHal(hal(tmp_path), judge=judge_at(fake))
        items = task.items()
        scores = task.score(items, [f"answer {i}" for i in range(16)])
    assert [item.meta["kind"] for item in items[:8]] == list(KINDS)
    assert scores.missing == 2
    assert scores.metrics["rating"] == 3.0
    assert scores.metrics["hallucination_rate"] == pytest.approx(100 * 3 / 7)
    assert scores.metrics["attribute"] == 0.5
    assert "dog, cat" in fake.requests[0]["messages"][0]["content"]


def test_stored_replies_of_a_judge_are_scored(tmp_path: Path) -> None:
    replies = [{"choices": [{"message": {"content": text}}]} for text in ("Rating: 6", "Rating: 0", "none")]
    (tmp_path / "replies.json").write_text(json.dumps(replies))
    with pytest.raises(ValueError, match="only the order says which kind"):
        score_file(load_task("mmhal"), tmp_path / "replies.json")
    scores = score_file(load_task("mmhal"), tmp_path / "replies.json", lenient=True)
    assert (scores.metrics["rating"], scores.missing) == (3.0, 1)
    assert (scores.coverage.expected, scores.coverage.matched) == (96, 3)


@pytest.mark.parametrize(
    ("verdict", "rating"),
    [
        ("Rating: 4", 4),
        ("**Rating:** 5, very informative", 5),
        ("rating: 7", None),
        ("Rating: 1\nRating: 2", None),
        ("4", None),
    ],
)
def test_a_rating_is_stated_once_or_missing(verdict: str, rating: int | None) -> None:
    assert parse_rating(verdict) == rating


def test_answers_in_the_documented_format_are_judged(tmp_path: Path) -> None:
    (tmp_path / "answers.jsonl").write_text('{"id": 0, "text": "Two."}\n{"id": 1, "text": "Two."}')
    with FakeJudge("Rating: 5") as fake:
        scores = score_file(MMHal(hal(tmp_path, 3), judge=judge_at(fake)), tmp_path / "answers.jsonl")
    assert (scores.metrics["rating"], scores.coverage.missing) == (5.0, 1)
