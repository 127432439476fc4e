"""Every method has a page that says what a reader needs before comparing figures."""

import re
from pathlib import Path

import pytest

from airvlm.methods.controls import Wrapper
from airvlm.methods.names import METHODS

PAGES = Path(__file__).parents[2] / "docs" / "reference" / "methods"
ROWS = ("acts on", "cost", "needs", "decoding", "engines")
SHARED = {"cipher": "nullu", "ed": "ritual"}  # two papers on one page


def page_of(name: str) -> str:
    return (PAGES / f"{SHARED.get(name, name)}.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", [name for name, kind in METHODS.items() if not issubclass(kind, Wrapper)])
def test_a_page_says_where_it_acts_what_it_costs_and_where_it_runs(name: str) -> None:
    page = page_of(name)
    missing = [row for row in ROWS if f"\n| {row} |" not in page]
    assert not missing and f"`{name}`" in page


@pytest.mark.parametrize(
    "name", [name for name, kind in METHODS.items() if kind.paper and not issubclass(kind, Wrapper)]
)
def test_the_page_of_a_paper_compares_paper_code_and_here(name: str) -> None:
    page = page_of(name)
    assert re.search(r"^\| papers? \|", page, re.MULTILINE) and "\n| code |" in page
    assert re.search(r"^## Paper, code, here", page, re.MULTILINE)
    assert re.search(r"published|reported|quoted", page, re.IGNORECASE)
    assert re.search(r"^## .*(complaints|figures)", page, re.MULTILINE | re.IGNORECASE)
    if "faithful" in METHODS[name].__dataclass_fields__:
        assert "faithful=" in page.partition("## Paper, code, here")[2].partition("## Options")[0]
