"""A method as users of other tools give it: its name with fields, its JSON, or @ and the file a calibration left.

Knows nothing of the tools.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airvlm import Method, parse_method

__all__ = ["chosen_method"]


def chosen_method(given: str | Method | Mapping[str, Any] | None) -> Method | None:
    """The method; None for the model as it is. Quotes that a tool's own syntax needed are taken off."""
    if given is None or isinstance(given, Method):
        return given
    if isinstance(given, Mapping):
        return Method.from_json(given)
    text = str(given).strip().strip("'\"")
    if not text.startswith("@"):
        return parse_method(text)
    file = Path(text[1:]).expanduser()
    try:
        found = json.loads(file.read_text())
        return chosen_method(found.get("method", found))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{file} holds no method: {error}") from error
