"""A question as the text a model expects: its chat template where it has one, a plain form where it has none.

Knows nothing of tensors or images: it only says how many images there are and where they go.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from jinja2 import TemplateError

from airvlm.models.families import FAMILIES, Family
from airvlm.tiny.grammar import DESCRIBE

__all__ = ["DESCRIBE", "Question", "begins_with_bos", "image_token", "prompt_text"]

# One question, or the turns of a conversation in transformers' own form: role and content, where the content is a text
# or a list of {"type": "text", "text": ...} and {"type": "image"}; the images are given beside it, in their order
Question: TypeAlias = "str | Sequence[Mapping[str, Any]]"


def prompt_text(processor: Any, family: str, image_token: str, question: Question, images: int) -> str:
    """The whole prompt, with one placeholder for each image, ready for the processor."""
    messages = _turns(question, images)
    texts = [part["text"] for turn in messages for part in turn["content"] if part["type"] == "text"]
    if not any(text.strip() for text in texts):
        raise ValueError("the question is empty: say what to ask about the image")
    if any(image_token in text for text in texts):
        raise ValueError(
            f"the question contains {image_token!r}, the model's placeholder for an image: leave it out"
        )
    template = getattr(processor, "chat_template", None)
    template = template or getattr(getattr(processor, "tokenizer", None), "chat_template", None)
    if template:
        try:
            return str(processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=False))
        except TemplateError as error:
            raise ValueError(f"{family}'s chat template refuses this conversation: {error}") from error
    if [turn["role"] for turn in messages] != ["user"]:
        raise ValueError(f"{family} has no chat template here: it takes one question, no conversation")
    known = FAMILIES.get(family)
    form = known.prompt if known is not None else Family.prompt
    return form.format(images=image_token * images, question="".join(texts))


def _turns(question: Question, images: int) -> list[dict[str, Any]]:
    """The conversation with every content as a list of parts; a single question is its only turn."""
    if isinstance(question, str):
        content = [{"type": "image"} for _ in range(images)] + [{"type": "text", "text": question}]
        return [{"role": "user", "content": content}]
    turns = []
    for turn in question:
        content = turn["content"]
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
        for part in parts:
            if part.get("type") not in ("text", "image"):
                raise ValueError(f"a turn may hold text and image parts, not {part.get('type')!r}")
        # what else an image part carries (its address, its bytes) is not the template's to read
        parts = [{"type": "image"} if part["type"] == "image" else dict(part) for part in parts]
        turns.append({"role": turn["role"], "content": parts})
    shown = sum(part["type"] == "image" for turn in turns for part in turn["content"])
    if shown != images:
        raise ValueError(f"the conversation shows {shown} images, but {images} are given")
    if not turns or turns[-1]["role"] != "user":
        raise ValueError("a conversation must end with the user's turn, which is answered")
    return turns


def image_token(processor: Any, image_token_id: int) -> str:
    """The placeholder text of one image, which the processor expands to as many tokens as it needs."""
    for name in ("boi_token", "image_token"):  # Gemma 3 marks the place by its begin-of-image token
        token = getattr(processor, name, None)
        if token:
            return str(token)
    return str(processor.tokenizer.convert_ids_to_tokens(image_token_id))


def begins_with_bos(processor: Any, prompt: str) -> bool:
    """Whether the template wrote the begin token already, so that the tokenizer must not add a second one."""
    bos = getattr(getattr(processor, "tokenizer", None), "bos_token", None)
    return bool(bos) and prompt.startswith(str(bos))
