"""The README as package indexes show it: there relative links lead nowhere, so that none is left.

hatchling calls this when it builds the package (`[tool.hatch.metadata.hooks.custom]`). With a `Source` among the
project's addresses a relative link becomes an absolute one; without it, its text and the name of its file, which the
source distribution holds. Links to a heading become their text: an index gives headings no anchors. Knows nothing of
the package.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

__all__ = ["for_index"]

IMAGE_AND_CAPTION = re.compile(r"^!\[[^\]]*\]\((?!https?://)[^)]+\)\n(?:\n\*[^\n]*\*\n)?", re.MULTILINE)
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?!https?://|#)([^)\s]+)\)")
HEADING = re.compile(r"(?<!!)\[([^\]]+)\]\(#[^)\s]+\)")
NOTE = "\nFiles named in brackets are part of the source distribution.\n"
TITLE = re.compile(r'^(```\w+) title="[^"]*"$', re.MULTILINE)  # of a fenced block: for our site only


def for_index(text: str, source: str | None = None) -> str:
    """The text without relative links; `source` is where the repository can be browsed."""
    text = HEADING.sub(r"\1", TITLE.sub(r"\1", text))
    if source is not None:
        base = f"{source.rstrip('/')}/blob/main/"
        text = re.sub(r"(!\[[^\]]*\]\()(?!https?://)", rf"\g<1>{source.rstrip('/')}/raw/main/", text)
        return LINK.sub(lambda link: f"[{link[1]}]({base}{link[2]})", text)
    return LINK.sub(_named, IMAGE_AND_CAPTION.sub("", text)).rstrip("\n") + "\n" + NOTE


def _named(link: re.Match[str]) -> str:
    """`[The guide](docs/index.md)` as "The guide (docs/index.md)"; a text that is the file's name stays alone."""
    return link[1] if link[1].strip("`") == link[2] else f"{link[1]} ({link[2]})"


class CustomMetadataHook(MetadataHookInterface):
    """Sets the long description."""

    def update(self, metadata: dict[str, Any]) -> None:
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        source = metadata.get("urls", {}).get("Source")
        metadata["readme"] = {"content-type": "text/markdown", "text": for_index(text, source)}
