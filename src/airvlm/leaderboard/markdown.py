"""The leaderboard as Markdown."""

from __future__ import annotations

from collections.abc import Iterable

from airvlm.leaderboard.board import Board, Setup
from airvlm.leaderboard.cells import (
    beyond_text,
    explained_text,
    figure_text,
    gain_text,
    note_text,
    short_gain_text,
)
from airvlm.leaderboard.costs import BATCH, TOKENS
from airvlm.leaderboard.settings import ABOUT, COLUMNS, group_settings, setting_texts

__all__ = ["COMPARISON", "board_markdown", "describe"]

BEYOND = "beyond its controls"  # a column
COMPARISON = (
    "Gain at equal recall or yes-ratio, in points. ▲ better and ▼ worse than the bias, by the whole 95 % interval; "
    "n is the number of images; an empty cell was not measured."
)


def board_markdown(board: Board) -> str:
    """A table per setup, and before them, if there are several, one with each method's gain in all of them."""
    parts = _comparison(board) if len(board.setups) > 1 else []
    for key, setup in board.setups.items():
        others, controlled = _shown_metrics(board, key, setup), board.is_controlled(key)
        head = ["", "method", "where it acts", f"gain at equal {setup.held_equal}", "explained"]
        head += [*([BEYOND] if controlled else []), setup.metric, *others]
        head += ["tokens", "acted", "changed", "cost", "note"]
        parts += [
            f"## {key}",
            "",
            describe(setup, controlled=controlled),
            "",
            _line(head),
            _line(["---"] * len(head)),
        ]
        for rank, row in board.rank_rows(key):
            cells = [
                "" if rank is None else str(rank),
                f"`{row.method}`"
                + (" (calibrated)" if row.calibrated else "")
                + (f" ({row.submitted_by})" if row.submitted_by else ""),
                row.site,
                gain_text(row),
                explained_text(row),
                *([beyond_text(row)] if controlled else []),
                figure_text(row),
                *(_number(row.metrics.get(name)) for name in others),
                _number(row.tokens),
                _percent(row.acted),
                _percent(row.changed),
                "" if row.cost is None else f"{row.cost:.2f}",
                note_text(row),
            ]
            parts.append(_line(cells))
        parts += ["", *_settings(board, key)]
    if board.skipped:
        parts += ["Not run:", "", *(f"* `{name}`: {why}" for name, why in board.skipped.items()), ""]
    return "\n".join(parts).replace("<", "&lt;")  # a board may be a stranger's, and Markdown may hold HTML


def _comparison(board: Board) -> list[str]:
    """Lines of a table: a method per line, a setup per column."""
    head = ["method", *(f"{key} (n = {setup.images})" for key, setup in board.setups.items())]
    lines = ["## All models and tasks", "", COMPARISON, "", _line(head), _line(["---"] * len(head))]
    for method, rows in board.compare_setups():
        cells = [short_gain_text(rows[key]) if key in rows else "" for key in board.setups]
        lines.append(_line([f"`{method}`", *cells]))
    return [*lines, ""]


def _settings(board: Board, setup: str) -> list[str]:
    """Lines of a table of methods that ran with several settings; none if there are none."""
    lines = [(f"`{one.method}`", *setting_texts(one)) for one in group_settings(board, setup)]
    if not lines:
        return []
    head = ("method", *COLUMNS)
    return [
        f"### {setup}: settings of each method",
        "",
        ABOUT,
        "",
        *map(_line, (head, ["---"] * len(head), *lines)),
        "",
    ]


def describe(setup: Setup, *, controlled: bool) -> str:
    """What a setup is, and what its columns say."""
    beyond = (
        "Beyond its controls: the gain minus that of a control that changes as many answers, of a strength found on "
        "the calibration split. "
    )
    return (
        f"{setup.items} items on {setup.images} images ({setup.split} split, {setup.variant}), greedy. Gain: the "
        f"difference in {setup.metric} to a bias at equal {setup.held_equal}, in points with a 95 % interval; positive "
        f"is better. Explained: the rest of the difference in {setup.metric} to vanilla, which the bias alone gives at "
        f"that place. {beyond if controlled else ''}Methods whose intervals overlap share a rank. Each interval is for "
        "itself: of 40 methods without any effect, about two would seem to have one. Cost: time over vanilla's in the "
        f"same run, with a new image for every answer, in batches of {BATCH}: of {TOKENS} tokens for descriptions, of "
        "the first token for yes or no."
    )


def _shown_metrics(board: Board, key: str, setup: Setup) -> list[str]:
    """The other metrics of a setup: what is held equal first, three at most."""
    known = dict.fromkeys(name for row in board.rows if row.setup == key for name in row.metrics)
    others = [name for name in known if name not in (setup.metric, setup.held_equal)]
    return [*([setup.held_equal] if setup.held_equal else []), *others][:3]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.0f} %"


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"
