"""Plots: what is far is drawn far, what is unknown is left out, names are text, nothing overlaps."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("matplotlib", reason="needs the plots extra")

from airvlm.reporting.plots import COLORS, Point, Series, figure, forest, scatter, style_of, to_svg

numbers = st.floats(-1e6, 1e6)
SVG = "{http://www.w3.org/2000/svg}"


def texts(svg: str) -> list[str]:
    return ["".join(one.itertext()) for one in ET.fromstring(svg).iter(SVG + "text")]


def markers(svg: str) -> list[tuple[float, float]]:
    """Where the points are drawn."""
    return [(float(x), float(y)) for x, y in re.findall(r'<use [^>]*x="([-\d.]+)" y="([-\d.]+)"', svg)]


@pytest.mark.slow
@settings(deadline=None, max_examples=12)
@given(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=12), st.text(max_size=20))
def test_any_points_under_any_name_give_a_plot_that_parses(points, name):
    name = "".join(c for c in name if c.isprintable())
    svg = scatter("t", "x", "y", [Series(name, tuple(Point(x, y) for x, y in points), line=True, style=0)])
    assert ET.fromstring(svg).tag == SVG + "svg"


def test_more_is_to_the_right_and_higher_up():
    svg = scatter("t", "x", "y", [Series("s", (Point(1, 1), Point(2, 5)), style=1)])
    (x1, y1), (x2, y2) = markers(svg)[-3:-1]  # the last marker is the legend's
    assert x2 > x1 and y2 < y1


def test_what_is_not_known_is_not_drawn():
    assert scatter("t", "x", "y", [Series("s", (Point(math.nan, 1), Point(1, math.inf)))]) == ""
    assert forest("t", "x", [("heading", [("name", Point(math.nan, 0))])]) == ""
    svg = forest("t", "x", [("h", [("known", Point(1, 0, math.nan, math.nan)), ("unknown", Point(math.nan, 0))])])
    assert "known" in texts(svg) and "unknown" not in texts(svg)
    assert "nan" not in svg.lower()


def test_names_are_text_and_no_formula():
    names = ["<name>", "a$b$c", "_hidden"]
    svg = forest("<t>", "x", [("<h>", [(name, Point(1, 0, 0, 2)) for name in names])])
    assert {"<h>", *names} <= set(texts(svg))
    svg = scatter("t", "x", "y", [Series(name, (Point(1, 2),)) for name in names])
    assert {name.lstrip("\u200b") for name in texts(svg)} >= set(names)


def test_the_same_figure_gives_the_same_text_and_loads_nothing():
    series = [Series("s", (Point(1, 1, 0, 2),))]
    assert scatter("t", "x", "y", series) == scatter("t", "x", "y", series)
    svg = scatter("t", "x", "y", series)
    assert not re.search(r'(?:href|src)="(?!#)', svg) and not re.search(r"url\((?!#)", svg)


def test_the_legend_overlaps_neither_the_plot_nor_itself():
    names = [f"air-random-crops:keep={k},weight=0.25" for k in range(15)]
    with figure(5.5) as drawn:
        from airvlm.reporting.plots import _legend

        axes = drawn.subplots()
        handles = [axes.plot([0, 1], [n, n])[0] for n in range(15)]
        axes.set_xlabel("recall (%)")
        _legend(drawn, handles, names, 1)
        to_svg(drawn, "t")
        [legend] = drawn.legends
        boxes = [text.get_window_extent() for text in legend.get_texts()]
        assert not axes.get_tightbbox().overlaps(legend.get_window_extent())
        assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[i + 1 :])
        assert legend.get_window_extent().x1 <= drawn.bbox.x1 + 1


def test_more_series_than_colors_still_differ():
    assert len({style_of(n) for n in range(2 * len(COLORS))}) == 2 * len(COLORS)
