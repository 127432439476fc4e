"""POPE: official figures on real answers, matching of answers and questions, and questions built from annotations."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from airvlm.tasks import load_task
from airvlm.tasks.answers import score_file
from airvlm.tasks.base import Item, TaskDataMissing
from airvlm.tasks.pope import (
    SETTINGS,
    Pope,
    Setting,
    build_questions,
    keep_one_pair,
    make_question,
    read_annotated_objects,
    split_limit,
)
from tests.golden import golden
from tests.tasks.conftest import LABELS

ANSWERS = "clearsight_vaf_llava7b_coco_random_answers.jsonl"


@pytest.mark.slow
@pytest.mark.parametrize("parser", ["strict", "rucaibox", "llava", "opera", "vcd", "clearsight"])
def test_real_answers_score_as_published(parser: str) -> None:
    scores = score_file(
        load_task("pope", variant=parser), golden("pope", ANSWERS), golden("pope", "coco_pope_random.json")
    )
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
    assert score_file(Pope(), turned, truth).metrics == score_file(Pope(), golden("pope", ANSWERS), truth).metrics


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
        score_file(Pope(), _write(tmp_path / "other.jsonl", other), truth)
    with pytest.raises(ValueError, match="no answer has the id of an item"):
        score_file(Pope(), _write(tmp_path / "seven.jsonl", [{"question_id": 7, "text": "Yes"}]), truth)


def test_files_with_ids_of_their_own_are_matched_line_by_line(tmp_path: Path) -> None:
    truth = _write(tmp_path / "truth.json", TRUTH)
    rows: list[dict[str, object]] = [
        {"question_id": 2, "prompt": "Is there a dog in the image?", "text": "Yes"},
        {"question_id": 1, "prompt": "Is there a cat in the image?", "text": "No"},
    ]
    assert score_file(Pope(), _write(tmp_path / "own.jsonl", rows), truth).metrics["accuracy"] == 100
    rows = [{**row, "question_id": i} for i, row in enumerate(rows, 8910)]
    assert score_file(Pope(), _write(tmp_path / "own.jsonl", rows), truth).metrics["accuracy"] == 100


def test_missing_answers_are_counted_and_the_others_scored(tmp_path: Path) -> None:
    truth = _write(tmp_path / "truth.json", TRUTH)
    scores = score_file(Pope(), _write(tmp_path / "half.jsonl", [{"question_id": 2, "text": "No"}]), truth)
    assert scores.metrics["accuracy"] == 100 and scores.n == 1
    assert (scores.coverage.expected, scores.coverage.missing, scores.coverage.complete) == (2, 1, False)


def test_answers_that_carry_their_label_need_no_truth(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [{"answer": "Yes.", "label": "yes"}, {"answer": "No", "label": "Yes"}]
    assert score_file(Pope(), _write(tmp_path / "own.jsonl", rows)).metrics["accuracy"] == 50


@pytest.mark.parametrize("parser", ["strict", "vcd"])
def test_answers_without_labels_are_parsed_and_listed(parser: str) -> None:
    scores = score_file(load_task("pope", variant=parser), golden("pope", "yesno_parsers.json"))
    assert len(scores.details) == 38 and "accuracy" not in scores.metrics
    assert "give the POPE file with --truth" in scores.notes[0]


def test_an_answer_without_label_is_shown_as_it_is_parsed_under_each_label(tmp_path: Path) -> None:
    path = _write(tmp_path / "own.jsonl", [{"answer": "Yes."}])
    for parser, fields in {"strict": {"parsed"}, "vcd": {"parsed_if_yes", "parsed_if_no"}}.items():
        [detail] = score_file(load_task("pope", variant=parser), path).details
        assert {name for name in detail if name.startswith("parsed")} == fields


def test_prompts_of_papers_are_styles() -> None:
    prompts = {style: Pope(prompt_style=style).prompt(_item()) for style in ("plain", "vcd", "clearsight", "llava")}
    assert prompts["plain"] == "Is there a dog in the image?"
    assert prompts["vcd"].endswith("? Please answer this question with one word.")
    assert prompts["clearsight"].endswith("? Please just answer yes or no.")
    assert prompts["llava"].endswith("?\nAnswer the question using a single word or phrase.")
    assert Pope().settings()["prompt_style"] == "plain" and Pope().settings()["parser"] == "strict"
    with pytest.raises(ValueError, match="unknown prompt style 'loud'"):
        Pope(prompt_style="loud").prompt(_item())


def _item() -> Item:
    return Item("1", None, "Is there a dog in the image?", "yes")


def test_the_nine_files_and_their_images_come_from_the_users_folder(tmp_path: Path) -> None:
    for setting in SETTINGS:
        _write(tmp_path / f"coco_pope_{setting}.json", TRUTH)
    with pytest.raises(TaskDataMissing, match=r"no a\.jpg"):
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


def test_a_limit_is_split_over_the_settings() -> None:
    assert split_limit(7, 3) == [3, 2, 2] and split_limit(None, 2) == [None, None]


def _truth(tmp_path: Path) -> Path:
    return _write(tmp_path / "truth.json", TRUTH)


def test_answers_in_the_documented_format_are_matched_by_id(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [{"id": 2, "text": "No"}, {"id": 1, "text": "Yes"}]
    scores = score_file(Pope(), _write(tmp_path / "own.jsonl", rows), _truth(tmp_path))
    assert scores.metrics["accuracy"] == 100 and scores.notes == ()


def test_a_question_id_counts_before_an_id(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [
        {"id": 1, "question_id": 2, "text": "No"},
        {"id": 2, "question_id": 1, "text": "Yes"},
    ]
    scores = score_file(Pope(), _write(tmp_path / "own.jsonl", rows), _truth(tmp_path))
    assert scores.metrics["accuracy"] == 100


def test_answers_without_ids_are_matched_line_by_line_with_a_note(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [{"answer": "Yes"}, {"answer": "No"}]
    scores = score_file(Pope(), _write(tmp_path / "own.jsonl", rows), _truth(tmp_path))
    assert scores.metrics["accuracy"] == 100 and "line by line, because they have no ids" in scores.notes[0]
    with pytest.raises(ValueError, match="has 1 answers to 2 questions; without a question_id"):
        score_file(Pope(), _write(tmp_path / "own.jsonl", rows[:1]), _truth(tmp_path))


def test_an_id_that_only_some_answers_have_is_an_error(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [{"question_id": 1, "text": "Yes"}, {"text": "No"}]
    with pytest.raises(ValueError, match="line 2, field question_id: missing, where other records have one"):
        score_file(Pope(), _write(tmp_path / "own.jsonl", rows), _truth(tmp_path))


def test_a_result_names_its_parser() -> None:
    items = [replace(_item(), meta={"setting": "random"})]
    assert Pope().score(items, ["Yes"]).variant == "strict"
    assert load_task("pope", variant="vcd").score(items, ["Yes"]).variant == "vcd"
    assert Pope().settings()["variant"] == "strict"


# -- questions built from annotations

WORLD = {
    "1": ["dog", "person", "car"],
    "2": ["dog", "person", "frisbee"],
    "3": ["person", "car", "bus"],
    "4": ["cat", "couch", "tv"],
    "5": ["cat"],
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_built_questions_are_true_and_balanced(setting: Setting) -> None:
    records = build_questions(WORLD, setting)
    assert {record["image"] for record in records} == {"1", "2", "3", "4"}  # "5" has too few objects
    assert [record["question_id"] for record in records] == list(range(1, 25))
    for record in records:
        name = record["text"].removeprefix("Is there a ").removesuffix(" in the image?")
        assert (name in WORLD[record["image"]]) == (record["label"] == "yes")
    for image in "1234":
        mine = [record for record in records if record["image"] == image]
        assert len({record["text"] for record in mine}) == 6
        assert sum(record["label"] == "yes" for record in mine) == 3


def test_popular_asks_for_frequent_objects_and_adversarial_for_co_occurring_ones() -> None:
    wrong = {s: [r["text"] for r in build_questions(WORLD, s) if r["label"] == "no"] for s in SETTINGS}
    assert wrong["popular"][-3] == "Is there a person in the image?"
    assert wrong["adversarial"][0] == "Is there a frisbee in the image?"  # with image 1's dog in image 2


def test_built_questions_depend_on_the_seed_alone() -> None:
    assert build_questions(WORLD, "random") == build_questions(WORLD, "random", seed=0)
    assert build_questions(WORLD, "random") != build_questions(WORLD, "random", seed=1)


def test_one_pair_is_a_sample_of_the_same_questions() -> None:
    world = {f"{n}.jpg": WORLD[key] for n in range(30) for key in "1234" if n % 4 == int(key) - 1}
    kept: dict[str, list[str]] = {}
    for setting in SETTINGS:
        every = build_questions(world, setting)
        for record in keep_one_pair(every, setting):
            assert record in every
            kept.setdefault(record["image"], []).append(f"{record['label']} {setting}")
    assert kept.keys() == world.keys()  # each image once, in one setting
    drawn = {tuple(own) for own in kept.values()}
    assert drawn == {(f"yes {setting}", f"no {setting}") for setting in SETTINGS}
    first = build_questions(world, "random")
    places = {record["question_id"] % 6 for record in keep_one_pair(first, "random", ["random"])}
    assert places == set(range(6))  # any of an image's objects
    assert keep_one_pair(first, "random") != keep_one_pair(first, "random", seed=1)


def test_questions_have_the_right_article() -> None:
    assert make_question("apple") == "Is there an apple in the image?"
    assert make_question("dog") == "Is there a dog in the image?"


def test_objects_come_from_a_file_or_from_cocos_instances_by_area(tmp_path: Path) -> None:
    notes = {
        "images": [{"id": 1, "file_name": "a.jpg"}, {"id": 2, "file_name": "b.jpg"}],
        "categories": [{"id": i, "name": name} for i, name in enumerate(["dog", "cat", "car"])],
        "annotations": [{"image_id": 1, "category_id": i, "area": i + 1} for i in range(3)],
    }
    (tmp_path / "instances_val2014.json").write_text(json.dumps(notes))
    assert read_annotated_objects(tmp_path) == {"a.jpg": ["car", "cat", "dog"]}  # b.jpg shows too little
    (tmp_path / "objects.json").write_text(json.dumps(WORLD))
    assert set(read_annotated_objects(tmp_path)) == {"1", "2", "3", "4"}


def test_built_questions_are_a_task(tmp_path: Path) -> None:
    (tmp_path / "objects.json").write_text(json.dumps({f"{k}.jpg": names for k, names in WORLD.items()}))
    for key in WORLD:
        (tmp_path / f"{key}.jpg").write_bytes(b"")
    task = load_task("pope-annotated", tmp_path)
    items = task.items()
    assert len(items) == 72 and len({item.id for item in items}) == 72
    assert task.score(items, [item.truth for item in items]).metrics["accuracy"] == 100
    pairs = load_task("pope-annotated-pairs", tmp_path).items()
    assert {item.id for item in pairs} < {item.id for item in items}
    assert Counter(item.group for item in pairs) == {f"{key}.jpg": 2 for key in "1234"}


@pytest.mark.parametrize("name", ["pope", "pope-annotated"])
def test_pope_asks_about_the_labels(labeled: Path, name: str) -> None:
    items = load_task(name, labeled, objects=str(labeled / "labels.json")).items()
    assert len(items) == 3 * 3 * 6 and {item.truth for item in items} == {"yes", "no"}
    asked = {item.question for item in items if item.group == "cat.jpg" and item.truth == "yes"}
    assert asked == {f"Is there a {name} in the image?" for name in LABELS["cat.jpg"]}


def test_images_with_too_few_objects_are_left_out_and_counted(labeled: Path) -> None:
    objects = json.loads((labeled / "labels.json").read_text())
    (labeled / "few.json").write_text(json.dumps(objects | {"cat.jpg": ["cat", "cup"]}))
    with pytest.warns(UserWarning, match="1 of 3 images have fewer than 3 objects"):
        items = load_task("pope-annotated", labeled, objects=str(labeled / "few.json")).items()
    assert "cat.jpg" not in {item.group for item in items}


@pytest.mark.parametrize("others", [1, 2])
def test_one_prompt_in_twenty_may_ask_for_another_object(tmp_path: Path, others: int) -> None:
    truth = [{"question_id": i, "image": "a.jpg", "text": f"Is there a thing{i} in the image?", "label": "yes"}
             for i in range(20)]  # fmt: skip
    rows = [{"question_id": i, "prompt": str(row["text"]), "text": "Yes"} for i, row in enumerate(truth)]
    for row in rows[:others]:
        row["prompt"] = "Is there a car in the image?"
    files = _write(tmp_path / "answers.jsonl", rows), _write(tmp_path / "truth.json", truth)
    if others == 1:
        assert score_file(Pope(), *files).metrics["accuracy"] == 100
    else:
        with pytest.raises(ValueError, match="it was asked 'car'"):
            score_file(Pope(), *files)
