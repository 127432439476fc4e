"""A method as users of other tools give it: as the command line spells it, its JSON, or the method itself.

Knows nothing of the tools.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airvlm import Method, parse_method

__all__ = ["chosen_method"]


def chosen_method(given: str | Method | Mapping[str, Any] | None) -> Method | None:
    """The method; None for the model as it is. Quotes that a tool's own syntax needed are taken off."""
    if given is None or isinstance(given, Method):
        return given
    if isinstance(given, Mapping):
        return Method.from_json(given)
    return parse_method(str(given).strip().strip("'\""))
