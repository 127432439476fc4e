"""Drawing primitives: points with intervals, curves and effects, by matplotlib, as SVG for a page or into a file.

Colors can be told apart with all common color deficiencies, and every series has a shape of its own.
"""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Point", "Series", "available", "draw_intervals", "figure", "forest", "scatter", "style_of", "to_svg"]

COLORS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#8A6D00", "#3A86A8", "#7F3C8D", "#5F5F5F")
SHAPES = ("o", "s", "^", "D", "v", "P", "X", "p", "*")
WIDTH = 4.9  # inches: a phone's width at the sizes of print below
LINE = 0.17  # inches of height that a line of text takes
STYLE: Any = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
    "legend.fontsize": 7.5,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "axes.edgecolor": "#999999",
    "axes.axisbelow": True,
    "svg.fonttype": "none",  # text stays text, to be read, searched and enlarged
    "font.family": "sans-serif",
    "text.parse_math": False,  # a $ in a method's name is a $
}


@dataclass(frozen=True)
class Point:
    """A point, and the interval of its height if it is known."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None

    @property
    def known(self) -> bool:
        return math.isfinite(self.x) and math.isfinite(self.y)


@dataclass(frozen=True)
class Series:
    """Points under one name; with `line` they are joined in their order by a dashed line."""

    name: str
    points: tuple[Point, ...]
    line: bool = False
    style: int | None = None  # number of its color and shape; None is the next one


def available() -> bool:
    """Whether matplotlib is installed."""
    try:
        import matplotlib  # noqa: F401  # only to see whether it is there
    except ImportError:
        return False
    return True


@contextmanager
def figure(height: float, width: float = WIDTH) -> Iterator[Any]:
    """A new matplotlib figure in our style."""
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("drawing needs matplotlib: pip install matplotlib") from error
    with rc_context(STYLE):
        yield Figure(figsize=(width, height), layout="constrained")


def style_of(number: int) -> tuple[str, str]:
    """Color and shape of a series; once all colors are used they come again with another shape."""
    round_, color = divmod(number, len(COLORS))
    return COLORS[color], SHAPES[(color + 4 * round_) % len(SHAPES)]


def draw_intervals(axes: Any, points: Sequence[Point], color: str, across: bool = False) -> None:
    """A line from low to high through each point with an interval; across: along x."""
    for p in points:
        if p.low is None or p.high is None or not (math.isfinite(p.low) and math.isfinite(p.high)):
            continue
        if across:
            axes.plot([p.low, p.high], [p.y, p.y], color=color, linewidth=1.2, zorder=2)
        else:
            axes.plot([p.x, p.x], [p.low, p.high], color=color, linewidth=1.0, zorder=2)


def scatter(title: str, x_title: str, y_title: str, series: Sequence[Series], path: Path | None = None) -> str:
    """Points and lines over two axes as SVG, with a legend below; "" if there is nothing to draw.

    Args:
        title: read aloud in place of the picture.
        x_title: of the axis.
        y_title: of the axis.
        series: what is drawn.
        path: also written to this file, whose suffix says in which format.
    """
    shown = [(s, tuple(p for p in s.points if p.known)) for s in series]
    shown = [(s, points) for s, points in shown if points]
    if not shown:
        return ""
    columns = 1 if max(len(s.name) for s, _ in shown) > 32 else 2
    rows = math.ceil(len(shown) / columns)
    with figure(2.9 + LINE * rows) as drawn:
        axes = drawn.subplots()
        handles = []
        for n, (s, points) in enumerate(shown):
            color, shape = style_of(n if s.style is None else s.style)
            draw_intervals(axes, points, color)
            line = (0, (4, 3)) if s.line else "none"
            size = 3.5 if s.line else 5.5
            xs, ys = [p.x for p in points], [p.y for p in points]
            handles += axes.plot(xs, ys, color=color, marker=shape, linestyle=line, linewidth=1.2, markersize=size)
        axes.set_xlabel(x_title)
        axes.set_ylabel(y_title)
        axes.margins(0.06)
        _legend(drawn, handles, [s.name for s, _ in shown], columns)
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            drawn.savefig(path, dpi=150)
        return to_svg(drawn, title)


def forest(title: str, x_title: str, rows: Sequence[tuple[str, Sequence[tuple[str, Point]]]]) -> str:
    """Effects with intervals as SVG, one line per name under each heading; x is the effect."""
    kept = [(heading, [(n, p) for n, p in lines if math.isfinite(p.x)]) for heading, lines in rows]
    kept = [(heading, lines) for heading, lines in kept if lines]
    if not kept:
        return ""
    from matplotlib.transforms import blended_transform_factory

    styles: dict[str, int] = {}
    total = sum(1 + len(lines) for _, lines in kept)
    with figure(0.6 + LINE * total) as drawn:
        axes = drawn.subplots()
        ticks: list[float] = []
        names: list[str] = []
        y = 0.0
        for heading, lines in kept:
            # from the figure's left edge, over the plot if it is long: nothing else is drawn at this height
            where = blended_transform_factory(drawn.transFigure, axes.transData)
            text = axes.text(0.01, y, heading, transform=where, fontweight="bold", fontsize=7.5, va="center")
            text.set_in_layout(False)
            for name, p in lines:
                y += 1
                color, shape = style_of(styles.setdefault(name, len(styles) + 1))
                draw_intervals(axes, [Point(p.x, y, p.low, p.high)], color, across=True)
                axes.plot([p.x], [y], color=color, marker=shape, markersize=5, zorder=3)
                ticks.append(y)
                names.append(name)
            y += 1
        axes.axvline(0.0, color="#333333", linewidth=1.0)
        axes.set_yticks(ticks, names)
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="y", visible=False)
        axes.set_ylim(y - 0.4, -0.6)
        axes.set_xlabel(x_title)
        axes.margins(x=0.06)
        return to_svg(drawn, title)


def _legend(drawn: Any, handles: Sequence[Any], names: Sequence[str], columns: int) -> None:
    # matplotlib drops a name that begins with _ as its own
    shown = ["\u200b" + name if name.startswith("_") else name for name in names]
    drawn.legend(handles, shown, loc="outside lower left", ncols=columns, frameon=False, handlelength=1.6)


def to_svg(drawn: Any, title: str) -> str:
    """The figure as one SVG element; the same figure gives the same text."""
    import html

    from matplotlib import rc_context

    text = io.StringIO()
    with rc_context({**STYLE, "svg.hashsalt": title}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # the reader's fonts draw the text
        drawn.savefig(text, format="svg", metadata={"Date": None, "Creator": None}, transparent=True)
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    # the page sets the size; the view box keeps the shape
    head, rest = svg.split(">", 1)
    head = re.sub(r' (width|height)="[^"]*"', "", head)
    name = html.escape(title)
    return f'{head} role="img" aria-label="{name}"><title>{name}</title>{rest}'.strip()
