"""A hook of mkdocs: every page of docs/reference/methods is in the menu, without a line in mkdocs.yml for each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

FOLDER = "reference/methods"
HEADING = "Methods"


def on_config(config: Any) -> Any:
    """Add the pages of methods that the menu does not name to its section of methods."""
    section = _find(config.nav)
    named = {page for entry in section for page in (entry.values() if isinstance(entry, dict) else [entry])}
    pages = sorted(Path(config.docs_dir, FOLDER).glob("*.md"))
    section += [page for path in pages if (page := f"{FOLDER}/{path.name}") not in named]
    return config


def _find(entries: list[Any]) -> list[Any]:
    for entry in entries:
        for title, inner in entry.items() if isinstance(entry, dict) else ():
            if title == HEADING and isinstance(inner, list):
                return inner
            if isinstance(inner, list) and (found := _find(inner)):
                return found
    return []
