"""Each method's settings side by side: its paper's, the published code's, and the best that a calibration found."""

from __future__ import annotations

from dataclasses import dataclass

from airvlm.leaderboard.board import Board, Row
from airvlm.leaderboard.cells import gain_text, verdict_text

__all__ = ["ABOUT", "COLUMNS", "MethodSettings", "group_settings", "setting_texts"]

ABOUT = (
    "Gain at equal recall or yes-ratio, in points with a 95 % interval. Empty: the published code does the same as the "
    "paper says, or was not run; no setting was better on the calibration images, or none was searched."
)
COLUMNS = ("as in its paper", "published code", "best on the calibration images")


@dataclass(frozen=True)
class MethodSettings:
    """The rows of one method in one setup."""

    method: str
    paper: Row | None = None
    published: Row | None = None
    calibrated: Row | None = None


def group_settings(board: Board, setup: str) -> list[MethodSettings]:
    """Methods of a setup that ran with more than one setting, in the order of their ranks."""
    rows = {row.method: row for _, row in board.rank_rows(setup)}
    # what was found may stand beside a bias that restores recall
    calibrated = {row.method.partition("+")[0].partition(":")[0]: row for row in rows.values() if row.calibrated}
    found = [
        MethodSettings(name, rows.get(name), rows.get(f"{name}:faithful=true"), calibrated.get(name))
        for name in dict.fromkeys(row.name for row in rows.values())
    ]
    return [one for one in found if one.published is not None or one.calibrated is not None]


def setting_texts(one: MethodSettings) -> tuple[str, str, str]:
    """What each setting gained, in the order of COLUMNS."""
    found = one.calibrated
    setting = "" if found is None else f"{found.method.removeprefix(one.method).removeprefix(':')}: "
    return _text(one.paper), _text(one.published), setting + _text(found)


def _text(row: Row | None) -> str:
    if row is None:
        return ""
    return gain_text(row) + verdict_text(row) if row.gain is not None else row.note or "?"
