"""Where the official input-output pairs are: on inputs of our own in tests/data, others beside the project."""

from __future__ import annotations

from pathlib import Path

import pytest

DATA = Path(__file__).resolve().parent / "data"  # what everyone has
FOLDER = Path(__file__).resolve().parents[2] / "shared" / "golden"


def golden(*parts: str) -> Path:
    """The path of a golden file or folder; skips the test where the golden data are absent."""
    path = FOLDER.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"the official input-output pairs are not here: {path}")
    return path


# our parser, the column of pope/yesno_parsers.json that it must equal, and what stands there for no verdict
YESNO_COLUMNS = (
    ("rucaibox", "rucaibox_pope", ""),
    ("llava", "llava_eval_pope", ""),
    ("opera", "opera", ""),
    ("lmms-eval-mme", "lmms_mme", "other"),
    ("mme", "mme_official", "other"),
    ("vlmevalkit", "vlmevalkit", "unknown"),
)
