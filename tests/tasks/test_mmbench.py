"""MMBench: options inferred as VLMEvalKit does, and a question that is right only in every rotation."""

from __future__ import annotations

import base64
import io
import json
import zipfile
from pathlib import Path

import openpyxl
import pytest
from PIL import Image

from airvlm.tasks import Item, TaskDataMissing
from airvlm.tasks.answers import score_file
from airvlm.tasks.mmbench import MMBench
from airvlm.tasks.words.options import infer_option
from tests.golden import golden


def test_predictions_are_parsed_as_by_the_official_code() -> None:
    content = json.loads(golden("mmbench", "can_infer.json").read_text())
    for case in content["cases"]:
        assert infer_option(case["prediction"], content["choices"]) == (case["can_infer"] or None), case


def test_rotations_of_a_question_count_as_in_the_official_code() -> None:
    choices = json.loads(golden("mmbench", "can_infer.json").read_text())["choices"]
    questions = json.loads(golden("mmbench", "circular.json").read_text())
    items, answers = [], []
    for question in questions:
        texts = list(choices.values())
        for k, (prediction, truth) in enumerate(zip(question["predictions"], question["GT"], strict=True)):
            options = dict(zip(choices, texts[-k:] + texts[:-k] if k else texts, strict=True))
            meta = {"options": options, "group": question["name"], "ability": ""}
            items.append(Item(f"{question['name']}/{k}", None, "", truth, meta))
            answers.append(prediction)
    scores = MMBench().score(items, answers)
    hits = {group: counts["hits"] for group, counts in zip(scores.groups, scores.per_item) if "hits" in counts}
    official = {question["name"]: (question["prefetch_result"] or {"hit": 0})["hit"] for question in questions}
    assert hits == official
    assert scores.unparsed == 1  # "hmm": officially left to a judge, without one wrong


CHOICES = {"A": "teddy bear", "B": "rabbit", "C": "cat", "D": "dog"}


def table(folder: Path, circled: bool) -> Path:
    data = io.BytesIO()
    Image.new("RGB", (40, 30), "red").save(data, "JPEG")
    image = base64.b64encode(data.getvalue()).decode()
    rows = [["1", image, "What is it?", "", "cat", "dog", "", "", "A", "x", "logic_reasoning"]]
    rows += [["2", image, 'A "tab" question', "look", "1", "2", "3", "4", "D", "x", "coarse_perception"]]
    if circled:
        rows += [["1000001", "1", "What is it?", "", "dog", "cat", "", "", "B", "x", "logic_reasoning"]]
    head = ["index", "image", "question", "hint", "A", "B", "C", "D", "answer", "category", "l2-category"]
    lines = [
        "\t".join('"' + cell.replace('"', '""') + '"' if '"' in cell else cell for cell in row) for row in [head, *rows]
    ]
    (folder / "MMBench_DEV_EN.tsv").write_text("\n".join(lines) + "\n")
    return folder


def test_a_table_without_rotations_gets_them(tmp_path: Path) -> None:
    items = MMBench(table(tmp_path, circled=False)).items()
    assert [(item.id, item.truth) for item in items] == [
        *[("1", "A"), ("1000001", "B")],
        *[("2", "D"), ("1000002", "A"), ("2000002", "B"), ("3000002", "C")],
    ]
    assert all(item.meta["options"][item.truth] == ("cat" if item.group == "1" else "4") for item in items)
    assert {item.image for item in items if item.group == "2"} == {tmp_path / "MMBench_DEV_EN_images" / "2.jpg"}
    assert Image.open(items[0].image).size == (40, 30)


def test_a_table_with_rotations_is_kept(tmp_path: Path) -> None:
    items = MMBench(table(tmp_path, circled=True)).items()
    assert [item.id for item in items] == ["1", "1000001", "2"]
    assert items[1].image == items[0].image


def test_prompts_are_those_of_the_two_harnesses(tmp_path: Path) -> None:
    item = MMBench(table(tmp_path, circled=False)).items()[2]
    assert MMBench().prompt(item) == (
        'Hint: look\nQuestion: A "tab" question\nOptions:\nA. 1\nB. 2\nC. 3\nD. 4\n'
        "Please select the correct answer from the options above. \n"
    )
    assert MMBench(instruction="llava").prompt(item) == (
        'look\nA "tab" question\nA. 1\nB. 2\nC. 3\nD. 4\n'
        "Answer with the option's letter from the given choices directly."
    )


def test_scores_are_by_ability_and_a_question_with_a_missing_rotation_is_left_out(tmp_path: Path) -> None:
    task = MMBench(table(tmp_path, circled=False))
    items = task.items()
    right = [item.truth for item in items]
    assert task.score(items, right).metrics["accuracy"] == 100.0
    one_wrong = task.score(items, [*right[:5], "A"]).metrics
    assert (one_wrong["accuracy"], one_wrong["LR"], one_wrong["CP"]) == (50.0, 100.0, 0.0)
    gap = task.score(items, [*right[:5], None])
    assert (gap.metrics["accuracy"], gap.missing) == (100.0, 1)


def test_answers_by_index_are_scored_against_the_table(tmp_path: Path) -> None:
    task = MMBench(table(tmp_path, circled=False))
    answers = tmp_path / "answers.jsonl"
    answers.write_text("\n".join(json.dumps({"index": int(i.id), "prediction": i.truth}) for i in task.items()))
    assert score_file(task, answers).metrics["accuracy"] == 100.0
    assert score_file(MMBench(), answers, tmp_path / "MMBench_DEV_EN.tsv").metrics["accuracy"] == 100.0


def test_missing_data_are_named_with_their_source(tmp_path: Path) -> None:
    with pytest.raises(TaskDataMissing, match=r"MMBench_DEV_EN\.tsv"):
        MMBench(tmp_path).items()


def test_a_refusal_is_parsed_and_wrong() -> None:
    item = Item("1", None, "?", "A", {"options": CHOICES, "ability": "", "group": "1"})
    scores = MMBench().score([item], ["I can't process this file."])
    assert (scores.metrics["accuracy"], scores.unparsed) == (0.0, 0)


def workbook(path: Path, rows: list[list[str]]) -> Path:
    """An .xlsx with numbers as numbers and empty cells left out, as spreadsheets write it."""
    book = openpyxl.Workbook()
    for row in rows:
        book.active.append([int(cell) if cell.isdigit() else cell or None for cell in row])
    book.save(path)
    return path


HEAD = ["index", "question", "hint", "A", "B", "C", "D", "answer", "prediction", "l2-category"]
ROWS = [
    ["1", "What?", "", "cat", "dog", "", "", "A", "A", "logic_reasoning"],
    ["1000001", "What?", "", "dog", "cat", "", "", "B", "(B)", "logic_reasoning"],
    ["2", "Who?", "", "me", "you", "", "", "B", "A", "coarse_perception"],
    ["1000002", "Who?", "", "you", "me", "", "", "A", "A", "coarse_perception"],
]


def test_a_submission_as_a_spreadsheet_is_scored(tmp_path: Path) -> None:
    scores = score_file(MMBench(), workbook(tmp_path / "upload.xlsx", [HEAD, *ROWS]))
    assert (scores.metrics["accuracy"], scores.metrics["LR"], scores.metrics["CP"]) == (50.0, 100.0, 0.0)
    assert scores.record == {"table": "upload.xlsx"}  # the table that was given, not the default one


def test_a_malicious_or_broken_spreadsheet_is_refused(tmp_path: Path) -> None:
    sound = workbook(tmp_path / "sound.xlsx", [HEAD, *ROWS])
    with zipfile.ZipFile(sound) as book, zipfile.ZipFile(tmp_path / "bad.xlsx", "w") as bad:
        for name in book.namelist():
            harm = b'<!DOCTYPE x [<!ENTITY a "b">]>' if name.endswith("sheet1.xml") else b""
            bad.writestr(name, harm + book.read(name))
    with pytest.raises(ValueError, match="declares entities"):
        score_file(MMBench(), tmp_path / "bad.xlsx")
    with zipfile.ZipFile(tmp_path / "bomb.xlsx", "w", zipfile.ZIP_DEFLATED) as bomb:
        bomb.writestr("xl/worksheets/sheet1.xml", b" " * (80 << 20))
    with pytest.raises(ValueError, match="unpacks to more than 64 MB"):
        score_file(MMBench(), tmp_path / "bomb.xlsx")
    (tmp_path / "none.xlsx").write_text("index,prediction")
    (tmp_path / "cut.xlsx").write_bytes(sound.read_bytes()[:-100])
    for name in ("none", "cut"):
        with pytest.raises(ValueError, match=r"not a readable \.xlsx"):
            score_file(MMBench(), tmp_path / f"{name}.xlsx")


def test_the_order_of_the_rows_does_not_matter(tmp_path: Path) -> None:
    forth = score_file(MMBench(), workbook(tmp_path / "forth.xlsx", [HEAD, *ROWS]))
    back = score_file(MMBench(), workbook(tmp_path / "back.xlsx", [HEAD, *ROWS[::-1]]))
    assert forth.metrics == back.metrics and forth.coverage == back.coverage


def test_questions_that_lack_rotations_are_noted(tmp_path: Path) -> None:
    scores = score_file(MMBench(), workbook(tmp_path / "a.xlsx", [HEAD, *ROWS[:3]]))
    assert "1 of 2 questions lack rotations" in scores.notes[0]


@pytest.mark.parametrize("answer", ["Z", "a", "C", ""])
def test_a_right_answer_that_is_not_an_option_is_an_error(tmp_path: Path, answer: str) -> None:
    rows = [[*ROWS[0][:7], answer, *ROWS[0][8:]], *ROWS[1:]]
    with pytest.raises(ValueError, match=r"line 2, field answer: expected the letter of an option \(A, B\)"):
        score_file(MMBench(), workbook(tmp_path / "a.xlsx", [HEAD, *rows]))


def test_a_submission_may_be_compared_with_the_official_table(tmp_path: Path) -> None:
    predictions = workbook(tmp_path / "upload.xlsx", [HEAD, *ROWS[:2]])
    truth = workbook(tmp_path / "truth.xlsx", [HEAD[:8], *(row[:8] for row in ROWS)])
    assert score_file(MMBench(), predictions, truth).coverage.missing == 2


def test_indices_begin_at_0(tmp_path: Path) -> None:
    file = table(tmp_path, circled=False) / "MMBench_DEV_EN.tsv"
    text = file.read_text()
    file.write_text(text.replace("\n1\t", "\n0\t"))
    assert [item.id for item in MMBench(tmp_path).items()][:2] == ["0", "1000000"]
    file.write_text(text.replace("\n1\t", "\n-1\t"))
    with pytest.raises(ValueError, match="greater than or equal to 0, not -1"):
        MMBench(tmp_path).items()
