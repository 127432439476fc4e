"""AMBER: official figures on descriptions, the rules of its scores, and its yes/no questions."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from airvlm.tasks import load_task
from airvlm.tasks.amber import Amber, AmberYesNo
from airvlm.tasks.answers import score_file
from airvlm.tasks.base import TaskDataMissing
from airvlm.tasks.words.tagger import find_tagger
from tests.golden import golden

RULES = Amber(approximate=True)  # NLTK's data are not everywhere


def _data() -> Path:
    path = golden("amber").parents[1] / "data" / "amber"
    if not path.exists():
        pytest.skip(f"AMBER's files are not available: {path}")
    return path


@pytest.mark.skipif(find_tagger() is None, reason="NLTK's data are not installed")
@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ("generative_200.json", "generative_200.expected.txt"),
        ("llava15_7b_166.json", "llava15_7b_166.exactsim.expected.txt"),
        ("llava15_7b_166.json", "llava15_7b_166.en_core_web_lg.reported.txt"),
    ],
)
def test_descriptions_score_as_the_official_script_prints(answers: str, expected: str) -> None:
    printed = dict(re.findall(r"(\w+):\s+([\d.]+)", golden("amber", expected).read_text()))
    metrics = score_file(load_task("amber"), golden("amber", answers), _data()).metrics
    assert {name: f"{metrics[name]:.1f}" for name in printed} == printed


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """AMBER's files for one image and four questions."""
    (tmp_path / "relation.json").write_text(json.dumps({"sea": ["water"], "dog": [], "cat": [], "sun": []}))
    (tmp_path / "safe_words.txt").write_text("light\nsign")
    notes: list[dict[str, object]] = [
        {"id": 1, "type": "generative", "truth": ["sea", "dog", "dog"], "hallu": ["sun"]},
        {"id": 2, "type": "discriminative-attribute-state", "truth": "yes"},
        {"id": 3, "type": "discriminative-hallucination", "truth": "no"},
        {"id": 4, "type": "discriminative-hallucination", "truth": "no"},
        {"id": 5, "type": "relation", "truth": "no"},
    ]
    (tmp_path / "annotations.json").write_text(json.dumps(notes))
    return tmp_path


def _answers(folder: Path, rows: dict[int, str]) -> Path:
    path = folder / "answers.json"
    path.write_text(json.dumps([{"id": number, "response": text} for number, text in rows.items()]))
    return path


def test_related_words_cover_an_object_and_a_duplicate_object_is_never_covered(folder: Path) -> None:
    scores = score_file(RULES, _answers(folder, {1: "A dog in the water under the sun with a cat."}), folder)
    assert scores.metrics["Cover"] == pytest.approx(200 / 3.001)
    figures = [scores.metrics[name] for name in ("CHAIR", "Hal", "Cog")]
    assert figures == pytest.approx([50, 100, 100], abs=0.1)  # the official denominators begin with 0.001
    assert scores.details[0]["hallucinated"] == ["sun", "cat"]


def test_a_word_that_begins_a_sentence_is_not_recognized(folder: Path) -> None:
    assert score_file(RULES, _answers(folder, {1: "Sun and a dog."}), folder).metrics["CHAIR"] == 0


def test_the_positive_class_of_yes_no_questions_is_no(folder: Path) -> None:
    answers = _answers(folder, {2: "Yes", 3: "No", 4: "Yes", 5: "No, it is not."})
    strict = score_file(AmberYesNo(), answers, folder).metrics
    assert strict["accuracy"] == pytest.approx(300 / 4.001)  # the official denominators begin with 0.001
    assert strict["precision"] == pytest.approx(200 / 2.001)
    assert strict["recall"] == pytest.approx(200 / 3.001)
    assert strict["f1"] == pytest.approx(200 * 0.666 / (1.666 + 0.0001), abs=0.1)
    assert strict["f1-existence"] == pytest.approx(200 * 0.5 / (1.5 + 0.001), abs=0.1)
    assert strict["accuracy-relation"] == pytest.approx(100, abs=0.1)
    official = score_file(AmberYesNo(parser="official"), answers, folder)
    assert official.metrics["accuracy-relation"] == 0 and official.unparsed == 1


def test_answers_of_the_other_part_are_left_out(folder: Path) -> None:
    both = _answers(folder, {1: "A dog.", 2: "Yes"})
    assert score_file(RULES, both, folder).n == score_file(AmberYesNo(), both, folder).n == 1
    with pytest.raises(ValueError, match="score it with amber-yesno"):
        score_file(RULES, _answers(folder, {2: "Yes"}), folder)
    with pytest.raises(ValueError, match="score it with amber"):
        score_file(AmberYesNo(), _answers(folder, {1: "A dog."}), folder)


def test_items_come_from_the_query_files(folder: Path) -> None:
    (folder / "query_generative.json").write_text(
        '[{"id": 1, "image": "AMBER_1.jpg", "query": "Describe this image."}]'
    )
    query = '[{"id": 3, "image": "AMBER_1.jpg", "query": "Is there a sun in this image?"}]'
    (folder / "query_discriminative.json").write_text(query)
    with pytest.raises(TaskDataMissing, match=r"no AMBER_1\.jpg"):
        replace(RULES, data=folder).items()
    (folder / "image").mkdir()
    (folder / "image" / "AMBER_1.jpg").write_bytes(b"")
    described, asked = replace(RULES, data=folder).items(), AmberYesNo(folder).items()
    assert described[0].question == "Describe this image." and asked[0].truth == "no"
    assert replace(RULES, data=folder).score(described, ["A dog."]).metrics["CHAIR"] == 0
    assert AmberYesNo(folder).score(asked, [None]).missing == 1


def test_missing_files_and_unknown_ids_are_named(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(TaskDataMissing, match="--truth FOLDER"):
        score_file(RULES, _answers(folder, {1: "A dog."}))
    with pytest.raises(ValueError, match="no answer has the id of an item"):
        score_file(RULES, _answers(folder, {9: "A dog."}), folder)
    (folder / "relation.json").unlink()  # a folder may lose a file after it was read once
    with pytest.raises(TaskDataMissing, match=r"no relation\.json"):
        score_file(RULES, _answers(folder, {1: "A dog."}), folder)


def test_missing_answers_are_counted(folder: Path) -> None:
    scores = score_file(AmberYesNo(), _answers(folder, {2: "Yes", 3: "No"}), folder)
    assert (scores.coverage.expected, scores.coverage.missing, scores.n) == (4, 2, 2)


def test_results_by_rules_are_marked_as_approximate(folder: Path) -> None:
    scores = score_file(RULES, _answers(folder, {1: "A dog."}), folder)
    assert scores.variant == "approximate" and any(note.startswith("approximate:") for note in scores.notes)
    assert RULES.settings()["tagger"] == "rules (approximate)" and RULES.settings()["approximate"] is True


@pytest.mark.parametrize(
    "change",
    [
        {"type": "generative", "truth": "sea", "hallu": []},
        {"type": "generative", "truth": ["sea"]},
        {"type": "relation", "truth": "perhaps"},
        {"type": "relation", "truth": ["no"]},
    ],
)
def test_an_annotation_must_fit_its_type(folder: Path, change: dict[str, object]) -> None:
    notes = json.loads((folder / "annotations.json").read_text())
    (folder / "annotations.json").write_text(json.dumps([*notes, {"id": 6, **change}]))
    with pytest.raises(ValueError, match=f"field truth: not that of a {change['type']} item"):
        score_file(load_task("amber"), _answers(folder, {1: "A sea."}), folder)
