"""`airvlm ask`: one question, several methods side by side, and a chat."""

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from airvlm import VLM, tiny
from airvlm.cli.ask import mark_differences
from airvlm.methods import CropBlend
from airvlm.testing import small_models
from tests.cli.conftest import Outcome, Run

QUESTION = "is there a fork in the image ?"
OPTIONS = ["--set", "num_crops=3", "--max-new-tokens", "6"]
SCENE = str(tiny.scenes("test")[0].path)
QUESTIONS = ["Please describe this image in detail.", "Is there a cup in the image?"]


def test_the_answer_and_the_report_are_printed_apart(run: Run, model: str, image: str) -> None:
    done = run("ask", image, QUESTION, "-m", model, *OPTIONS)
    assert done.code == 0, done.err
    assert done.out.strip()
    assert done.err.startswith("crop-blend: acted at the decoder's input")
    assert "acted" not in done.out


def test_vanilla_is_named_and_has_no_report(run: Run, model: str, image: str) -> None:
    line = ["ask", image, QUESTION, "-m", model, "--method", "vanilla", "--max-new-tokens", "4"]
    assert run(*line).err == "vanilla: the model as it is\n"
    answer = run(*line, "--json").json
    assert answer["method"] is None
    assert answer["report"] is None
    assert answer["tokens"] <= 4


def test_json_is_one_object_with_method_and_report(run: Run, model: str, image: str) -> None:
    answer = run("ask", image, QUESTION, "-m", model, "--json", *OPTIONS).json
    assert answer["method"]["name"] == "crop-blend"
    assert answer["method"]["num_crops"] == 3
    assert answer["report"]["fired"] is True
    assert len(answer["report"]["crops"][0]) == 3


def test_without_a_question_the_image_is_described(run: Run, model: str, image: str) -> None:
    described = run("ask", image, "-m", model, "--json", *OPTIONS).json
    assert described["question"] == "Please describe this image in detail."
    asked = run("ask", image, described["question"], "-m", model, "--json", *OPTIONS).json
    assert asked["text"] == described["text"]


def test_several_images_and_standard_input_make_one_question(
    run: Run, model: str, image: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open(image, "rb") as piped:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(piped))
        answer = run("ask", "-", QUESTION, "--image", image, "-m", model, "--json", *OPTIONS).json
    assert len(answer["report"]["crops"]) == 2


def test_a_seed_repeats_a_sampled_answer(run: Run, model: str, image: str) -> None:
    line = ["ask", image, QUESTION, "-m", model, "--json", *OPTIONS, "--temperature", "5", "--top-p", "0.99"]
    texts = [run(*line, "--seed", seed).json["text"] for seed in ("1", "1", "2", "3")]
    assert texts[0] == texts[1]
    assert len(set(texts)) > 1


def test_a_method_of_somebody_s_module_takes_options_by_set(run: Run, model: str, image: str) -> None:
    line = ["ask", image, QUESTION, "-m", model, "--method", "airvlm.methods.vaf:VAF", "--set", "enhance=0.5", "--json"]
    assert run(*line).json["method"]["enhance"] == 0.5


def test_several_methods_stand_side_by_side(run: Run, model: str, image: str) -> None:
    methods = ["--method", "vanilla", "--method", "crop-blend:num_crops=3,weight=0.9", "--method", "eos-bias:bias=9.0"]
    line = ["ask", image, QUESTION, "-m", model, *methods, "--max-new-tokens", "6"]
    answers = run(*line, "--json").json["answers"]
    assert list(answers) == methods[1::2]
    printed = run(*line).out
    for label, answer in answers.items():
        assert f"{label}: {answer['text']}" in printed


def test_a_terminal_shows_whole_names_of_methods(
    run: Run, model: str, image: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Console(file=io.StringIO(), force_terminal=True, width=80)
    monkeypatch.setattr("airvlm.cli.ask.out", lambda: terminal)
    name = "crop-blend:num_crops=12,eps=0.05,weight=0.25"
    run("ask", image, QUESTION, "-m", model, "--method", "vanilla", "--method", name, "--max-new-tokens", "3")
    shown = terminal.file.getvalue()  # type: ignore[attr-defined]  # a StringIO
    assert all(f"{option}={value}" in shown for option, value in (("num_crops", 12), ("eps", 0.05), ("weight", 0.25)))


def test_equal_answers_are_said_to_be_equal(run: Run, model: str, image: str) -> None:
    done = run(
        "ask", image, "-m", model, "--method", "vanilla", "--method", "crop-blend:weight=0", "--max-new-tokens", "3"
    )
    assert done.out.endswith("the same text as vanilla: crop-blend:weight=0\n")


def test_only_words_that_differ_are_marked() -> None:
    text = mark_differences("a cat and a dog", "a cat and two birds")
    assert text.plain == "a cat and two birds"
    assert {text.plain[span.start : span.end].strip() for span in text.spans if span.style} == {"two", "birds"}
    assert not [span for span in mark_differences("the same", "the same").spans if span.style]


def test_an_emoji_scene_for_the_photograph_model_gets_a_hint(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, processor = small_models.build("llava")
    monkeypatch.setattr("airvlm.cli.common.load_model", lambda *_: VLM(model, processor, name="photo"))
    drawn = [tmp_path / name for name in ("scene.png", "scene.jpg", "scene.webp")]
    for path in drawn:
        assert run("scene", "-o", str(path)).code == 0
    for source in [*map(str, drawn), SCENE]:
        hint = f"airvlm: {source} is an emoji scene"
        line = ["ask", source, "what ?", "--max-new-tokens", "1", "--method", "vanilla"]
        assert run(*line).err.startswith(hint)
        assert hint not in run(*line, "--model", "tiny").err
    plain = tmp_path / "plain.png"
    small_models.sample_image(1).save(plain)
    assert "emoji" not in run("ask", str(plain), "what ?", "--max-new-tokens", "1", "--method", "vanilla").err


# -- chat


@pytest.fixture(scope="module")
def vlm() -> VLM:
    return VLM.load("tiny")


@pytest.fixture
def talk(run: Run, monkeypatch: pytest.MonkeyPatch, vlm: VLM) -> Any:
    def talk(lines: list[str], *arguments: str) -> Outcome:
        monkeypatch.setattr("airvlm.cli.common.load_model", lambda *_: vlm)
        monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        return run("ask", *arguments, "--chat", "--model", "tiny")

    return talk


def conversation(vlm: VLM, questions: list[str], tokens: int = 24) -> list[str]:
    """The same chat by hand."""
    turns: list[dict[str, Any]] = []
    texts = []
    for number, question in enumerate(questions):
        parts: list[dict[str, Any]] = [{"type": "text", "text": question}]
        turns.append({"role": "user", "content": [{"type": "image"}, *parts] if number == 0 else parts})
        texts.append(vlm.ask(SCENE, turns, method=CropBlend(), max_new_tokens=tokens).text)
        turns.append({"role": "assistant", "content": texts[-1]})
    return texts


def test_a_turn_is_asked_with_what_was_said_before(talk: Any, vlm: VLM) -> None:
    turns = talk(QUESTIONS, SCENE, "--json", "--max-new-tokens", "24").json["turns"]
    assert [turn["text"] for turn in turns] == conversation(vlm, QUESTIONS)
    assert all(turn["report"]["fired"] for turn in turns)


def test_a_question_on_the_command_line_is_the_first_turn(talk: Any, vlm: VLM) -> None:
    turns = talk(QUESTIONS[1:], SCENE, QUESTIONS[0], "--json", "--max-new-tokens", "24").json["turns"]
    assert [turn["text"] for turn in turns] == conversation(vlm, QUESTIONS)


def test_reset_forgets_what_was_said_and_quit_ends(talk: Any, vlm: VLM) -> None:
    done = talk([QUESTIONS[0], "/reset", QUESTIONS[1], "/quit", "never asked"], SCENE, "--max-new-tokens", "24")
    assert done.out.splitlines() == [conversation(vlm, [question])[0] for question in QUESTIONS]
    assert done.err.startswith("tiny was trained on single questions")


def test_method_changes_the_method_and_report_shows_everything(talk: Any) -> None:
    lines = [QUESTIONS[1], "/report", "/method vanilla", QUESTIONS[1], "/method magic", "/report", "/help"]
    done = talk(lines, SCENE, "--max-new-tokens", "4")
    assert done.code == 0
    reports = [line for line in done.err.splitlines() if line.startswith(("crop-blend: acted", "vanilla: the model"))]
    assert len(reports) == 2
    for said in ("sinkhorn: ", "unknown method 'magic'", "there is no report", "/image FILE"):
        assert said in done.err


def test_another_image_is_shown_and_a_mistake_ends_nothing(talk: Any, tmp_path: Path) -> None:
    other = tiny.scenes("test")[1].path
    lines = [f"/image {tmp_path}/none.png", "/dance", f"/image {other}", QUESTIONS[1]]
    done = talk(lines, SCENE, "--json", "--max-new-tokens", "4")
    assert "does not exist" in done.err
    assert "unknown command '/dance'" in done.err
    assert len(done.json["turns"][0]["report"]["crops"]) == 2
