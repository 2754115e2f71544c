"""Who reported late: how far behind the first rank each report of each rank came, and how that adds up."""

from __future__ import annotations

import statistics
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from raytrain_debug.postmortem.series import RankSeries

_NOTABLE = 0.1  # of the usual interval: less is how processes are scheduled


@dataclass(frozen=True)
class Straggler:
    """A rank that came last notably late in `times` reports, by `median` seconds at the median and `most` at most."""

    rank: int
    times: int
    median: float
    most: float


@dataclass(frozen=True)
class Lateness:
    """`late` has for each rank, in the order given, the seconds by which each of its reports came after the first one.

    `usual` is the median interval of reports in seconds (0.0 when there is none); `shared` counts the reports that
    several ranks made; `stragglers` come with the worst first.
    """

    late: tuple[array[float], ...]
    usual: float
    shared: int
    stragglers: tuple[Straggler, ...]


def lateness(ranks: Sequence[RankSeries]) -> Lateness:
    """Compare the times at which ranks made reports of the same index. Clocks of several machines may differ."""
    first: dict[int, float] = {}
    last: dict[int, tuple[float, int]] = {}
    count: dict[int, int] = {}
    for series in ranks:
        for index, time in zip(series.index, series.time, strict=True):
            first[index] = min(first.get(index, time), time)
            last[index] = max(last.get(index, (time, series.rank)), (time, series.rank))
            count[index] = count.get(index, 0) + 1
    usual = _usual_interval(ranks)
    late = tuple(
        array("d", [time - first[index] for index, time in zip(series.index, series.time, strict=True)])
        for series in ranks
    )
    behind: dict[int, list[float]] = {}
    shared = [index for index, ranks_ in count.items() if ranks_ > 1]
    for index in shared:
        time, rank = last[index]
        if usual > 0 and time - first[index] > _NOTABLE * usual:
            behind.setdefault(rank, []).append(time - first[index])
    found = [Straggler(rank, len(each), statistics.median(each), max(each)) for rank, each in behind.items()]
    found.sort(key=lambda each: (-each.times * each.median, each.rank))
    return Lateness(late, usual, len(shared), tuple(found))


def _usual_interval(ranks: Sequence[RankSeries]) -> float:
    intervals = [
        after - before
        for series in ranks
        for before, after in zip(series.time, series.time[1:], strict=False)
        if after > before
    ]
    return statistics.median(intervals) if intervals else 0.0
