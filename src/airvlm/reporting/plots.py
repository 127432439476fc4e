"""Small plots as SVG text: points with intervals, curves. Self-contained, legible at 360 pixels and in
black on white.

Knows nothing of runs: what is drawn is given as numbers and labels. Colours are told apart by all common
kinds of sight, and every series also has a shape of its own.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Point", "Series", "forest", "scatter"]

COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#8A6D00", "#3A86A8", "#7F3C8D", "#5F5F5F")
SHAPES = (
    "circle",
    "square",
    "triangle",
    "diamond",
    "cross",
    "circle-open",
    "square-open",
    "triangle-open",
    "diamond-open",
)
WIDTH = 360


@dataclass(frozen=True)
class Point:
    """A place with, where known, the interval of its height."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    label: str = ""


@dataclass(frozen=True)
class Series:
    """Points of one name; joined by a line if `line`."""

    name: str
    points: tuple[Point, ...]
    line: bool = False
    style: int | None = None  # number of its colour and shape; None: the next one


@dataclass(frozen=True)
class _Axis:
    low: float
    high: float
    start: float
    stop: float

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.stop - self.start)

    @property
    def ticks(self) -> list[float]:
        step = 10 ** math.floor(math.log10((self.high - self.low) / 4))
        for factor in (1, 2, 5, 10):
            if (self.high - self.low) / (step * factor) <= 5:
                step *= factor
                break
        first = math.ceil(self.low / step - 1e-9)
        return [step * k for k in range(first, math.floor(self.high / step + 1e-9) + 1)]


def _axis(values: Sequence[float], start: float, stop: float) -> _Axis:
    known = [v for v in values if math.isfinite(v)] or [0.0, 1.0]
    low, high = min(known), max(known)
    room = (high - low) * 0.08 or max(abs(high), 1.0) * 0.05
    return _Axis(low - room, high + room, start, stop)


def _number(value: float) -> str:
    return f"{value:.6g}".replace("-", "−")


def _text(x: float, y: float, content: str, anchor: str = "start", more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{html.escape(content)}</text>'


def _shape(x: float, y: float, style: int, title: str = "", r: float = 4.0) -> str:
    colour, name = COLOURS[style % len(COLOURS)], SHAPES[style % len(SHAPES)]
    fill = "#fff" if name.endswith("-open") else colour
    look = f'fill="{fill}" stroke="{colour}" stroke-width="1.4"'
    match name.removesuffix("-open"):
        case "circle":
            body = f'circle cx="{x:.1f}" cy="{y:.1f}" r="{r}" {look}'
        case "square":
            body = f'rect x="{x - r:.1f}" y="{y - r:.1f}" width="{2 * r}" height="{2 * r}" {look}'
        case "triangle":
            body = f'path d="M{x:.1f} {y - r:.1f}l{r} {2 * r}h{-2 * r}z" {look}'
        case "diamond":
            s = r + 1
            body = f'path d="M{x:.1f} {y - s:.1f}l{s} {s}l{-s} {s}l{-s} {-s}z" {look}'
        case _:
            d = f"M{x - r:.1f} {y - r:.1f}l{2 * r} {2 * r}m0 {-2 * r}l{-2 * r} {2 * r}"
            body = f'path d="{d}" fill="none" stroke="{colour}" stroke-width="2"'
    return f"<{body}><title>{html.escape(title or name)}</title></{body.split()[0]}>"


def _svg(height: float, title: str, body: Sequence[str]) -> str:
    head = f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{html.escape(title)}" xmlns="http://www.w3.org/2000/svg">'
    return "\n".join([head, f"<title>{html.escape(title)}</title>", *body, "</svg>"])


def _legend(names: Sequence[tuple[str, int]], top: float) -> tuple[list[str], float]:
    """The names in rows that fit the width; and where they end."""
    drawn, x, y = [], 8.0, top
    for name, style in names:
        width = 22 + 6.2 * len(name)
        if x + width > WIDTH and x > 8:
            x, y = 8.0, y + 16
        drawn += [_shape(x + 6, y - 4, style), _text(x + 15, y, name)]
        x += width
    return drawn, y + 12


def scatter(title: str, x_title: str, y_title: str, series: Sequence[Series]) -> str:
    """Points and lines over two axes, a legend below."""
    points = [p for s in series for p in s.points if math.isfinite(p.x) and math.isfinite(p.y)]
    if not points:
        return ""
    heights = [v for p in points for v in (p.y, p.low, p.high) if v is not None and math.isfinite(v)]
    X, Y = _axis([p.x for p in points], 44, WIDTH - 10), _axis(heights, 226, 14)
    body = [f'<rect x="44" y="14" width="{WIDTH - 54}" height="212" fill="none" stroke="#999"/>']
    for tick in X.ticks:
        body += [
            f'<path d="M{X(tick):.1f} 14V226" class="grid"/>',
            _text(X(tick), 240, _number(tick), "middle"),
        ]
    for tick in Y.ticks:
        body += [
            f'<path d="M44 {Y(tick):.1f}H{WIDTH - 10}" class="grid"/>',
            _text(40, Y(tick) + 4, _number(tick), "end"),
        ]
    body.append(_text((44 + WIDTH - 10) / 2, 256, x_title, "middle"))
    body.append(_text(12, 120, y_title, "middle", ' transform="rotate(-90 12 120)"'))
    names = []
    for n, s in enumerate(series):
        style = n if s.style is None else s.style
        names.append((s.name, style))
        colour = COLOURS[style % len(COLOURS)]
        shown = [p for p in s.points if math.isfinite(p.x) and math.isfinite(p.y)]
        if s.line and len(shown) > 1:
            path = "L".join(f"{X(p.x):.1f} {Y(p.y):.1f}" for p in sorted(shown, key=lambda p: p.x))
            body.append(
                f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="1.2" stroke-dasharray="4 3"/>'
            )
        for p in shown:
            if p.low is not None and p.high is not None and math.isfinite(p.low) and math.isfinite(p.high):
                body.append(
                    f'<path d="M{X(p.x):.1f} {Y(p.low):.1f}V{Y(p.high):.1f}" stroke="{colour}" stroke-width="1.2"/>'
                )
            said = f"{p.label or s.name}: {_number(p.x)}, {_number(p.y)}"
            body.append(_shape(X(p.x), Y(p.y), style, said, 3.0 if s.line else 4.0))
    legend, end = _legend(names, 276)
    return _svg(end, title, [*body, *legend])


def forest(title: str, x_title: str, rows: Sequence[tuple[str, Sequence[tuple[str, Point]]]]) -> str:
    """Effects with intervals: for each heading, a line for each name; x is the effect, low and high its interval."""
    drawn = [(heading, [(n, p) for n, p in lines if math.isfinite(p.x)]) for heading, lines in rows]
    drawn = [(heading, lines) for heading, lines in drawn if lines]
    if not drawn:
        return ""
    ends = [
        v
        for _, lines in drawn
        for _, p in lines
        for v in (p.x, p.low, p.high, 0.0)
        if v is not None and math.isfinite(v)
    ]
    X = _axis(ends, 132, WIDTH - 10)
    bottom = 8.0 + sum(20 + 16 * len(lines) for _, lines in drawn)
    body = []
    for tick in X.ticks:
        body += [
            f'<path d="M{X(tick):.1f} 6V{bottom}" class="grid"/>',
            _text(X(tick), bottom + 14, _number(tick), "middle"),
        ]
    body.append(f'<path d="M{X(0):.1f} 6V{bottom}" stroke="#333" stroke-width="1.2"/>')
    styles: dict[str, int] = {}
    y = 4.0
    for heading, lines in drawn:
        y += 16
        body.append(_text(4, y, heading, more=' font-weight="bold"'))
        y += 4
        for name, p in lines:
            style = styles.setdefault(name, len(styles) + 1)
            y += 16
            colour = COLOURS[style % len(COLOURS)]
            body.append(_text(12, y, name if len(name) <= 19 else name[:18] + "…"))
            if p.low is not None and p.high is not None and math.isfinite(p.low) and math.isfinite(p.high):
                body.append(
                    f'<path d="M{X(p.low):.1f} {y - 4}H{X(p.high):.1f}" stroke="{colour}" stroke-width="1.6"/>'
                )
            body.append(_shape(X(p.x), y - 4, style, f"{heading}, {name}: {_number(round(p.x, 2))}"))
    body.append(_text((132 + WIDTH - 10) / 2, bottom + 30, x_title, "middle"))
    return _svg(bottom + 38, title, body)
