"""A question as the text that a model expects: its chat template where it has one, a plain form where it has none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from jinja2 import TemplateError

from airvlm.models.families import FAMILIES, Family
from airvlm.tiny.grammar import DESCRIBE

__all__ = ["DESCRIBE", "Question", "image_token", "prompt_text", "split_messages"]

# One question, or the turns of a conversation in transformers' own form: role and content, where the content is a text
# or a list of {"type": "text", "text": ...} and {"type": "image"}; the images are given separately, in order.
Question: TypeAlias = "str | Sequence[Mapping[str, Any]]"

IMAGE_KEYS = ("image", "url", "path", "image_url")  # where a part of type image may hold its image


def prompt_text(processor: Any, family: str, image_token: str, question: Question, images: int) -> str:
    """The whole prompt, with one placeholder per image, ready for the processor.

    Args:
        processor: the model's processor.
        family: the model type.
        image_token: the placeholder of one image.
        question: a question or a conversation.
        images: how many images are given.
    """
    messages = _to_messages(question, images)
    texts = [part["text"] for turn in messages for part in turn["content"] if part["type"] == "text"]
    if not any(text.strip() for text in texts):
        raise ValueError("the question is empty")
    if image_token in "".join(texts):
        raise ValueError(f"the question contains {image_token!r}, the model's placeholder for an image; leave it out")
    template = getattr(processor, "chat_template", None)
    template = template or getattr(getattr(processor, "tokenizer", None), "chat_template", None)
    if template:
        try:
            return str(processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=False))
        except TemplateError as error:
            raise ValueError(f"the chat template of {family} refuses this conversation: {error}") from error
    if [turn["role"] for turn in messages] != ["user"]:
        raise ValueError(f"{family} has no chat template here: it takes a single question, not a conversation")
    known = FAMILIES.get(family)
    form = known.prompt if known is not None else Family.prompt
    return form.format(images=image_token * images, question="".join(texts))


def _to_messages(question: Question, images: int) -> list[dict[str, Any]]:
    """The conversation with every content as a list of parts; a single question is its only turn."""
    if isinstance(question, str):
        content = [{"type": "image"} for _ in range(images)] + [{"type": "text", "text": question}]
        return [{"role": "user", "content": content}]
    messages = []
    for turn in question:
        content = turn["content"]
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
        for part in parts:
            if part.get("type") not in ("text", "image"):
                raise ValueError(f"a turn may hold text and image parts, not {part.get('type')!r}")
        # whatever else an image part holds (its address, its bytes) is not for the template
        parts = [{"type": "image"} if part["type"] == "image" else dict(part) for part in parts]
        messages.append({"role": turn["role"], "content": parts})
    shown = sum(part["type"] == "image" for turn in messages for part in turn["content"])
    if shown != images:
        raise ValueError(f"the conversation shows {shown} images, but {images} are given")
    if not messages or messages[-1]["role"] != "user":
        raise ValueError("a conversation must end with a turn of the user, which is answered")
    return messages


def split_messages(
    messages: Sequence[Mapping[str, Any]], *, system: str | None = None
) -> tuple[list[Any], list[dict[str, Any]]]:
    """Separate a conversation, in transformers' form or OpenAI's, into its images and its turns.

    Args:
        messages: turns with a role and a content.
        system: becomes the first turn.

    Returns:
        The images in order, and the turns with {"type": "image"} in their places.
    """
    if isinstance(messages, str | Mapping):
        raise ValueError("messages: give a list of turns, each with a role and a content")
    images: list[Any] = []
    turns: list[dict[str, Any]] = [] if system is None else [{"role": "system", "content": system}]
    for number, turn in enumerate(messages):
        if not isinstance(turn, Mapping) or "role" not in turn or "content" not in turn:
            raise ValueError(f"turn {number} of the conversation has no role or no content")
        content = turn["content"]
        if not isinstance(content, str):
            if not isinstance(content, Sequence):
                raise ValueError(f"turn {number}: its content is a {type(content).__name__}, not text or parts")
            content = [_split_part(part, images, number) for part in content]
        turns.append({"role": turn["role"], "content": content})
    return images, turns


def _split_part(part: Any, images: list[Any], number: int) -> dict[str, Any]:
    if not isinstance(part, Mapping):
        raise ValueError(f"turn {number}: a part is a {type(part).__name__}, not a mapping with a type")
    if part.get("type") not in ("image", "image_url"):
        return dict(part)
    image = next((part[key] for key in IMAGE_KEYS if part.get(key) is not None), None)
    if isinstance(image, Mapping):  # OpenAI's {"image_url": {"url": ...}}
        image = image.get("url")
    if image is None:
        raise ValueError(f"turn {number}: an image part holds no image ({', '.join(IMAGE_KEYS)})")
    images.append(image)
    return {"type": "image"}


def image_token(processor: Any, image_token_id: int) -> str:
    """The placeholder text of one image, which the processor expands to as many tokens as it needs."""
    for name in ("boi_token", "image_token"):  # Gemma 3 marks the place by its begin-of-image token
        token = getattr(processor, name, None)
        if token:
            return str(token)
    return str(processor.tokenizer.convert_ids_to_tokens(image_token_id))
