"""Accuracy and detailedness of two methods, judged with the image."""

from __future__ import annotations

import base64
import io
import re
from pathlib import Path

import pytest
from PIL import Image

from airvlm.tasks import TaskDataMissing
from airvlm.tasks.answers import score_file
from airvlm.tasks.gpt4v import GPT4V, _encode_image, parse_aspects
from tests.fake_judge import FakeJudge
from tests.tasks.conftest import judge_at, write_lines


def images(folder: Path, n: int = 3) -> Path:
    for i in range(n):
        Image.new("RGB", (2000, 10), (i, 0, 0)).save(folder / f"p{i}.png")
    return folder


def prefers_long(prompt: str, n: int) -> str:
    first, second = re.findall(r"\[Assistant \d\]\n(.*?)\n\[End", prompt, re.DOTALL)
    a, b = (9, 4) if len(first) > len(second) else (5, 8)
    return f"Accuracy: {a} {b}\nReason: x\nDetailedness: {a} {b}\nReason: y"


def test_two_methods_are_compared_in_both_orders_with_the_image(tmp_path: Path) -> None:
    with FakeJudge(prefers_long) as fake:
        task = GPT4V(images(tmp_path), judge=judge_at(fake), against=tmp_path / "vanilla.jsonl")
        items = task.items()
        stored = [{"item": i.id, "fingerprint": "f", "method": None, "text": "short"} for i in items]
        others = [{"item": i.id, "fingerprint": "f", "method": {"name": "air"}, "text": "x" * 99} for i in items]
        write_lines(tmp_path / "vanilla.jsonl", stored + others)  # as in a store of ours
        scores = task.score(items, ["much longer", "much longer", None]).metrics
    assert (scores["accuracy_10"], scores["accuracy_10_other"]) == (8.5, 4.5)
    assert scores["accuracy_gain"] == scores["detailedness_gain"] == 4.0
    parts = fake.requests[0]["messages"][0]["content"]
    assert parts[1]["image_url"]["url"].startswith("data:image/jpeg;base64,")
    assert len(fake.requests) == 4


@pytest.mark.parametrize(("size", "shown"), [((3000, 1500), (1024, 512)), ((800, 600), (800, 600))])
def test_the_judge_sees_at_most_1024_pixels_a_side(
    tmp_path: Path, size: tuple[int, int], shown: tuple[int, int]
) -> None:
    Image.new("RGB", size).save(tmp_path / "large.png")
    data = base64.b64decode(_encode_image(tmp_path / "large.png").partition(",")[2])
    assert Image.open(io.BytesIO(data)).size == shown


def test_both_methods_may_come_from_one_run(tmp_path: Path) -> None:
    with FakeJudge(prefers_long) as fake:
        task = GPT4V(images(tmp_path), judge=judge_at(fake), method="air")
        said = {None: "short", "air": "much longer", "vcd": "x"}
        records = [
            {"item": i.id, "fingerprint": "f", "method": name and {"name": name}, "text": text}
            for i in task.items()
            for name, text in said.items()
        ]
        (tmp_path / "run").mkdir()
        write_lines(tmp_path / "run" / "answers.jsonl", records)
        assert score_file(task, tmp_path / "run").metrics["accuracy_gain"] == 4.0
        with pytest.raises(ValueError, match="several methods"):
            score_file(GPT4V(tmp_path, judge=judge_at(fake)), tmp_path / "run")


def test_without_the_other_answers_the_note_says_how_to_give_them(tmp_path: Path) -> None:
    task = GPT4V(images(tmp_path))
    alone = task.score(task.items(), ["a", "b c", None])
    assert (alone.metrics, alone.missing) == ({"length": 1.5}, 1)
    assert "--set method=NAME" in alone.notes[0]
    with pytest.raises(TaskDataMissing, match="--truth"):
        write_lines(tmp_path / "a.jsonl", [{"id": "p0", "text": "a"}])
        score_file(task, tmp_path / "a.jsonl")
    (tmp_path / "empty").mkdir()
    with pytest.raises(TaskDataMissing, match="no images"):
        GPT4V(tmp_path / "empty").items()


@pytest.mark.parametrize(
    ("verdict", "scores"),
    [
        ("Accuracy: 8 7\nReason: x\nDetailedness: 6 5", (8, 7, 6, 5)),
        ("**Accuracy:** 8, 7\n**Detailedness:** 6, 5", (8, 7, 6, 5)),
        ("Accuracy: 8 7", None),
        ("Accuracy: 11 7\nDetailedness: 6 5", None),
    ],
)
def test_a_verdict_needs_all_four_scores(verdict: str, scores: tuple[float, ...] | None) -> None:
    assert parse_aspects(verdict) == scores
