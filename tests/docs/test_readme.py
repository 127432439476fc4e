"""The README's links lead to files and headings that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
LINKS = re.findall(r"\]\(([^)\s]+)\)|(?:src|href)=\"([^\"]+)\"", README)
TARGETS = [link or attribute for link, attribute in LINKS]


def test_every_linked_file_exists() -> None:
    files = {target.partition("#")[0] for target in TARGETS if not target.startswith(("https://", "#"))}
    assert files
    assert not [file for file in files if not (ROOT / file).exists()]


def test_every_anchor_is_a_heading() -> None:
    headings = {
        re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")
        for heading in re.findall(r"^#+ (.+)$", README, re.MULTILINE)
    }
    assert {target[1:] for target in TARGETS if target.startswith("#")} <= headings
