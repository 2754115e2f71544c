"""Numbers of all reports of all ranks over time, read line by line so that long runs need little memory."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from raytrain_debug.postmortem.health import numbers
from raytrain_debug.run import codec
from raytrain_debug.run.reader import Rank

_MAX_METRICS = 200


@dataclass
class Points:
    """A curve: what was measured (`y`; NaN and infinities too) in which report (`at`, a position in the rank's)."""

    at: array[int] = field(default_factory=lambda: array("l"))
    y: array[float] = field(default_factory=lambda: array("d"))

    def add(self, at: int, y: float) -> None:
        self.at.append(at)
        self.y.append(y)


@dataclass
class RankSeries:
    """All reports of a rank in the order in which they were made: `index` and `time` (Unix seconds) of each.

    `metrics` has the numbers by dotted name; `rss` and `gpu_memory` are bytes.
    """

    rank: int
    index: array[int] = field(default_factory=lambda: array("q"))
    time: array[float] = field(default_factory=lambda: array("d"))
    metrics: dict[str, Points] = field(default_factory=dict)
    rss: Points = field(default_factory=Points)
    gpu_memory: Points = field(default_factory=Points)


def read_series(rank: Rank) -> RankSeries:
    """Read all reports of `rank`; lines that cannot be read are left out, as by the reader."""
    series = RankSeries(rank.rank)
    for report in _raw_reports(rank.paths.reports):
        index, time = report.get("index"), report.get("time")
        if type(index) is not int or not isinstance(time, (int, float)):
            continue
        at = len(series.index)
        series.index.append(index)
        series.time.append(float(time))
        metrics = report.get("metrics")
        for name, value in (numbers(metrics) if isinstance(metrics, dict) else {}).items():
            if name in series.metrics or len(series.metrics) < _MAX_METRICS:
                series.metrics.setdefault(name, Points()).add(at, codec.as_float(value))
        process = report.get("process")
        for name, points in (("rss", series.rss), ("gpu_memory", series.gpu_memory)):
            used = process.get(name) if isinstance(process, dict) else None
            if isinstance(used, (int, float)):
                points.add(at, float(used))
    return series


def _raw_reports(path: Path) -> Iterator[dict[str, Any]]:
    """Complete lines as plain values: making records of them all takes several times as long."""
    try:
        with open(path, "rb") as file:
            for line in file:
                if not line.endswith(b"\n"):
                    break
                try:
                    value = codec.loads(line)
                except (ValueError, RecursionError):
                    continue
                if isinstance(value, dict):
                    yield value
    except OSError:
        return
