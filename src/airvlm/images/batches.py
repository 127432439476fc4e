"""Requests in batches: read a window at a time, and sorted so that rows of like length run together.

Knows nothing of models or of how a batch is answered.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

from airvlm.images.inputs import Encoder, Images, Request
from airvlm.images.load import BadImage
from airvlm.images.prompts import Question

__all__ = ["like_lengths", "windows"]

WINDOW = 8  # batches that are sorted by length together


def windows(
    encoder: Encoder, requests: Iterable[tuple[Images, Question]], batch_size: int
) -> Iterator[list[Request | ValueError]]:
    """Requests as they are needed; one that cannot be read is an error in its place, which says its number."""
    stream, done = iter(requests), 0
    while window := list(islice(stream, batch_size * WINDOW)):
        read = encoder.read_each(window)
        yield [_numbered(one, done + i) if isinstance(one, ValueError) else one for i, one in enumerate(read)]
        done += len(read)


def like_lengths(requests: Mapping[int, Request], size: int) -> Iterator[list[int]]:
    """Keys of requests that run together: longest first, so that memory runs out at the start or not at all."""
    for shows in (True, False):
        group = [i for i, request in requests.items() if bool(request.images) is shows]
        group.sort(key=lambda i: (len(requests[i].images), len(requests[i].prompt)), reverse=True)
        yield from (group[start : start + size] for start in range(0, len(group), size))


def _numbered(error: ValueError, number: int) -> ValueError:
    """The error with the request it came from."""
    kind = BadImage if isinstance(error, BadImage) else ValueError
    return kind(f"request {number}: {error}")
