"""`airvlm chat`: every turn is asked with all that was said before."""

import io
import json
from pathlib import Path
from typing import Any

import pytest

from airvlm import VLM, cli, tiny
from airvlm.methods import CropBlend

SCENE = str(tiny.scenes("test")[0].path)
QUESTIONS = ["Please describe this image in detail.", "Is there a cup in the image?"]


def talk(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], lines: list[str], *arguments: str
) -> tuple[int, str, str]:
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
    code = cli.run(["chat", "--model", "tiny", *arguments])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


@pytest.fixture(scope="module")
def vlm() -> VLM:
    return VLM.load("tiny")


def conversation(vlm: VLM, questions: list[str]) -> list[str]:
    """The same talk by hand."""
    turns: list[dict[str, Any]] = []
    texts = []
    for number, question in enumerate(questions):
        parts: list[dict[str, Any]] = [{"type": "text", "text": question}]
        turns.append({"role": "user", "content": [{"type": "image"}, *parts] if number == 0 else parts})
        texts.append(vlm.ask(SCENE, turns, method=CropBlend(), max_new_tokens=24).text)
        turns.append({"role": "assistant", "content": texts[-1]})
    return texts


def test_a_turn_is_asked_with_what_was_said_before(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], vlm: VLM
) -> None:
    code, out, err = talk(monkeypatch, capsys, QUESTIONS, SCENE, "--json", "--max-new-tokens", "24")
    assert code == 0, err
    turns = json.loads(out)["turns"]
    assert [turn["text"] for turn in turns] == conversation(vlm, QUESTIONS)
    assert all(turn["report"]["fired"] for turn in turns)


def test_again_forgets_what_was_said_and_quit_ends(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], vlm: VLM
) -> None:
    lines = [QUESTIONS[0], "/again", QUESTIONS[1], "/quit", "never asked"]
    code, out, err = talk(monkeypatch, capsys, lines, SCENE, "--max-new-tokens", "24")
    assert code == 0, err
    assert out.splitlines() == [conversation(vlm, [question])[0] for question in QUESTIONS]


def test_another_image_is_shown_with_the_next_question_and_a_wrong_one_ends_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    other = tiny.scenes("test")[1].path
    lines = [f"/image {tmp_path}/none.png", "/dance", f"/image {other}", QUESTIONS[1]]
    code, out, err = talk(monkeypatch, capsys, lines, SCENE, "--json", "--max-new-tokens", "4")
    assert code == 0
    assert "does not exist" in err
    assert "/dance: /image FILE" in err
    assert len(json.loads(out)["turns"][0]["report"]["crops"]) == 2


def test_questions_and_the_image_cannot_both_be_standard_input(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = talk(monkeypatch, capsys, [], "-")
    assert (code, out) == (2, "")
    assert "give the image as a file" in err
