"""Charts: what their paths draw, in how many bytes; and markup that is safe by construction."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raytrain_debug.render.html.chart import HEIGHT, WIDTH, Axis, Chart, Curve, draw, duration, number, whole
from raytrain_debug.render.html.markup import Markup, tag

FLOATS = st.floats(allow_nan=True, allow_infinity=True)


def chart(*curves: Sequence[float], size: int = 60_000) -> Chart:
    return Chart("loss", [Curve(range(len(y)), y) for y in curves], whole, number, size)


def points(svg: str) -> list[list[tuple[int, int]]]:
    """The points of each curve's path, as a browser would follow it."""
    found = []
    for data in re.findall(r'<path d="(M[^"]*)" class="curve"', svg):
        at, x, y = [], 0, 0
        for command, numbers in re.findall(r"([Ml])([^Ml]*)", data):
            values = [int(each) for each in re.findall(r"-?\d+", numbers)]
            for dx, dy in zip(values[::2], values[1::2], strict=True):
                x, y = (dx, dy) if command == "M" else (x + dx, y + dy)
                at.append((x, y))
        found.append(at)
    return found


def test_a_curve_goes_from_its_first_to_its_last_point_and_rises_where_the_numbers_do() -> None:
    (path,) = points(draw(chart([float(y) for y in range(1000)])).svg)
    assert path[0][0] < path[-1][0]
    assert path[0][1] > path[-1][1]
    assert path == sorted(path, key=lambda each: (each[0], -each[1]))


def test_a_spike_of_one_report_among_many_is_seen() -> None:
    flat = [1.0] * 10_000
    flat[7_777] = 5.0
    (path,) = points(draw(chart(flat)).svg)
    assert min(y for _, y in path) < 20 < HEIGHT - 40 < max(y for _, y in path)


def test_nan_and_infinity_break_the_curve_and_are_marked() -> None:
    drawn = draw(chart([1.0, 2.0, math.nan, 3.0, math.inf, 4.0])).svg
    assert drawn.count("M") > 3
    (marks,) = re.findall(r'd="([^"]*)" class="bad"', drawn)
    assert marks.count("M") == 2
    assert 'class="bad"' not in draw(chart([1.0, 2.0])).svg


def test_ranges_over_decades_are_logarithmic_unless_something_is_not_positive() -> None:
    assert draw(chart([1e-4, 1.0, 10.0])).log
    assert not draw(chart([0.0, 1.0, 10_000.0])).log
    assert not draw(chart([1.0, 10.0])).log


def test_few_points_are_dots_also_when_there_is_one() -> None:
    assert "dots" in draw(chart([0.5])).svg
    assert "dots" not in draw(chart([0.5] * 500)).svg


def test_a_chart_stays_near_its_size_whatever_is_in_it() -> None:
    random.seed(3)
    curves = [[random.random() for _ in range(10_000)] for _ in range(64)]
    assert len(draw(chart(*curves, size=40_000)).svg) < 60_000


@given(st.lists(st.lists(FLOATS, max_size=40), max_size=4))
def test_any_numbers_are_drawn_inside_the_picture(curves: list[list[float]]) -> None:
    for path in points(draw(chart(*curves)).svg):
        assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in path)


@given(st.floats(allow_nan=False, allow_infinity=False), st.floats(allow_nan=False, allow_infinity=False))
def test_ticks_lie_in_their_range_and_are_few(first: float, second: float) -> None:
    low, high = sorted((first, second))
    if high > low and math.isfinite(high - low):
        ticks = Axis(low, high, number).ticks()
        assert len(ticks) <= 10
        assert all(low - (high - low) * 1e-6 <= tick <= high for tick in ticks)


@pytest.mark.parametrize(
    ("axis", "labels"),
    [
        (Axis(0, 10_000, whole), ["0", "2000", "4000", "6000", "8000", "10000"]),
        (Axis(0.1, 0.52, number), ["0.1", "0.2", "0.3", "0.4", "0.5"]),
        (Axis(0.5001, 0.50045, number), ["0.5001", "0.5002", "0.5003", "0.5004"]),
        (Axis(1e-3, 10, number, log=True), ["0.001", "0.1", "10"]),
        (Axis(0, 5_400, duration), ["0.0 s", "30 min", "1 h", "1 h 30 min"]),
        (Axis(3.1, 3.45, duration), ["3.1 s", "3.2 s", "3.3 s", "3.4 s"]),
        (Axis(0, 2e9, number), ["0", "5e+08", "1e+09", "1.5e+09", "2e+09"]),
    ],
)
def test_ticks_are_round_and_told_apart(axis: Axis, labels: list[str]) -> None:
    assert [axis.write(tick) for tick in axis.ticks()] == labels


def test_text_and_attributes_are_escaped_and_markup_is_not() -> None:
    inside = tag("b", "<script>", title='"><script>alert(1)</script>')
    assert "<script" not in inside
    assert tag("p", inside, ["a", None, 3]) == f"<p>{inside}a3</p>"
    assert tag("a", data_file="x", class_="y", hidden=True, open=False) == '<a data-file="x" class="y" hidden></a>'
    with pytest.raises(ValueError, match="element"):
        tag("b onclick=x")


@given(st.text())
def test_any_text_stays_text(text: str) -> None:
    for made in (tag("p", text), tag("p", title=text)):
        assert isinstance(made, Markup)
        assert made.count("<") == 2
        made.encode("utf-8")
        assert not any(ord(char) < 32 and char not in "\n\t" for char in made)
