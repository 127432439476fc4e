"""A conversation as people hand it over: turns with their images inside, in transformers' form or in OpenAI's.

Takes the images out of the turns, in their order, so that each is read once. Knows nothing of templates or tensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["taken_apart"]

# Where a part of type image keeps its image; several spellings are about
_PLACES = ("image", "url", "path", "image_url")


def taken_apart(
    messages: Sequence[Mapping[str, Any]], *, system: str | None = None
) -> tuple[list[Any], list[dict[str, Any]]]:
    """(the images in order, the turns with {"type": "image"} in their places). `system` becomes the first turn."""
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
                raise ValueError(
                    f"turn {number}: its content is a {type(content).__name__}, not text or parts"
                )
            content = [_part(part, images, number) for part in content]
        turns.append({"role": turn["role"], "content": content})
    return images, turns


def _part(part: Any, images: list[Any], number: int) -> dict[str, Any]:
    if not isinstance(part, Mapping):
        raise ValueError(f"turn {number}: a part is a {type(part).__name__}, not a mapping with a type")
    if part.get("type") not in ("image", "image_url"):
        return dict(part)
    image = next((part[place] for place in _PLACES if part.get(place) is not None), None)
    if isinstance(image, Mapping):  # OpenAI's {"image_url": {"url": ...}}
        image = image.get("url")
    if image is None:
        raise ValueError(f"turn {number}: an image part holds no image ({', '.join(_PLACES)})")
    images.append(image)
    return {"type": "image"}
