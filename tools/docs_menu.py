"""Hooks of mkdocs: pages of methods and models are in the menu by themselves, and notes for the tests are not shown."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

FOLDERS = {"Methods": "reference/methods", "Models": "reference/models"}  # heading in the menu -> folder


def on_config(config: Any) -> Any:
    """Add the pages of these folders that the menu does not name to their sections, by their short titles."""
    for heading, folder in FOLDERS.items():
        section = _find(config.nav, heading)
        named = {page for entry in section for page in (entry.values() if isinstance(entry, dict) else [entry])}
        entries = []
        for path in Path(config.docs_dir, folder).glob("*.md"):
            if (page := f"{folder}/{path.name}") not in named:
                title = path.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")
                entries.append({title.partition(":")[0].partition(" that ")[0]: page})
        section += sorted(entries, key=lambda entry: next(iter(entry)).lower())
    return config


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Examples that the tests do not run say why in their title, which tells a reader nothing."""
    return re.sub(r'^(```\w+) title="not run: [^"]*"$', r"\1", markdown, flags=re.MULTILINE)


def _find(entries: list[Any], heading: str) -> list[Any]:
    for entry in entries:
        for title, inner in entry.items() if isinstance(entry, dict) else ():
            if title == heading and isinstance(inner, list):
                return inner
            if isinstance(inner, list) and (found := _find(inner, heading)):
                return found
    return []
