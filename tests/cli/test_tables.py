"""The README's tables are what the commands print."""

from pathlib import Path

import pytest

from airvlm.cli.tables import updated

README = Path(__file__).parents[2] / "README.md"


def test_the_readme_is_up_to_date() -> None:
    text = README.read_text()
    assert updated(text) == text, "run: python -m airvlm.cli.tables"


def test_a_text_without_markers_is_refused() -> None:
    with pytest.raises(ValueError, match="to fill"):
        updated("no tables here")
