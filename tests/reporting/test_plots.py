"""Plots: what is far is drawn far, what is unknown is left out, names are text."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET

from hypothesis import given
from hypothesis import strategies as st

from airvlm.reporting.plots import WIDTH, Point, Series, forest, scatter

numbers = st.floats(-1e6, 1e6)


def circles(svg: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall(r'<circle cx="([-\d.]+)" cy="([-\d.]+)"', svg)]


@given(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=12), st.text(max_size=20))
def test_any_points_give_a_picture_that_parses_and_holds_them(
    points: list[tuple[float, float]], name: str
) -> None:
    name = "".join(c for c in name if c.isprintable())
    svg = scatter("t", "x", "y", [Series(name, tuple(Point(x, y) for x, y in points), line=True, style=0)])
    ET.fromstring(svg)
    drawn = circles(svg)[: len(points)]
    assert all(44 <= x <= WIDTH - 10 and 14 <= y <= 226 for x, y in drawn)


def test_more_is_to_the_right_and_higher_up() -> None:
    svg = scatter("t", "x", "y", [Series("s", (Point(1, 1), Point(2, 5)), style=0)])
    (x1, y1), (x2, y2) = circles(svg)[:2]
    assert x2 > x1
    assert y2 < y1


def test_what_is_not_known_is_not_drawn() -> None:
    assert scatter("t", "x", "y", [Series("s", (Point(math.nan, 1), Point(1, math.inf)))]) == ""
    assert forest("t", "x", [("heading", [("name", Point(math.nan, 0))])]) == ""
    svg = forest(
        "t", "x", [("h", [("known", Point(1, 0, math.nan, math.nan)), ("unknown", Point(math.nan, 0))])]
    )
    assert "known" in svg
    assert ">unknown<" not in svg
    assert "nan" not in svg.lower()


def test_names_are_text() -> None:
    svg = forest("<t>", "x", [("<h>", [("<name>", Point(1, 0, 0, 2))])])
    ET.fromstring(svg)
    assert "&lt;name&gt;" in svg
