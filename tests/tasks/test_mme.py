"""MME: official figures to the last digit on real answers, and the rules for pairs of questions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from airvlm.tasks import Item, TaskDataMissing, load_task
from airvlm.tasks.answers import score_file
from airvlm.tasks.mme import COGNITION, HALLUCINATION, MME, PERCEPTION
from tests.golden import golden


def printed(path: Path) -> dict[str, float]:
    """{subtask or total: score} as the official script prints it."""
    scores: dict[str, float] = {}
    part = ""
    for line in path.read_text().splitlines():
        if "=====" in line:
            part = line.strip("= ").lower()
        elif "score:" in line:
            name, value = line.split("score:")
            scores[part if name.strip() == "total" else name.strip()] = float(value)
    return scores


@pytest.mark.parametrize("model", ["LaVIN", "llava-v1.5-7b"])
def test_real_answers_score_as_the_official_script_prints(model: str) -> None:
    ours = score_file(load_task("mme"), golden("mme", model)).metrics
    official = printed(golden("mme", f"{model}.expected.txt"))
    assert len(official) == 16
    assert {name: ours[name] for name in official} == official


def test_the_hallucination_subset_is_its_four_subtasks() -> None:
    ours = score_file(load_task("mme"), golden("mme", "llava-v1.5-7b")).metrics
    assert ours["hallucination"] == pytest.approx(190 + 155 + 128 + 1 / 3 + 170)
    assert (len(PERCEPTION), len(COGNITION), len(HALLUCINATION)) == (10, 4, 4)


@pytest.mark.parametrize(
    ("text", "official", "lmms"),
    [
        ("Yes", "yes", "yes"),
        ("no", "no", "no"),
        ("Yes, it is.", "yes", "yes"),
        ("nothing to see", "no", "no"),  # the four characters hold "no"
        ("not sure", "no", "no"),
        ("  yes", None, "yes"),  # not stripped: "  ye"
        ("y", None, "yes"),
        ("N.", None, "no"),
        ("", None, None),
        ("There is no dog.", None, None),
    ],
)
def test_parsers_equal_their_originals(text: str, official: str | None, lmms: str | None) -> None:
    item = Item("1", None, "?")
    assert MME().parse(item, text) == official
    assert MME(parser="lmms").parse(item, text) == lmms


def pair(subtask: str, image: str) -> list[Item]:
    meta = {"subtask": subtask, "group": image}
    return [Item(f"{image}/0", None, "?", "yes", meta), Item(f"{image}/1", None, "?", "no", meta)]


def test_acc_plus_counts_images_with_both_answers_right() -> None:
    items = pair("count", "a") + pair("count", "b")
    scores = MME().score(items, ["yes", "no", "yes", "yes"])
    assert scores.metrics["count"] == 75.0 + 50.0


def test_an_empty_answer_is_wrong_and_counted_as_unparsed() -> None:
    scores = MME().score(pair("count", "a"), ["", "no"])
    assert (scores.metrics["accuracy"], scores.unparsed, scores.missing) == (50.0, 1, 0)


def test_a_missing_answer_takes_its_image_out_of_acc_plus() -> None:
    scores = MME().score(pair("count", "a") + pair("count", "b"), ["yes", None, "yes", "no"])
    assert scores.missing == 1
    assert scores.metrics["accuracy_plus"] == 100.0
    assert scores.metrics["accuracy"] == 100.0


def test_totals_over_missing_subtasks_are_not_reported() -> None:
    scores = MME().score(pair("count", "a"), ["yes", "no"])
    assert "perception" not in scores.metrics
    assert "existence" in scores.notes[0]


def test_resampled_images_give_the_score_of_those_images() -> None:
    items, answers = pair("count", "a") + pair("count", "b"), ["yes", "no", "no", "no"]
    scores = MME().score(items, answers)
    only_a_twice = np.array([[2, 2, 0, 0]])
    assert scores.resample("count", only_a_twice)[0] == MME().score(items[:2], answers[:2]).metrics["count"]


def release(folder: Path) -> Path:
    """A folder laid out as the release: one subtask flat, one with its two inner folders."""
    flat, inner = folder / "existence", folder / "artwork"
    (inner / "images").mkdir(parents=True)
    (inner / "questions_answers_YN").mkdir()
    flat.mkdir()
    lines = "Is there a cat? Please answer yes or no.\tYes\nIs there a dog? Please answer yes or no.\tNo\n"
    for text, image in (
        (flat / "1.txt", flat / "1.png"),
        (inner / "questions_answers_YN/7.txt", inner / "images/7.jpg"),
    ):
        text.write_text(lines)
        Image.new("RGB", (8, 8)).save(image)
    return folder


def test_items_come_from_both_layouts_of_the_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airvlm.tasks.mme.TOTALS", {"total": ("existence", "artwork")})
    items = MME(release(tmp_path)).items()
    assert [item.id for item in items] == ["existence/1/0", "existence/1/1", "artwork/7/0", "artwork/7/1"]
    assert items[2].image == tmp_path / "artwork/images/7.jpg"
    assert MME(tmp_path, instruction="llava").prompt(items[0]) == (
        "Is there a cat?\nAnswer the question using a single word or phrase."
    )
    assert len(MME(tmp_path).items(limit=3)) == 3
    answers = tmp_path / "answers.jsonl"
    answers.write_text('{"id": "existence/1/0", "text": "Yes"}\n{"id": "existence/1/1", "text": "No"}')
    scores = score_file(MME(tmp_path), answers)  # the documented format
    assert (scores.metrics["existence"], scores.coverage.missing) == (200.0, 2)


def test_missing_data_are_named_with_their_source(tmp_path: Path) -> None:
    with pytest.raises(TaskDataMissing, match="existence"):
        MME(tmp_path).items()
    with pytest.raises(TaskDataMissing, match="--data"):
        MME().items()


def test_a_results_file_in_another_format_is_refused_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "count.txt").write_text("1.png\tIs it?\tYes\tYes\n1.png\tIs it?\tYes\n")
    with pytest.raises(ValueError, match=r"count\.txt, line 2"):
        score_file(MME(), tmp_path)


def test_a_duplicate_question_is_an_error_unless_lenient(tmp_path: Path) -> None:
    (tmp_path / "count.txt").write_text("1.png\tIs it?\tYes\tYes\n" * 2)
    with pytest.raises(ValueError, match=r"count\.txt, line 2: duplicate question"):
        score_file(MME(), tmp_path)
    scores = score_file(MME(), tmp_path, lenient=True)
    assert scores.coverage.duplicate == 1 and "count has 2 questions here, 60 in MME" in scores.notes


def test_only_a_subtask_of_another_length_is_noted(tmp_path: Path) -> None:
    for name, pairs in {"OCR": 20, "color": 20, "mine": 1}.items():
        text = "".join(f"{i}.png\tIs it {side}?\t{side}\tYes\n" for i in range(pairs) for side in ("Yes", "No"))
        (tmp_path / f"{name}.txt").write_text(text)
    notes = " ".join(score_file(MME(), tmp_path).notes)
    assert "color has 40 questions here, 60 in MME" in notes and "OCR has" not in notes and "mine has" not in notes


def test_the_answer_is_read_from_the_first_four_characters_even_over_several_lines() -> None:
    assert MME().parse(Item("1", None, "?"), "No\nThere is none.") == "no"
