"""When each rank reported: a row a rank over time, the darker the later it was than the first rank with that report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from raytrain_debug.postmortem.lateness import Lateness
from raytrain_debug.postmortem.series import RankSeries
from raytrain_debug.render import text
from raytrain_debug.render.html.chart import Axis, duration
from raytrain_debug.render.html.markup import Markup, tag

_WIDTH, _LEFT, _RIGHT, _BOTTOM = 1140, 64, 26, 24
_CELLS = 250
_CLASSES = (0.1, 0.5, 1.0, 5.0)  # of the usual interval: where the next darker shade begins
_WORDS = ("on time", "10% of an interval late", "50%", "1 interval", "5 intervals")


def timeline(
    ranks: Sequence[RankSeries], found: Lateness, started: float, ended: Mapping[int, tuple[float, str]]
) -> Iterator[Markup]:
    """The chart with its legend; `ended` has when (Unix seconds) and how each rank ended that did not finish."""
    times = [time for series in ranks for time in (*series.time[:1], *series.time[-1:])]
    times += [moment for moment, _ in ended.values()]
    if not times:
        return
    high = max(*times, started + 1e-3) - started
    axis = Axis(min(0.0, min(times) - started), high, duration)
    row = 16 if len(ranks) <= 32 else 9
    height = row * len(ranks) + _BOTTOM
    shades: dict[int, list[str]] = {}
    parts: list[Markup] = []
    for number, (series, late) in enumerate(zip(ranks, found.late, strict=True)):
        y = row * number + row // 2
        for first, last, shade in _runs(series, late, found.usual, started, axis):
            left, right = _x(first / _CELLS), _x((last + 1) / _CELLS)
            shades.setdefault(shade, []).append(f"M{left} {y}h{max(right - left, 1)}")
        if len(ranks) <= 32 or number % 8 == 0:
            parts.append(tag("text", f"rank {series.rank}", x=_LEFT - 8, y=y + 4, class_="tick left"))
        if series.rank in ended:
            moment, how = ended[series.rank]
            x = _x(axis.at(moment - started))
            cross = f"M{x + 2} {y - 3}l6 6m0-6l-6 6"
            parts.append(tag("path", tag("title", f"rank {series.rank}: {how}"), d=cross, class_="end"))
    for value in axis.ticks():
        x = _x(axis.at(value))
        parts.append(tag("line", x1=x, x2=x, y1=0, y2=height - _BOTTOM, class_="grid"))
        parts.append(tag("text", axis.write(value), x=x, y=height - 6, class_="tick below"))
    strokes = [
        tag("path", d="".join(data), class_=f"late{shade}", stroke_width=row - 3)
        for shade, data in sorted(shades.items())
    ]
    yield _legend(found)
    yield tag(
        "svg", *parts, *strokes, viewBox=f"0 0 {_WIDTH} {height}", role="img", aria_label="when each rank reported"
    )


def _runs(
    series: RankSeries, late: Sequence[float], usual: float, started: float, axis: Axis
) -> Iterator[tuple[int, int, int]]:
    """Neighbouring cells of one shade: the first, the last, the shade. A cell takes the shade of its latest report."""
    cells: dict[int, int] = {}
    for time, seconds in zip(series.time, late, strict=True):
        cell = min(int(axis.at(time - started) * _CELLS), _CELLS - 1)
        cells[cell] = max(cells.get(cell, 0), _shade(seconds, usual))
    run: tuple[int, int, int] | None = None
    for cell, shade in sorted(cells.items()):
        if run is not None and run[1] == cell - 1 and run[2] == shade:
            run = run[0], cell, shade
        else:
            if run is not None:
                yield run
            run = cell, cell, shade
    if run is not None:
        yield run


def _shade(seconds: float, usual: float) -> int:
    return sum(seconds >= part * usual for part in _CLASSES) if usual > 0 else 0


def _x(part: float) -> int:
    return _LEFT + round(part * (_WIDTH - _LEFT - _RIGHT))


def _legend(found: Lateness) -> Markup:
    if not found.shared:
        return tag("p", "A mark is a report.", class_="legend soft")
    samples = [
        (
            tag("svg", tag("path", d="M1 5h24", class_=f"late{shade}", stroke_width=9), viewBox="0 0 26 10"),
            word,
        )
        for shade, word in enumerate(_WORDS)
    ]
    usual = f"; the usual interval is {text.duration(found.usual)}" if found.usual else ""
    return tag(
        "p", samples, tag("span", f"  after the first rank with that report{usual}", class_="soft"), class_="legend"
    )


def stragglers(found: Lateness, most: int = 5) -> Markup | None:
    """Who came last, how often, and how late."""
    if not found.stragglers:
        return None
    rows = [
        tag(
            "tr",
            tag("td", f"rank {each.rank}"),
            tag("td", f"{each.times} of {found.shared}", class_="number"),
            tag("td", text.duration(each.median), class_="number"),
            tag("td", text.duration(each.most), class_="number"),
        )
        for each in found.stragglers[:most]
    ]
    heads = [
        tag("th", "came last"),
        *(tag("th", each, class_="number") for each in ("in reports", "late (median)", "most")),
    ]
    return tag("table", tag("thead", tag("tr", heads)), tag("tbody", rows))
