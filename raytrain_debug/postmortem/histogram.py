"""A histogram that needs no second look: bins are a power of two wide and join in pairs when the range grows.

Edges are multiples of the width, so the histograms of any parts, counted in any order, merge to the very same one.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass

import torch

BINS = 32
"""The most bins that a histogram has; it has more than half of them, unless there is only one value."""

_FINEST = -1021  # the inverse of a bin's width must be a float too


@dataclass(frozen=True)
class Histogram:
    """How finite values spread: bin `i` counts those in [start + i * width, start + (i + 1) * width).

    Of a large tensor only every `every`-th value was counted; the range is that of all values nevertheless.
    """

    start: float
    width: float
    counts: tuple[int, ...]
    every: int = 1


class Counter:
    """Counts values into a histogram; one for real numbers that are finite."""

    def __init__(self) -> None:
        self.exponent = 0
        self.first = 0  # the lowest bin, in widths from zero
        self.counts: list[int] = []

    def add(self, values: torch.Tensor, low: float, high: float) -> None:
        """Count float64 `values`, which lie between `low` and `high`; overwrites them. The range will hold both."""
        self._cover(*_grid(low, high))
        # A power of two as the factor keeps every bit, so a value on an edge falls to the bin above it.
        bins = values.mul_(math.ldexp(1.0, -self.exponent)).floor_().sub_(self.first)
        found = torch.bincount(bins.clamp_(0, len(self.counts) - 1).to(torch.int64), minlength=len(self.counts))
        self.counts = [mine + new for mine, new in zip(self.counts, found.tolist(), strict=True)]

    def add_equal(self, value: float, count: int) -> None:
        """Count `value`, which is finite, `count` times."""
        self._cover(*_grid(value, value))
        self.counts[math.floor(math.ldexp(value, -self.exponent)) - self.first] += count

    def merge(self, other: Counter) -> None:
        """Count what `other` counted."""
        if other.counts:
            self._cover(other.exponent, other.first, other.first + len(other.counts) - 1)
            for at, count in enumerate(other.counts):
                self.counts[((other.first + at) >> (self.exponent - other.exponent)) - self.first] += count

    def repeat(self, times: int) -> None:
        """Count everything so far `times` times."""
        self.counts = [count * times for count in self.counts]

    def histogram(self, every: int = 1) -> Histogram | None:
        """What was counted; None when nothing was."""
        if not self.counts:
            return None
        width = math.ldexp(1.0, self.exponent)
        # The edge below the lowest of all floats is one that no float holds.
        start = max(self.first * width, -sys.float_info.max)
        return Histogram(start, width, tuple(self.counts), every)

    def _cover(self, exponent: int, first: int, last: int) -> None:
        """Widen the bins, and add some, until those from `first` to `last` at `exponent` are among them."""
        if self.counts:
            mine = self.first, self.first + len(self.counts) - 1
            common = max(exponent, self.exponent)
            while True:
                low = min(first >> (common - exponent), mine[0] >> (common - self.exponent))
                high = max(last >> (common - exponent), mine[1] >> (common - self.exponent))
                if high - low < BINS:
                    break
                common += 1
            exponent, first, last = common, low, high
        counts = [0] * (last - first + 1)
        for at, count in enumerate(self.counts):
            counts[((self.first + at) >> (exponent - self.exponent)) - first] += count
        self.exponent, self.first, self.counts = exponent, first, counts


def coarser(histogram: Histogram, bins: int) -> tuple[int, ...]:
    """Its counts in at most `bins` (2 or more) of equal width: neighbours joined in pairs as often as it takes."""
    first, counts = round(histogram.start / histogram.width), histogram.counts
    while len(counts) > bins:
        joined = [0] * (((first + len(counts) - 1) >> 1) - (first >> 1) + 1)
        for at, count in enumerate(counts):
            joined[((first + at) >> 1) - (first >> 1)] += count
        first, counts = first >> 1, tuple(joined)
    return counts


def _grid(low: float, high: float) -> tuple[int, int, int]:
    """The finest bins that hold `low` and `high`: exponent of their width, and the first and the last of them."""
    # No finer than the floats themselves lie apart, and numbers of bins that int64 and float64 hold exactly.
    reach = max(abs(low), abs(high))
    exponent = max(math.frexp(reach)[1] - 53, _FINEST) if reach else _FINEST
    while True:
        first, last = math.floor(math.ldexp(low, -exponent)), math.floor(math.ldexp(high, -exponent))
        if last - first < BINS:
            return exponent, first, last
        exponent += max((last - first).bit_length() - BINS.bit_length(), 1)
