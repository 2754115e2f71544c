"""Histograms of parts, merged in any order, against counting by exact arithmetic."""

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from raytrain_debug.postmortem import tensors
from raytrain_debug.postmortem.histogram import BINS, Counter, coarser
from raytrain_debug.postmortem.tensors import statistics, statistics_of_parts

# Beside a huge number a minute one is as good as zero: the products that tell its bin underflow.
MINUTE = 1e-150
NUMBERS = st.floats(min_value=-1e150, max_value=1e150).filter(lambda value: value == 0 or abs(value) > MINUTE)
NEAR = st.floats(min_value=-4, max_value=4).filter(lambda value: abs(value) > MINUTE) | st.sampled_from(
    [0.0, -0.0, 1.0]
)


def counted(values):
    counter = Counter()
    if values:
        counter.add(torch.tensor(values, dtype=torch.float64), min(values), max(values))
    return counter


def by_hand(values, histogram):
    start, width = Fraction(histogram.start), Fraction(histogram.width)
    counts = [0] * len(histogram.counts)
    for value in values:
        counts[math.floor((Fraction(value) - start) / width)] += 1
    return tuple(counts)


@settings(max_examples=150, deadline=None)
@given(st.lists(NUMBERS, min_size=1, max_size=30) | st.lists(NEAR, min_size=1, max_size=30))
def test_every_value_is_in_its_bin_and_no_outer_bin_is_empty(values):
    found = counted(values).histogram()
    assert found.counts == by_hand(values, found)
    assert len(found.counts) <= BINS
    assert found.counts[0]
    assert found.counts[-1]


@settings(max_examples=150, deadline=None)
@given(st.lists(st.lists(NUMBERS | NEAR, max_size=6), min_size=1, max_size=6), st.randoms())
def test_parts_in_any_order_give_the_histogram_of_the_whole(parts, random):
    whole = [value for part in parts for value in part]
    random.shuffle(parts)
    merged = Counter()
    for part in parts:
        merged.merge(counted(part))
    assert merged.histogram() == counted(whole).histogram()


@settings(max_examples=80, deadline=None)
@given(st.lists(NUMBERS | NEAR, min_size=1, max_size=30), st.integers(2, 16))
def test_a_coarser_one_counts_the_same(values, bins):
    histogram = counted(values).histogram()
    counts = coarser(histogram, bins)
    assert (sum(counts), len(counts) <= bins) == (len(values), True)
    assert bins < 4 or len(counts) > bins // 4 or len(counts) == len(histogram.counts)


def test_the_widest_range_and_the_smallest_numbers_have_a_histogram():
    most = 1.7976931348623157e308
    for values in ([-most, most], [-most], [0.0, -most], [5e-324], [0.0, 5e-324], [-5e-324, most]):
        assert sum(counted(values).histogram().counts) == len(values)


def test_a_bell_has_most_of_its_bins_and_is_highest_in_the_middle():
    torch.manual_seed(0)
    found = statistics(torch.randn(100_000)).histogram
    assert BINS // 2 < len(found.counts) <= BINS
    assert sum(found.counts) == 100_000
    top = found.start + (found.counts.index(max(found.counts)) + 0.5) * found.width
    assert abs(top) < 0.5


def test_a_narrow_spread_far_from_zero_is_still_seen():
    found = statistics(1e6 + torch.rand(1000, dtype=torch.float64) * 1e-3).histogram
    assert len(found.counts) > BINS // 2


def test_bad_values_zeros_of_sparse_tensors_and_repeats_are_counted_rightly():
    assert sum(statistics(torch.tensor([math.nan, 1.0, math.inf, 2.0])).histogram.counts) == 2
    sparse = torch.zeros(4, 6)
    sparse[1, 1] = 8.0
    assert statistics(sparse.to_sparse()).histogram == statistics(sparse).histogram
    shown = torch.tensor([[1.0], [3.0]]).expand(2, 5)
    assert statistics(shown).histogram == statistics(shown.contiguous()).histogram
    assert statistics(torch.tensor([math.nan])).histogram is None
    assert statistics(torch.tensor([1j])).histogram is None


def test_of_a_large_tensor_some_are_counted_over_the_range_of_all(monkeypatch):
    monkeypatch.setattr(tensors, "_EXACT", 100)
    values = torch.arange(1000.0)
    found = statistics(values).histogram
    assert found.every > 1
    assert sum(found.counts) == math.ceil(1000 / found.every)
    assert found.start <= 0
    assert found.start + len(found.counts) * found.width > 999


@pytest.mark.parametrize("axis", [0, 1])
def test_parts_of_a_tensor_tell_what_the_whole_tells(axis):
    torch.manual_seed(1)
    whole = torch.randn(6, 10)
    whole[4, 7] = math.nan
    begins = [(0, 0), (3, 0)] if axis == 0 else [(0, 0), (0, 5)]
    parts = list(zip(begins, whole.chunk(2, axis), strict=True))
    found, told = statistics_of_parts((6, 10), whole.dtype, reversed(parts)), statistics(whole)
    assert (found.first_bad, found.min, found.max, found.histogram) == ((4, 7), told.min, told.max, told.histogram)
    assert found.std == pytest.approx(told.std, rel=1e-12)
    assert statistics_of_parts((6, 10), whole.dtype, parts[:1]).note == "only 30 of 60 elements are stored"
