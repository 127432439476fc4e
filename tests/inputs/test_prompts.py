"""A conversation becomes the prompt that the model's own template writes."""

import pytest

from airvlm import VLM
from airvlm.inputs.prompts import prompt_text
from airvlm.tiny import scenes


@pytest.fixture(scope="module")
def vlm() -> VLM:
    return VLM.load("tiny")


def build_prompt(vlm: VLM, question, images: int = 1) -> str:
    return prompt_text(vlm.processor, "llava", "<image>", question, images)


def test_one_turn_is_the_question_itself(vlm):
    turn = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Is there a cat?"}]}]
    assert build_prompt(vlm, turn) == build_prompt(vlm, "Is there a cat?")


def test_turns_are_written_in_order(vlm):
    scene = scenes("test")[0]
    turns = [
        {"role": "user", "content": [{"type": "image", "url": scene.path}, {"type": "text", "text": "One?"}]},
        {"role": "assistant", "content": "yes"},
        {"role": "user", "content": "Is there a cat in the image?"},
    ]
    answer = vlm.ask(scene.path, turns, max_new_tokens=3)
    assert answer.prompt == "USER: <image>\nOne? ASSISTANT: yes</s>USER: Is there a cat in the image? ASSISTANT:"
    assert answer.text


@pytest.mark.parametrize(
    ("turns", "images", "message"),
    [
        ([{"role": "user", "content": "Is there a cat?"}], 1, "shows 0 images, but 1 are given"),
        ([{"role": "user", "content": [{"type": "video"}]}], 0, "not 'video'"),
        ([{"role": "assistant", "content": "yes"}], 0, "must end with a turn of the user"),
        ([{"role": "user", "content": "what is <image>?"}], 0, "placeholder"),
        ([{"role": "user", "content": " "}], 0, "empty"),
        ([], 0, "must end with a turn of the user"),
    ],
)
def test_a_wrong_conversation_is_refused(vlm, turns, images, message):
    with pytest.raises(ValueError, match=message):
        build_prompt(vlm, turns, images)


def test_without_a_template_only_one_question_is_taken():
    class Bare:
        tokenizer = None

    one = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What?"}]}]
    assert prompt_text(Bare(), "llava", "<image>", one, 1) == "USER: <image>\nWhat? ASSISTANT:"
    with pytest.raises(ValueError, match="no chat template"):
        prompt_text(Bare(), "llava", "<image>", [{"role": "system", "content": "s"}, *one], 1)
