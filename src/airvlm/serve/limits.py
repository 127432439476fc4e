"""What a server accepts, and budgets that all of its requests share."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import dataclass, field

from airvlm.methods.requests import MethodLimits

__all__ = ["Budget", "Limits"]


@dataclass(frozen=True)
class Limits:
    """The limits of a server. A request beyond them is refused before the model sees it."""

    # one request
    body: int = 32 * 2**20  # bytes
    values: int = 20_000  # commas, brackets and braces of its JSON
    messages: int = 128
    characters: int = 16_384  # of all texts together
    prompt_tokens: int = 16_384  # after the chat template, image tokens included
    images: int = 8
    pixels: int = 40_000_000  # per image
    request_pixels: int = 100_000_000  # of all images
    aspect: int = 200  # longer side of an image over its shorter one
    tokens: int = 1024  # new tokens per answer
    choices: int = 8  # n
    methods: MethodLimits = field(default_factory=MethodLimits)
    # all requests together
    bodies: int = 256 * 2**20  # bytes that are received or waiting to be read
    server_pixels: int = 100_000_000  # of images that are decoded or waiting for the model
    queue: int = 256  # answers waiting for the model
    batch: int = 16  # answers that run together
    window: float = 0.005  # seconds that the first answer of a batch waits for others
    connections: int = 512
    # seconds
    read_seconds: float = 10.0  # waiting for room in `server_pixels`
    header_seconds: float = 10.0  # from the connection, or the previous answer, to the end of the headers
    body_seconds: float = 60.0  # from there to the end of the body
    write_seconds: float = 60.0  # a client that does not read its answer
    shutdown_seconds: float = 60.0  # answers under way when the server is stopped


class Budget:
    """An amount of something (bytes, pixels) that several requests share."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.used = 0
        self._lock = threading.Lock()

    def take(self, amount: int) -> bool:
        """Take an amount; False if there is no room."""
        with self._lock:
            if self.used + amount > self.total:
                return False
            self.used += amount
            return True

    async def take_within(self, amount: int, seconds: float) -> bool:
        """Take an amount as soon as there is room; False if there is none for this long. Occupies no thread."""
        until = time.monotonic() + seconds
        while not self.take(amount):
            if time.monotonic() > until:
                return False
            await asyncio.sleep(0.02)
        return True

    def give_back(self, amount: int) -> None:
        with self._lock:
            self.used -= amount
