"""HaloQuest: its table, its judge, and images that are gone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from airvlm.tasks import TaskDataMissing, load_task
from airvlm.tasks.answers import score_file
from airvlm.tasks.haloquest import parse_verdict
from airvlm.testing import check_task
from tests.fake_judge import FakeJudge
from tests.tasks.conftest import judge_at

HEAD = ",image_name,url,image type,hallucination type,question,groundtruth responses,split"
ROWS = (
    "0,a.png,https://x.org/a.png,generated,false premises,What color is the hat?,There is no hat.; No hat,eval",
    "1,a.png,https://x.org/a.png,generated,visual challenge,How many bees?,Two; 2,eval",
    "2,b.jpg,https://x.org/b.jpg,real,insufficient context,Which shoes?,They cannot be seen.,eval",
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "haloquest-eval.csv").write_text("\n".join([HEAD, *ROWS]))
    return tmp_path


@pytest.mark.parametrize(
    ("verdict", "value"),
    [
        ("The answer says blue; the reference no hat.\nVerdict: incorrect", False),
        ("... which is not incorrect as such.\n**Verdict:** Correct.", True),
        ("Correct", True),
        ("incorrect.", False),
        ("Partly correct, partly incorrect", None),
        ("I cannot tell.", None),
    ],
)
def test_verdicts(verdict: str, value: bool | None) -> None:
    assert parse_verdict(verdict) is value


def test_accuracy_by_kind_of_question_and_image(folder: Path) -> None:
    with FakeJudge(lambda prompt, n: f"Verdict: {'correct' if 'Answer: right' in prompt else 'incorrect'}") as fake:
        task = load_task("haloquest", folder, judge=judge_at(fake))
        items = task.items()
        scores = task.score(items, ["right", "wrong", "right"])
    assert [item.group for item in items] == ["a.png", "a.png", "b.jpg"]
    assert scores.metrics["accuracy"] == pytest.approx(200 / 3)
    assert {name: scores.metrics[name] for name in ("false_premise", "visually_challenging", "generated", "real")} == {
        "false_premise": 100,
        "visually_challenging": 0,
        "generated": 50,
        "real": 100,
    }
    prompts = [request["messages"][-1]["content"] for request in fake.requests]
    assert any("There is no hat.; No hat" in prompt and "What color is the hat?" in prompt for prompt in prompts)


def test_questions_about_images_that_are_gone_are_left_out_and_counted(folder: Path) -> None:
    (folder / "missing_images.json").write_text('["a.png"]')
    task = load_task("haloquest", folder)
    assert [item.id for item in task.items()] == ["2"]
    assert task.settings()["missing_images"] == 1
    assert "left out" in load_task("haloquest", folder).aggregate(task.items(), [True], [{}]).notes[0]


@pytest.mark.parametrize("content", ["null", "{}", "[1]"])
def test_a_damaged_list_of_missing_images_is_named(content: str, folder: Path) -> None:
    (folder / "missing_images.json").write_text(content)
    with pytest.raises(ValueError, match="a JSON list of names"):
        load_task("haloquest", folder).items()


def test_answers_of_a_file_are_judged_by_id(folder: Path, tmp_path: Path) -> None:
    answers = tmp_path / "answers.jsonl"
    answers.write_text("\n".join(json.dumps({"id": str(n), "text": "x"}) for n in range(3)))
    with FakeJudge("Verdict: correct") as fake:
        scores = score_file(load_task("haloquest", judge=judge_at(fake)), answers, folder / "haloquest-eval.csv")
    assert scores.metrics["accuracy"] == 100 and scores.coverage.complete


def test_it_keeps_the_laws(folder: Path, tmp_path: Path) -> None:
    check_task(load_task("haloquest", folder))
    with pytest.raises(TaskDataMissing, match="haloquest-eval"):
        load_task("haloquest", folder / "..").items()
