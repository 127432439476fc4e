"""The leaderboard as one HTML page: sortable tables, plots, methods, and answers side by side.

It loads nothing and runs no script but its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from xml.sax.saxutils import escape

from airvlm.evaluation.results import VANILLA, Results
from airvlm.leaderboard.board import Board, Row, verdict
from airvlm.leaderboard.cells import beyond_text, explained_text, figure_text, gain_text, note_text
from airvlm.leaderboard.markdown import COMPARISON, describe
from airvlm.leaderboard.settings import COLUMNS, group_settings, setting_texts
from airvlm.methods.controls import Wrapper
from airvlm.methods.names import METHODS
from airvlm.reporting.answers import AnswerCard, answer_cards
from airvlm.reporting.page import render_page
from airvlm.tiny import BundledScene

__all__ = ["cost_plot", "forest_plot", "leaderboard_html"]

WIDTH, LINE = 480, 22  # of a plot, in its own units
LEFT = 176  # where the forest plot's axis begins
LABEL = 24  # characters
COLORS = {"better": "#00624a", "worse": "#a33b00", "unclear": "#777"}


def leaderboard_html(board: Board, runs: Sequence[Results] = (), *, answers: int = 12) -> str:
    """The page.

    Args:
        board: the rows.
        runs: the results that they come from, for single answers.
        answers: how many items are shown per task; images only where they ship with this package.
    """
    from markupsafe import Markup

    boards = []
    for key, setup in board.setups.items():
        ranked = board.rank_rows(key)
        rows = [row for _, row in ranked]
        metrics = [setup.held_equal] if setup.held_equal else []
        metrics += [
            n for n in dict.fromkeys(n for row in rows for n in row.metrics) if n not in (setup.metric, *metrics)
        ]
        controlled = board.is_controlled(key)
        boards.append(
            {
                "controlled": controlled,
                "title": key,
                "about": describe(setup, controlled=controlled),
                "setup": setup,
                "metrics": metrics[:3],
                "rows": [(rank, row, _cells(row, metrics[:3], controlled=controlled)) for rank, row in ranked],
                "forest": Markup(forest_plot(rows)),  # made here, with every text escaped
                "cost": Markup(cost_plot(rows)),
            }
        )
    methods = {row.name: row for row in board.rows if row.name != VANILLA}
    return render_page(
        "leaderboard.html",
        "leaderboard.js",
        board=board,
        boards=boards,
        comparison=_compare(board) if len(board.setups) > 1 else [],
        about_comparison=COMPARISON,
        methods=[
            (row, _facts(row) | _settings(board, row.name))
            for row in sorted(methods.values(), key=lambda row: (row.site, row.name))
        ],
        cards=[card for run in runs for card in _cards(run, answers)],
    )


def _compare(board: Board) -> list[tuple[str, list[tuple[str, float | None, str]]]]:
    """Each method with (text, value, verdict) of its gain in every setup."""

    def cell(row: Row | None) -> tuple[str, float | None, str]:
        if row is None or row.gain is None:
            return ("" if row is None else row.note, None, "unclear")
        return (f"{row.gain:+.1f}", row.gain, verdict(row))

    return [(method, [cell(rows.get(key)) for key in board.setups]) for method, rows in board.compare_setups()]


def _facts(row: Row) -> dict[str, str]:
    """What is known of a method; a board of somebody else may have methods that are not installed here."""
    facts = {"acts on": row.site, "paper": row.paper or "none: our own, or a control"}
    kind = METHODS.get(row.name)
    if kind is not None and not issubclass(kind, Wrapper):  # a wrapper has what the method inside it has
        facts["passes"] = kind.cost
        facts["needs"] = kind.data or "nothing beside image and question"
        facts["decoding"] = ", ".join(kind.decoding)
        facts["runs in"] = ", ".join(kind.engines)
    return facts


def _settings(board: Board, method: str) -> dict[str, str]:
    """What a method gained in each setup with the settings that it ran with."""
    found = {}
    for key in board.setups:
        for one in group_settings(board, key):
            if one.method == method:
                texts = zip(COLUMNS, setting_texts(one), strict=True)
                found[f"gain, {key}"] = "; ".join(f"{column}: {text}" for column, text in texts if text)
    return found


def _cells(row: Row, metrics: Sequence[str], *, controlled: bool) -> list[tuple[str, float | None]]:
    """(text, what it is sorted by) of each column after the method."""

    def number(value: float | None, form: str = "{:.1f}", scale: float = 1.0) -> tuple[str, float | None]:
        return ("" if value is None else form.format(scale * value), value)

    return [
        (gain_text(row), row.gain),
        (explained_text(row), row.explained),
        (figure_text(row), row.value),
        *(number(row.metrics.get(name)) for name in metrics),
        number(row.tokens),
        number(row.acted, "{:.0f} %", 100),
        number(row.changed, "{:.0f} %", 100),
        number(row.cost, "{:.2f}"),
        *([(beyond_text(row), min((one.value for one in row.beyond), default=None))] if controlled else []),
        (row.site, None),
        (note_text(row), None),
    ]


def _cards(run: Results, limit: int) -> list[AnswerCard]:
    cards = []
    for name, task in run.tasks.items():
        bundled = all(isinstance(item.image, BundledScene) for item in task.items)
        made = answer_cards(f"{name} ({run.model_name})", task, limit)
        cards += made if bundled else [replace(card, images=[]) for card in made]
    return cards


# -- plots, as SVG


def forest_plot(rows: Sequence[Row]) -> str:
    """Each method's gain with its interval, best first."""
    shown = [row for row in rows if row.gain is not None and row.gain_low is not None and row.name != VANILLA]
    if not shown:
        return ""
    ends = [0.0, *(value for row in shown for value in (row.gain_low, row.gain_high) if value is not None)]
    low, high = min(ends), max(ends)
    span = (high - low) or 1.0

    def x(value: float) -> float:
        return LEFT + (WIDTH - LEFT - 20) * (value - low) / span

    height = LINE * (len(shown) + 2)
    parts = [
        f'<line x1="{x(0):.1f}" y1="{LINE * 0.4:.1f}" x2="{x(0):.1f}" y2="{height - LINE}" stroke="#999" '
        'stroke-dasharray="4 3"/>'
    ]
    for i, row in enumerate(shown):
        y = LINE * (i + 1)
        color = COLORS[verdict(row)]
        label = row.method if len(row.method) <= LABEL else row.method[: LABEL - 1] + "…"
        parts += [
            f'<text x="{LEFT - 10}" y="{y + 4}" text-anchor="end" font-size="13">{escape(label)}</text>',
            f'<line x1="{x(row.gain_low or 0):.1f}" y1="{y}" x2="{x(row.gain_high or 0):.1f}" y2="{y}" '
            f'stroke="{color}" stroke-width="2"/>',
            f'<circle cx="{x(row.gain or 0):.1f}" cy="{y}" r="4" fill="{color}"><title>{escape(gain_text(row))}'
            "</title></circle>",
        ]
    for value in (low, 0.0, high):
        parts.append(
            f'<text x="{x(value):.1f}" y="{height - 6}" text-anchor="middle" font-size="12">{value:+.1f}</text>'
        )
    return _svg(height, parts, "gain of every method with its interval")


def cost_plot(rows: Sequence[Row]) -> str:
    """Gain against cost: up and to the left is better."""
    shown = [row for row in rows if row.gain is not None and row.cost is not None]
    if not shown:
        return ""
    top, right = max(0.0, *(row.gain or 0 for row in shown)), max(row.cost or 1 for row in shown)
    bottom, left = min(0.0, *(row.gain or 0 for row in shown)), min(1.0, *(row.cost or 1 for row in shown))
    height, pad = 360, 46

    def at(row: Row) -> tuple[float, float]:
        across = ((row.cost or 0) - left) / ((right - left) or 1)
        up = ((row.gain or 0) - bottom) / ((top - bottom) or 1)
        return pad + (WIDTH - 2 * pad - 60) * across, height - pad - (height - 2 * pad) * up

    zero = height - pad - (height - 2 * pad) * (0 - bottom) / ((top - bottom) or 1)
    parts = [
        f'<line x1="{pad}" y1="{zero:.1f}" x2="{WIDTH - pad}" y2="{zero:.1f}" stroke="#999" stroke-dasharray="4 3"/>',
        f'<text x="{WIDTH / 2}" y="{height - 8}" text-anchor="middle" font-size="12">seconds per answer over '
        f"vanilla&#8217;s, {left:.1f} to {right:.1f}</text>",
        f'<text x="12" y="{height / 2}" font-size="12" transform="rotate(-90 12 {height / 2})" text-anchor="middle">'
        f"gain, {bottom:+.1f} to {top:+.1f}</text>",
    ]
    for row in shown:
        across, up = at(row)
        parts += [
            f'<circle cx="{across:.1f}" cy="{up:.1f}" r="4" fill="{COLORS[verdict(row)]}"/>',
            f'<text x="{across + 6:.1f}" y="{up + 4:.1f}" font-size="11">{escape(row.method[:LABEL])}</text>',
        ]
    return _svg(height, parts, "gain against cost of every method")


def _svg(height: float, parts: Sequence[str], title: str) -> str:
    head = f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}" font-family="sans-serif">'
    return head + "".join(parts) + "</svg>"
