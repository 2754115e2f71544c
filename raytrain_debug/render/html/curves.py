"""Curves of all ranks: each metric over reports, memory over time."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Sequence

from raytrain_debug.postmortem.series import Points, RankSeries
from raytrain_debug.render import text
from raytrain_debug.render.html.chart import Chart, Curve, draw, duration, number, whole
from raytrain_debug.render.html.markup import Markup, tag
from raytrain_debug.run.ranks import format_ranks, name_ranks

_COLOURS = 8  # ranks that can be told apart by colour
_MAX_CHARTS = 40
_SIZE = 600_000  # bytes of all charts of metrics
_MEMORY_SIZE = 80_000


def legend(ranks: Sequence[int], first: int | None) -> Markup | None:
    """Which line is which rank; `first` is the rank that failed first."""
    if len(ranks) < 2:
        return None
    if len(ranks) <= _COLOURS:
        return tag("p", ((_sample(_style(ranks, rank, first)), f"rank {rank}") for rank in ranks), class_="legend")
    words = [_sample("many"), f"ranks {format_ranks(ranks)}"]
    words += [_sample("first"), f"rank {first}, which failed first"] if first in ranks else []
    return tag("p", words, class_="legend")


def metrics(ranks: Sequence[RankSeries], first: int | None) -> Iterator[Markup]:
    """A chart for each metric that is a number."""
    names = list(dict.fromkeys(name for series in ranks for name in series.metrics))
    shown = names[:_MAX_CHARTS]
    for name in shown:
        found = [(series, series.metrics[name]) for series in ranks if name in series.metrics]
        curves = _curves(found, [series.index for series, _ in found], first)
        chart = Chart(name, curves, whole, number, _SIZE // len(shown))
        yield _figure(chart, "over reports", _bad_words(found))
    if len(names) > len(shown):
        yield tag("p", f"and {len(names) - len(shown)} more metrics", class_="soft")


def memory(ranks: Sequence[RankSeries], started: float, first: int | None) -> Iterator[Markup]:
    """Charts of what processes and GPUs held, over the seconds since `started`."""
    for name, kind in (("Memory of each rank's process (RSS)", "rss"), ("GPU memory in tensors", "gpu_memory")):
        found = [(series, getattr(series, kind)) for series in ranks]
        found = [(series, points) for series, points in found if len(points.y)]
        if not found:
            continue
        unit, size = ("GiB", 1 << 30) if max(max(points.y) for _, points in found) >= 1 << 30 else ("MiB", 1 << 20)
        found = [(series, Points(points.at, array("d", [y / size for y in points.y]))) for series, points in found]
        times = [[time - started for time in series.time] for series, _ in found]
        chart = Chart(f"{name}, {unit}", _curves(found, times, first), duration, number, _MEMORY_SIZE)
        yield _figure(chart, "over time since the start")


def _curves(
    found: Sequence[tuple[RankSeries, Points]], xs: Sequence[Sequence[float]], first: int | None
) -> list[Curve]:
    ranks = [series.rank for series, _ in found]
    curves = []
    for (series, points), x in zip(found, xs, strict=True):
        title = f"rank {series.rank}, last: {text.number(points.y[-1])}"
        curves.append(Curve([x[at] for at in points.at], points.y, _style(ranks, series.rank, first), title))
    # The one that failed is drawn over the others.
    return sorted(curves, key=lambda curve: curve.style == "first")


def _style(ranks: Sequence[int], rank: int, first: int | None) -> str:
    if len(ranks) <= _COLOURS:
        return f"c{ranks.index(rank) % _COLOURS}"
    return "first" if rank == first else "many"


def _sample(style: str) -> Markup:
    return tag("svg", tag("path", d="M1 5h24", class_=f"curve {style}"), viewBox="0 0 26 10", aria_hidden="true")


def _figure(chart: Chart, over: str, note: Markup | None = None) -> Markup:
    drawn = draw(chart)
    words = f"{over}{', logarithmic' if drawn.log else ''}"
    return tag("figure", tag("figcaption", chart.name, tag("small", words), " ", note), drawn.svg)


def _bad_words(found: Sequence[tuple[RankSeries, Points]]) -> Markup | None:
    """Since when the metric was NaN or infinite, and where."""
    since: dict[int, list[int]] = {}
    for series, points in found:
        at = next((at for at, y in zip(points.at, points.y, strict=True) if not math.isfinite(y)), None)
        if at is not None:
            since.setdefault(series.index[at], []).append(series.rank)
    if not since:
        return None
    index = min(since)
    ranks = since[index]
    return tag("small", f"NaN or infinite first in report {index}, on {name_ranks(ranks)}", class_="bad-text")
