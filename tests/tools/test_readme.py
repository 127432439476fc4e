"""The README on a package index: every link in it leads somewhere."""

import re
from pathlib import Path

from tools.readme import for_index

README = (Path(__file__).parents[2] / "README.md").read_text()


def links(text: str) -> list[str]:
    return re.findall(r"\]\(([^)\s]+)\)", text)


def test_no_relative_link_is_left() -> None:
    shown = for_index(README)
    assert not [link for link in links(shown) if not link.startswith(("https://", "#"))]
    assert 'title="' not in shown
    assert "[from a package of your own]" not in shown
    assert "from a package of your own" in shown


def test_with_an_address_every_link_is_absolute_and_its_file_exists() -> None:
    shown = for_index(README, "https://example.org/airvlm/")
    ours = [link for link in links(shown) if link.startswith("https://example.org/airvlm/")]
    assert ours
    for link in ours:
        path = re.sub(r"^https://example.org/airvlm/(blob|raw)/main/", "", link).partition("#")[0]
        assert (Path(__file__).parents[2] / path).exists(), link


def test_every_anchor_of_the_readme_is_one_of_its_headings() -> None:
    headings = {
        re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")
        for heading in re.findall(r"^#+ (.+)$", README, re.MULTILINE)
    }
    assert {link[1:] for link in links(README) if link.startswith("#")} <= headings
