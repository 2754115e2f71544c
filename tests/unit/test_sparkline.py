"""Rows of bars: as many as there are values or columns, monotonous, and never silent about NaN."""

import io
import itertools
import math
import sys

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.console import Console

from raytrain_debug.across.values import summarise
from raytrain_debug.render.sparkline import Sparkline, sparkline, summary

BARS = "▁▂▃▄▅▆▇█"
numbers = st.lists(st.floats(), max_size=200)


@given(numbers, st.integers(1, 100), st.booleans())
def test_one_character_a_value_or_a_column(values, width, ascii_only):
    row = sparkline(values, width, ascii_only)
    assert len(row) == min(len(values), width)
    assert row.isascii() or not ascii_only


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=2, max_size=50))
@example([sys.float_info.max] * 3)
def test_higher_values_never_have_lower_bars(values):
    row = [BARS.index(char) for char in sparkline(values, 50)]
    order = sorted(range(len(values)), key=lambda at: values[at])
    assert all(row[low] <= row[high] for low, high in itertools.pairwise(order))
    if min(values) / 2 < max(values) / 2:
        assert (min(row), max(row)) == (0, 7)


@given(numbers, st.integers(1, 30))
def test_a_nan_is_never_hidden_by_its_neighbours(values, width):
    assert ("×" in sparkline(values, width)) == any(math.isnan(value) for value in values)


def test_an_outlier_is_never_hidden_by_its_neighbours():
    values = [1.0] * 1000
    values[417] = 50.0
    assert sparkline(values, 20).count("█") == 1


def test_equal_values_have_bars_of_middle_height_and_infinities_arrows():
    assert sparkline([3.0, 3.0]) == "▄▄"
    assert sparkline([math.inf, -math.inf, math.nan]) == "↑↓×"
    assert sparkline([]) == ""


@pytest.mark.parametrize(("encoding", "row"), [("utf-8", "▁█×"), ("ascii", "_#x")])
def test_terminals_without_unicode_get_ascii(encoding, row):
    raw = io.BytesIO()
    console = Console(file=io.TextIOWrapper(raw, encoding=encoding, write_through=True), width=40, legacy_windows=False)
    console.print(Sparkline([0.0, 1.0, math.nan]))
    assert raw.getvalue().decode(encoding).strip() == row


def test_summary_counts_what_is_not_finite():
    assert (
        summary(summarise({0: 1.0, 1: 2.0, 2: math.nan, 3: math.inf})).plain == "min 1  max 2  mean 1.5  1 NaN  1 Inf"
    )
    assert summary(summarise({0: math.nan})).plain == "1 NaN"
