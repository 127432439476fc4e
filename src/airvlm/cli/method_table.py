"""What the built-in methods are, as plain data: `methods.json`, so that lists and completion need not import torch.

`python -m airvlm.cli.method_table` writes the file from the method classes; a test checks that it equals them.
"""

from __future__ import annotations

import dataclasses
import json
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints

if TYPE_CHECKING:
    from airvlm.methods.base import Method

__all__ = ["build_table", "describe_method", "outside_methods", "read_table"]

TABLE = Path(__file__).with_name("methods.json")
FACTS = ("site", "summary", "paper", "cost", "data", "decoding", "engines")


def read_table() -> dict[str, dict[str, Any]]:
    """The built-in methods by name, in the registry's order."""
    table: dict[str, dict[str, Any]] = json.loads(TABLE.read_text(encoding="utf-8"))
    return table


def outside_methods() -> dict[str, str]:
    """Names of methods that installed packages add, with the package; nothing is imported."""
    found = metadata.entry_points(group="airvlm.methods")
    return {entry.name: entry.dist.name if entry.dist else entry.value for entry in found}


def describe_method(kind: type[Method]) -> dict[str, Any]:
    """Everything that a method class says of itself, as JSON-ready values."""
    hints = get_type_hints(kind)
    facts: dict[str, Any] = {}
    for name in FACTS:
        value = getattr(kind, name)
        if isinstance(value, property):  # of a control: the method inside decides
            value = "as the method inside"
        facts[name] = ", ".join(value) if isinstance(value, tuple) else value
    facts["options"] = [
        {
            "name": field.name,
            "help": field.metadata.get("help", ""),
            "default": _spell(field.default),
            "values": _values(hints[field.name], field.metadata),
        }
        for field in dataclasses.fields(kind)
    ]
    return facts


def _spell(value: Any) -> str:
    """A default as the command line takes it."""
    if hasattr(value, "label"):
        return str(value.label)
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def _values(hint: Any, facts: Any) -> str:
    """Which values an option takes, in words; "" where its type says it all."""
    inner = [one for one in get_args(hint) if one is not type(None)]
    for one in [hint, *inner]:
        if get_origin(one) is Literal:
            return ", ".join(map(str, get_args(one)))
    low, high, above = facts.get("low"), facts.get("high"), facts.get("above")
    if above is not None:
        return f"above {above:g}"
    if low is not None and high is not None:
        return f"{low:g} to {high:g}"
    return f"at least {low:g}" if low is not None else f"at most {high:g}" if high is not None else ""


def build_table() -> dict[str, dict[str, Any]]:
    """The table as the classes have it."""
    from airvlm.methods.names import METHODS

    own = METHODS.own
    return {name: describe_method(kind) for name, kind in own.items() if kind.__module__.startswith("airvlm.")}


def write_table() -> None:
    """Write the file, one line per method."""
    lines = [f" {json.dumps(name)}: {json.dumps(facts, ensure_ascii=False)}" for name, facts in build_table().items()]
    TABLE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    write_table()
