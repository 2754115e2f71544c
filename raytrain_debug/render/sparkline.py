"""Numbers as a row of bars, one a rank (or one a few ranks), with NaN and infinities marked."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.text import Text

from raytrain_debug.across.values import Summary
from raytrain_debug.render.text import number

_BARS = "▁▂▃▄▅▆▇█"
_ASCII_BARS = "_.-=+*%#"
_MARKS = {"nan": "×", "inf": "↑", "-inf": "↓"}
_ASCII_MARKS = {"nan": "x", "inf": "^", "-inf": "v"}
_WIDEST = 64


def sparkline(values: Sequence[float], width: int = _WIDEST, ascii_only: bool = False) -> str:
    """At most `width` characters: the lowest value has the lowest bar; equal values have bars of middle height.

    Several values that share a character are shown by the one that is most unlike the average; NaN before all.
    """
    bars, marks = (_ASCII_BARS, _ASCII_MARKS) if ascii_only else (_BARS, _MARKS)
    finite = [value for value in values if math.isfinite(value)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    half = math.fsum(value / 2 / len(finite) for value in finite)  # of the average: so none overflows
    return "".join(
        marks[repr(value)] if not math.isfinite(value) else bars[_height(value, low, high, len(bars))]
        for value in (_striking(part, half) for part in _shared_out(values, max(width, 1)))
    )


class Sparkline:
    """A sparkline as wide as it may be, its marks in red."""

    def __init__(self, values: Sequence[float]) -> None:
        self.values = values

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        row = Text(sparkline(self.values, min(options.max_width, _WIDEST), options.ascii_only), no_wrap=True)
        for at, char in enumerate(row.plain):
            if char in (_ASCII_MARKS if options.ascii_only else _MARKS).values():
                row.stylize("bold red", at, at + 1)
        yield row

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        length = max(1, min(len(self.values), _WIDEST, options.max_width))
        return Measurement(length, length)


def summary(found: Summary) -> Text:
    """`min 0.1  max 0.3  mean 0.2  1 NaN`."""
    alike = found.low != found.high and number(found.low) == number(found.high)
    words = [f"{name} {repr(value) if alike else number(value)}" for name, value in _bounds(found)]
    row = Text("  ".join(words))
    for count, name in ((found.nan, "NaN"), (found.inf, "Inf")):
        if count:
            row.append(f"  {count} {name}" if row else f"{count} {name}", style="bold red")
    return row


def _bounds(found: Summary) -> list[tuple[str, float]]:
    bounds = (("min", found.low), ("max", found.high), ("mean", found.mean))
    return [(name, value) for name, value in bounds if value is not None]


def _height(value: float, low: float, high: float, levels: int) -> int:
    if high <= low:
        return levels // 2 - 1
    # Halved, so that the distance of the largest floats does not overflow.
    part = (value / 2 - low / 2) / (high / 2 - low / 2)
    return min(int(part * levels), levels - 1)


def _shared_out(values: Sequence[float], width: int) -> list[Sequence[float]]:
    if len(values) <= width:
        return [values[at : at + 1] for at in range(len(values))]
    edges = [len(values) * at // width for at in range(width + 1)]
    return [values[start:end] for start, end in itertools.pairwise(edges)]


def _striking(part: Sequence[float], half_average: float) -> float:
    for value in part:
        if math.isnan(value):
            return value
    return max(part, key=lambda value: abs(value / 2 - half_average))
