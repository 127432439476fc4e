"""What a server accepts. Knows nothing of requests."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Limits"]


@dataclass(frozen=True)
class Limits:
    """Beyond these a request is refused before anything is computed."""

    body: int = 32 * 2**20  # bytes of a request
    images: int = 8  # per request
    pixels: int = 40_000_000  # per image
    tokens: int = 1024  # new tokens of one answer
    prompt: int = 16_384  # characters of all texts together
    choices: int = 8  # n
    queue: int = 256  # answers that may wait
    batch: int = 16  # answers that run together
    window: float = 0.005  # seconds that the first of a batch waits for others
