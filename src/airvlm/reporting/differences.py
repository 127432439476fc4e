"""Words in which one text differs from another."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator

__all__ = ["differences"]


def differences(before: str, after: str) -> Iterator[tuple[str, bool]]:
    """`after` in stretches, each with whether `before` lacks it in that place."""
    a, b = re.findall(r"\s+|\S+", before), re.findall(r"\s+|\S+", after)
    for kind, _, _, start, stop in difflib.SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
        if stop > start:
            yield "".join(b[start:stop]), kind != "equal"
