"""Where the official input-output pairs are: beside the project, not in it."""

from __future__ import annotations

from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "shared" / "golden"


def golden(*parts: str) -> Path:
    """The path of a golden file or folder; skips the test where the golden data are absent."""
    path = FOLDER.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"the official input-output pairs are not here: {path}")
    return path
