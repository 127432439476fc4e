"""A row's figures as text, as the tables and the page show them."""

from __future__ import annotations

from airvlm.evaluation.results import VANILLA
from airvlm.leaderboard.board import Row, interval_text, verdict

__all__ = [
    "beyond_text",
    "explained_text",
    "figure_text",
    "gain_text",
    "note_text",
    "short_gain_text",
    "verdict_text",
]


def gain_text(row: Row) -> str:
    """`+4.7 [2.9, 6.4]`."""
    if row.gain is None:
        return "?"
    low = None if row.name == VANILLA else row.gain_low
    return interval_text(row.gain, low, row.gain_high)


def note_text(row: Row) -> str:
    """What a reader must know beside the gain: that it lies beyond the control's curve, or why there is none."""
    return "; ".join(part for part in ("beyond the curve" if row.on_curve is False else "", row.note) if part)


def explained_text(row: Row) -> str:
    """`+1.3`: what a bias alone gives; empty for vanilla."""
    return "" if row.explained is None else f"{row.explained:+.1f}"


def beyond_text(row: Row) -> str:
    """Per control; empty for methods without one."""
    return "; ".join(one.text for one in row.beyond)


def figure_text(row: Row) -> str:
    """`23.0 [21.1, 25.0]`."""
    if row.value is None:
        return ""
    return f"{row.value:.1f}" + ("" if row.low is None else f" [{row.low:.1f}, {row.high:.1f}]")


def verdict_text(row: Row) -> str:
    """` ▲`, ` ▼`, or nothing."""
    return {"better": " ▲", "worse": " ▼", "unclear": ""}[verdict(row)]


def short_gain_text(row: Row) -> str:
    """`+4.7 ▲`, or why there is no gain."""
    return row.note or "?" if row.gain is None else f"{row.gain:+.1f}{verdict_text(row)}"
