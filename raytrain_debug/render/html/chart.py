"""A chart of curves as SVG: any number of points in few bytes, NaN and infinities marked."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from raytrain_debug.render import text
from raytrain_debug.render.html.markup import Markup, tag

WIDTH, HEIGHT = 560, 210
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 8, 12, 24
_PLOT_WIDTH, _PLOT_HEIGHT = WIDTH - _LEFT - _RIGHT, HEIGHT - _TOP - _BOTTOM
_TICKS = 3  # at least
_ROUND_TIMES = (
    1,
    2,
    5,
    10,
    15,
    30,
    60,
    120,
    300,
    600,
    900,
    1800,
    3600,
    7200,
    10800,
    21600,
    43200,
    86400,
    172800,
    604800,
)
_DOTS = 60  # a curve of no more points shows each of them
_BYTES = 6.0  # of a point in a path, at the median
_DECADES = 2.5  # of a range that is shown on a logarithmic scale

Format = Callable[[float, float], str]
"""Writes a number of an axis, given how far apart those beside it are."""


@dataclass(frozen=True)
class Curve:
    """A line of a chart: `x` rises, `y` may be NaN or infinite. `style` is its class, `title` what it says when
    pointed at."""

    x: Sequence[float]
    y: Sequence[float]
    style: str = ""
    title: str = ""


@dataclass(frozen=True)
class Axis:
    """A range, its ticks written by `format`; on a logarithmic scale if `log`."""

    low: float
    high: float
    format: Format
    log: bool = False

    def at(self, value: float) -> float:
        """Where `value` lies, from 0 to 1 in the range."""
        if self.log:
            return (math.log10(value) - math.log10(self.low)) / (math.log10(self.high) - math.log10(self.low))
        return (value / 2 - self.low / 2) / (self.high / 2 - self.low / 2)

    def ticks(self) -> list[float]:
        """Round numbers in the range."""
        if self.log:
            powers = range(math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9) + 1)
            return [10.0**power for power in powers[:: max(1, math.ceil(len(powers) / _TICKS))]]
        step = self.step
        if not (step > 0 and math.isfinite(self.low / step)):
            return []  # numbers at the very end of what a float holds
        lowest = math.ceil(self.low / step)
        return [each * step for each in range(lowest, lowest + 2 * _TICKS + 2) if each * step <= self.high]

    @property
    def step(self) -> float:
        """How far apart ticks are, on a linear scale."""
        most = (self.high / 2 - self.low / 2) / _TICKS * 2
        if self.format is duration and most >= 1:
            return next((step for step in reversed(_ROUND_TIMES) if step <= most), 1.0)
        return _step(most)

    def write(self, value: float) -> str:
        """The text of a tick."""
        return self.format(value, value if self.log else self.step)


@dataclass(frozen=True)
class Chart:
    """Curves over one horizontal axis; `size` bounds its bytes, roughly."""

    name: str
    curves: Sequence[Curve]
    x_format: Format
    y_format: Format
    size: int = 60_000


@dataclass(frozen=True)
class Drawn:
    """A chart as SVG, and whether its vertical axis is logarithmic."""

    svg: Markup
    log: bool


def draw(chart: Chart) -> Drawn:
    """Draw it."""
    x_axis = _range([value for curve in chart.curves for value in (*curve.x[:1], *curve.x[-1:])], chart.x_format)
    y_axis = _y_range(chart)
    columns = _columns(chart)
    width = _PLOT_WIDTH / columns
    bad: set[int] = set()
    paths = []
    for curve in chart.curves:
        cells = list(_reduced(curve, x_axis, columns, bad))
        data = _path(cells, y_axis, width)
        if data:
            title = tag("title", curve.title) if curve.title else None
            paths.append(tag("path", title, d=data, class_=f"curve {curve.style}".strip()))
            if len(curve.x) <= _DOTS:
                dots = "".join(_path([cell], y_axis, width) for cell in cells if cell is not None)
                paths.append(tag("path", title, d=dots, class_=f"curve dots {curve.style}".strip()))
    ticks = "".join(f"M{_LEFT + round((column + 0.5) * width)} {_TOP}v6" for column in sorted(bad))
    svg = tag(
        "svg",
        *_grid(x_axis, y_axis),
        *paths,
        tag("path", tag("title", "NaN or infinite"), d=ticks, class_="bad") if ticks else None,
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
        aria_label=chart.name,
    )
    return Drawn(svg, y_axis.log)


def _columns(chart: Chart) -> int:
    """Columns that points are sorted into: as many as pixels, or fewer where that would be too many bytes."""
    points = sum(min(len(curve.x), 2 * _PLOT_WIDTH) for curve in chart.curves)
    if points * _BYTES <= chart.size:
        return _PLOT_WIDTH
    return max(16, min(_PLOT_WIDTH, int(chart.size / _BYTES / 2 / len(chart.curves))))


def _reduced(curve: Curve, axis: Axis, columns: int, bad: set[int]) -> Iterator[tuple[int, tuple[float, ...]] | None]:
    """For each column with finite values: the lowest and the highest in their order; None where the curve is broken."""
    column, low, high, first_is_low = -1, 0.0, 0.0, True
    broken = False
    for x, y in zip(curve.x, curve.y, strict=True):
        at = min(int(axis.at(x) * columns), columns - 1)
        if not math.isfinite(y):
            bad.add(at)
            broken = True
            continue
        if at != column or broken:
            if column >= 0:
                yield column, _pair(low, high, first_is_low)
            if broken:
                yield None
            column, low, high, first_is_low, broken = at, y, y, True, False
        elif y < low:
            low, first_is_low = y, False
        elif y > high:
            high, first_is_low = y, True
    if column >= 0:
        yield column, _pair(low, high, first_is_low)


def _pair(low: float, high: float, first_is_low: bool) -> tuple[float, ...]:
    if low == high:
        return (low,)
    return (low, high) if first_is_low else (high, low)


def _path(cells: Iterable[tuple[int, tuple[float, ...]] | None], axis: Axis, width: float) -> str:
    """Relative steps in whole units: the shortest that a path can be written."""
    parts: list[str] = []
    x = y = 0
    moved = False
    for cell in cells:
        if cell is None:
            moved = False
            continue
        column, values = cell
        for value in values:
            to_x = _LEFT + round((column + 0.5) * width)
            to_y = _TOP + round((1 - axis.at(value)) * _PLOT_HEIGHT)
            if not moved:
                # A lone point is a dot: a line of no length with round ends.
                parts.append(f"M{to_x} {to_y}l0 0")
                moved = True
            elif to_x != x or to_y != y:
                parts += (_move(to_x - x), _move(to_y - y))
            x, y = to_x, to_y
    return "".join(parts)


def _move(step: int) -> str:
    return f" {step}" if step >= 0 else str(step)


def _grid(x_axis: Axis, y_axis: Axis) -> Iterator[Markup]:
    for value in y_axis.ticks():
        y = _TOP + round((1 - y_axis.at(value)) * _PLOT_HEIGHT)
        yield tag("line", x1=_LEFT, x2=WIDTH - _RIGHT, y1=y, y2=y, class_="grid")
        yield tag("text", y_axis.write(value), x=_LEFT - 6, y=y + 4, class_="tick left")
    for value in x_axis.ticks():
        x = _LEFT + round(x_axis.at(value) * _PLOT_WIDTH)
        yield tag("line", x1=x, x2=x, y1=HEIGHT - _BOTTOM, y2=HEIGHT - _BOTTOM + 4, class_="grid")
        yield tag("text", x_axis.write(value), x=x, y=HEIGHT - 6, class_="tick below")


def _y_range(chart: Chart) -> Axis:
    finite = [(min(each), max(each)) for curve in chart.curves if (each := [y for y in curve.y if math.isfinite(y)])]
    low, high = min((each[0] for each in finite), default=0.0), max((each[1] for each in finite), default=0.0)
    log = low > 0 and math.log10(high) - math.log10(low) > _DECADES
    if log:
        return Axis(low, high, chart.y_format, log=True)
    return _range([low, high], chart.y_format)


def _range(values: Sequence[float], format: Format) -> Axis:
    low, high = min(values, default=0.0), max(values, default=0.0)
    if low == high:
        room = abs(low) / 10 or 0.5
        return Axis(max(low - room, -sys.float_info.max), min(high + room, sys.float_info.max), format)
    return Axis(low, high, format)


def _step(most: float) -> float:
    """The largest round number up to `most`: 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(most)) if most > 0 else 1.0
    return next((factor * power for factor in (5, 2) if factor * power <= most), power)


def number(value: float, step: float) -> str:
    """As many digits as it takes to tell a number from one `step` further."""
    if value and not 1e-4 <= abs(value) < 1e6:
        return f"{value:.6g}" if abs(value) >= step / 2 else "0"
    return f"{value:.{max(0, -math.floor(math.log10(step) + 1e-9)) if step > 0 else 0}f}"


def whole(value: float, step: float) -> str:
    """A number that counts something; nothing between two of those."""
    return str(round(value)) if abs(value - round(value)) < 1e-9 else ""


def duration(value: float, step: float) -> str:
    """Seconds in words."""
    return f"{value:.{max(1, -math.floor(math.log10(step)))}f} s" if 0 < step < 1 else text.duration(value)
