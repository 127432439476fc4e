"""A question as the text a model expects: its chat template where it has one, a plain form where it has none.

Knows nothing of tensors or pictures: it only says how many pictures there are and where they go.
"""

from typing import Any

__all__ = ["DESCRIBE", "begins_with_bos", "image_token", "prompt_text"]

# The sentence that CHAIR evaluations use, so that `describe` and the evaluation ask the same
DESCRIBE = "Please describe this image in detail."

# Checkpoints without a chat template. {images} stands for the placeholders, {question} for the question.
_PLAIN = "{images}\n{question}\n"
_PLAIN_FORMS = {
    "llava": "USER: {images}\n{question} ASSISTANT:",
    "vipllava": "###Human: {images}\n{question}###Assistant:",
    "paligemma": "{images}{question}",
}


def prompt_text(processor: Any, family: str, image_token: str, question: str, pictures: int) -> str:
    """The whole prompt, with one placeholder for each picture, ready for the processor."""
    if not question.strip():
        raise ValueError("the question is empty: say what to ask about the picture")
    if image_token in question:
        raise ValueError(
            f"the question contains {image_token!r}, the model's placeholder for a picture: leave it out"
        )
    template = getattr(processor, "chat_template", None)
    template = template or getattr(getattr(processor, "tokenizer", None), "chat_template", None)
    if template:
        content = [{"type": "image"} for _ in range(pictures)] + [{"type": "text", "text": question}]
        messages = [{"role": "user", "content": content}]
        return str(processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=False))
    form = _PLAIN_FORMS.get(family, _PLAIN)
    images = image_token * pictures
    return (
        form.format(images=images, question=question) if images else form.format(images="", question=question)
    )


def image_token(processor: Any, image_token_id: int) -> str:
    """The placeholder text of one picture, which the processor expands to as many tokens as it needs."""
    for name in ("boi_token", "image_token"):  # Gemma 3 marks the place by its begin-of-image token
        token = getattr(processor, name, None)
        if token:
            return str(token)
    return str(processor.tokenizer.convert_ids_to_tokens(image_token_id))


def begins_with_bos(processor: Any, prompt: str) -> bool:
    """Whether the template wrote the begin token already, so that the tokenizer must not add a second one."""
    bos = getattr(getattr(processor, "tokenizer", None), "bos_token", None)
    return bool(bos) and prompt.startswith(str(bos))
