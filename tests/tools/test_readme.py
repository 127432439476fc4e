"""The README on a package index: every link in it leads somewhere."""

import re
from pathlib import Path

import pytest
from hatchling.metadata.core import ProjectMetadata
from hatchling.plugin.manager import PluginManager

from tools.readme import for_index

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def links(text: str) -> list[str]:
    return re.findall(r"\]\(([^)\s]+)\)", text)


@pytest.fixture(scope="module")
def shown() -> str:
    """The long description of the package as it is built, which is what an index shows."""
    return str(ProjectMetadata(str(ROOT), PluginManager()).core.readme)


def test_no_relative_link_and_no_image_of_ours_is_left(shown: str) -> None:
    assert len(shown) > len(README) / 2
    assert not [link for link in links(shown) if not link.startswith("https://")]
    assert not re.search(r"!\[[^\]]*\]\((?!https://)|<img|href=\"(?!https://)", shown)
    assert 'title="' not in shown


def test_every_file_that_was_linked_is_named_and_exists(shown: str) -> None:
    files = {link.partition("#")[0] for link in links(README) if not link.startswith(("https://", "#"))}
    files = {file for file in files if not file.endswith(".png")}
    assert files
    for file in files:
        assert (ROOT / file).is_file(), file
        assert file in shown
    assert "from a package of your own (docs/how-to/add-a-method.md)" in shown
    assert "docs/fidelity.md (docs/fidelity.md)" not in shown


def test_with_an_address_every_link_is_absolute_and_its_file_exists() -> None:
    shown = for_index(README, "https://example.org/airvlm/")
    ours = [link for link in links(shown) if link.startswith("https://example.org/airvlm/")]
    assert ours
    for link in ours:
        path = re.sub(r"^https://example.org/airvlm/(blob|raw)/main/", "", link).partition("#")[0]
        assert (ROOT / path).exists(), link


def test_every_anchor_of_the_readme_is_one_of_its_headings() -> None:
    headings = {
        re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")
        for heading in re.findall(r"^#+ (.+)$", README, re.MULTILINE)
    }
    assert {link[1:] for link in links(README) if link.startswith("#")} <= headings
