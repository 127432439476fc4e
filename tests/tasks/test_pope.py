"""POPE: the official figures on real answers, and the user's files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from airvlm.tasks import load_task
from airvlm.tasks.base import Item, TaskDataMissing
from airvlm.tasks.pope import Pope, spread
from airvlm.tasks.pope_builder import SETTINGS
from tests.golden import golden

ANSWERS = "clearsight_vaf_llava7b_coco_random_answers.jsonl"


@pytest.mark.parametrize("parser", ["strict", "rucaibox", "llava", "opera", "vcd", "clearsight"])
def test_real_answers_score_as_published(parser: str) -> None:
    scores = load_task("pope", variant=parser).rescore(golden("pope", ANSWERS), golden("pope", "coco_pope_random.json"))
    cells = {name: scores.totals[name] for name in ("tp", "fp", "tn", "fn")}
    assert cells == {"tp": 1309, "fp": 116, "tn": 1384, "fn": 191}
    expected = {
        "accuracy": 89.7667,
        "precision": 91.8596,
        "recall": 87.2667,
        "f1": 89.5043,
        "yes_ratio": 47.5,
    }
    assert {name: scores.metrics[name] for name in expected} == pytest.approx(expected, abs=5e-5)
    assert len(set(scores.groups)) == 500


def test_answers_are_matched_by_question_whatever_their_order(tmp_path: Path) -> None:
    lines = golden("pope", ANSWERS).read_text().splitlines()
    turned = tmp_path / "turned.jsonl"
    turned.write_text("\n".join(reversed(lines)))
    truth = golden("pope", "coco_pope_random.json")
    assert Pope().rescore(turned, truth).metrics == Pope().rescore(golden("pope", ANSWERS), truth).metrics


def _write(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


TRUTH: list[dict[str, object]] = [
    {"question_id": 1, "image": "a.jpg", "text": "Is there a dog in the image?", "label": "yes"},
    {"question_id": 2, "image": "a.jpg", "text": "Is there a cat in the image?", "label": "no"},
]


def test_answers_to_other_questions_are_refused(tmp_path: Path) -> None:
    truth = _write(tmp_path / "truth.json", TRUTH)
    other = [{"question_id": i, "prompt": "Is there a car in the image?", "text": "Yes"} for i in (1, 2)]
    with pytest.raises(ValueError, match="it was asked 'car', not 'dog'"):
        Pope().rescore(_write(tmp_path / "other.jsonl", other), truth)
    with pytest.raises(ValueError, match="no answer has the id of an item"):
        Pope().rescore(_write(tmp_path / "seven.jsonl", [{"question_id": 7, "text": "Yes"}]), truth)


def test_files_that_number_their_questions_in_their_own_way_are_matched_line_by_line(tmp_path: Path) -> None:
    truth = _write(tmp_path / "truth.json", TRUTH)
    rows: list[dict[str, object]] = [
        {"question_id": 2, "prompt": "Is there a dog in the image?", "text": "Yes"},
        {"question_id": 1, "prompt": "Is there a cat in the image?", "text": "No"},
    ]
    assert Pope().rescore(_write(tmp_path / "own.jsonl", rows), truth).metrics["accuracy"] == 100
    rows = [{**row, "question_id": i} for i, row in enumerate(rows, 8910)]
    assert Pope().rescore(_write(tmp_path / "own.jsonl", rows), truth).metrics["accuracy"] == 100


def test_an_unfinished_file_is_scored_on_what_it_answers_and_says_so(tmp_path: Path) -> None:
    truth = _write(tmp_path / "truth.json", TRUTH)
    scores = Pope().rescore(_write(tmp_path / "half.jsonl", [{"question_id": 2, "text": "No"}]), truth)
    assert scores.metrics["accuracy"] == 100 and scores.n == 1
    assert (scores.covered.expected, scores.covered.missing, scores.covered.complete) == (2, 1, False)


def test_answers_that_carry_their_label_need_no_truth(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [{"answer": "Yes.", "label": "yes"}, {"answer": "No", "label": "Yes"}]
    assert Pope().rescore(_write(tmp_path / "own.jsonl", rows)).metrics["accuracy"] == 50


@pytest.mark.parametrize("parser", ["strict", "vcd"])
def test_answers_without_labels_are_read_and_listed(parser: str) -> None:
    scores = load_task("pope", variant=parser).rescore(golden("pope", "yesno_parsers.json"))
    assert len(scores.details) == 38 and "accuracy" not in scores.metrics
    assert "give the POPE file with --truth" in scores.notes[0]


def test_the_paper_s_prompts_are_styles() -> None:
    prompts = {style: Pope(prompt_style=style).prompt(_item()) for style in ("plain", "vcd", "clearsight", "llava")}
    assert prompts["plain"] == "Is there a dog in the image?"
    assert prompts["vcd"].endswith("? Please answer this question with one word.")
    assert prompts["clearsight"].endswith("? Please just answer yes or no.")
    assert prompts["llava"].endswith("?\nAnswer the question using a single word or phrase.")
    assert Pope().settings()["prompt_style"] == "plain" and Pope().settings()["parser"] == "strict"
    with pytest.raises(ValueError, match="no prompt style 'loud'"):
        Pope(prompt_style="loud").prompt(_item())


def _item() -> Item:
    return Item("1", None, "Is there a dog in the image?", "yes")


def test_the_nine_files_and_their_images_come_from_the_users_folder(tmp_path: Path) -> None:
    for setting in SETTINGS:
        _write(tmp_path / f"coco_pope_{setting}.json", TRUTH)
    with pytest.raises(TaskDataMissing, match=r"no image a\.jpg"):
        Pope(tmp_path).items()
    (tmp_path / "val2014").mkdir()
    (tmp_path / "val2014" / "a.jpg").write_bytes(b"")
    items = Pope(tmp_path).items()
    assert len(items) == 6 and len({item.id for item in items}) == 6
    assert {item.group for item in items} == {"a.jpg"}
    assert [item.meta["setting"] for item in Pope(tmp_path).items(limit=4)] == ["random"] * 2 + [
        "popular",
        "adversarial",
    ]
    assert len(Pope(tmp_path, setting="popular").items()) == 2
    with pytest.raises(TaskDataMissing, match=r"no gqa_pope_random\.json"):
        Pope(tmp_path, dataset="gqa").items()


def test_a_limit_is_spread_over_the_settings() -> None:
    assert spread(7, 3) == [3, 2, 2] and spread(None, 2) == [None, None]
