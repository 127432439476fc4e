"""Official input-output pairs: on our own inputs in tests/data, and others in a folder beside the project."""

from __future__ import annotations

from pathlib import Path

import pytest

DATA = Path(__file__).resolve().parent / "data"  # part of the repository
FOLDER = Path(__file__).resolve().parents[2] / "shared" / "golden"


def golden(*parts: str) -> Path:
    """The path of a golden file or folder; skips the test if the golden data are absent."""
    path = FOLDER.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"the official input-output pairs are absent: {path}")
    return path


# our parser, the column of pope/yesno_parsers.json that it must equal, and the column's value for an unparsed answer
YESNO_COLUMNS = (
    ("rucaibox", "rucaibox_pope", ""),
    ("llava", "llava_eval_pope", ""),
    ("opera", "opera", ""),
    ("lmms-eval-mme", "lmms_mme", "other"),
    ("mme", "mme_official", "other"),
    ("vlmevalkit", "vlmevalkit", "unknown"),
)
