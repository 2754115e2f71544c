"""Words and numbers as the tables of all commands show them; text of the user's is shown, never obeyed."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from raytrain_debug.run import codec
from raytrain_debug.run.words import visible

_MAX_VALUE = 200
_MAX_PAIRS = 50
_BARS = "▁▂▃▄▅▆▇█"
_STYLES = {
    "running": "green",
    "finished": "green",
    "dormant": "green",
    "attached": "cyan",
    "paused": "magenta",
    "waiting": "magenta",
    "starting": "yellow",
    "stopped": "yellow",
    "ended with the job": "yellow",
    "not started": "yellow",
    "unknown": "yellow",
}


class Fitting:
    """Shows the first of `choices`, the widest first, that fits whole, else the last one."""

    def __init__(self, *choices: RenderableType) -> None:
        self.choices = choices

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self._choice(console, options)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement.get(console, options, self._choice(console, options))

    def _choice(self, console: Console, options: ConsoleOptions) -> RenderableType:
        unbounded = options.update(max_width=1_000_000)
        fitting = (
            each for each in self.choices if Measurement.get(console, unbounded, each).maximum <= options.max_width
        )
        return next(fitting, self.choices[-1])


def table(columns: Iterable[str], rows: Iterable[Iterable[Text]], right: Iterable[str] = ()) -> Table:
    """A plain table, one line a row where the width allows; `right` names the columns of numbers."""
    numeric = set(right)
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        made.add_column(Text(column), justify="right" if column in numeric else "left", overflow="fold")
    for row in rows:
        made.add_row(*row)
    return made


def entries(rows: Iterable[tuple[Text, RenderableType]]) -> Table:
    """Labels on the left, what they say on the right."""
    made = Table.grid(padding=(0, 2, 0, 0))
    made.add_column(no_wrap=True)
    made.add_column(overflow="fold")
    for row in rows:
        made.add_row(*row)
    return made


def titled(title: str | Text, *parts: RenderableType) -> list[RenderableType]:
    """A blank line, a bold title, and the parts below it, a little to the right."""
    head = Text("\n") + (Text(title, style="bold") if isinstance(title, str) else title)
    return [head, *(Padding(part, (0, 0, 0, 2), expand=False) for part in parts)]


def plain(value: object, style: str = "") -> Text:
    """`value` as text that does nothing to a terminal: control characters are shown as Python writes them."""
    return Text(visible(str(value)), style=style)


def word(outcome: str) -> Text:
    """A state or outcome in its colour; what is not known to be well is red."""
    return Text(visible(outcome), style=_STYLES.get(outcome, "red"))


def number(value: float | int | None) -> str:
    """Four significant digits; integers whole; a dash for None."""
    if value is None:
        return "-"
    return str(value) if isinstance(value, int) else f"{value:.4g}"


def told_apart(numbers: Sequence[float | int]) -> list[str]:
    """Numbers as `number` shows them; with all their digits where two that differ would read alike."""
    different: dict[str, set[float | int]] = {}
    for value in numbers:
        different.setdefault(number(value), set()).add(value)
    return [
        number(value) if len(different[number(value)]) == 1 or math.isnan(value) else repr(value) for value in numbers
    ]


def bars(counts: Sequence[int]) -> str:
    """A character for each count, from the least bar to the full block for the highest; a blank for none."""
    most = max(counts, default=0)
    return "".join(" " if not count else _BARS[max(-(-count * len(_BARS) // most) - 1, 0)] for count in counts)


def size(count: int) -> str:
    """Bytes in binary units: `512 B`, `1.5 GiB`."""
    amount = float(count)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if amount < 1024 or unit == "TiB":
            break
        amount /= 1024
    return f"{count} B" if unit == "B" else f"{amount:.1f} {unit}"


def duration(seconds: float) -> str:
    """`0.3 s`, `42 s`, `3 min 5 s`, `2 h 10 min`, `4 d 3 h`."""
    if seconds < 10:
        return f"{max(seconds, 0):.1f} s"
    whole = round(seconds)
    for unit, length, next_unit, next_length in (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if whole >= length:
            rest = whole % length // next_length
            return f"{whole // length} {unit}" + (f" {rest} {next_unit}" if rest else "")
    return f"{whole} s"


def clock(moment: float) -> str:
    """Local date and time."""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment))
    except (ValueError, OverflowError, OSError):
        return repr(moment)


def pairs(values: Mapping[str, Any]) -> Text:
    """`loss=0.25 lr=0.001`: keys dimmed; NaN and infinities red; of very many the first, and how many there are."""
    text = Text()
    for key, value in itertools.islice(values.items(), _MAX_PAIRS):
        if text:
            text.append(" ")
        text.append(f"{visible(str(key))}=", style="dim")
        text.append_text(shown(value))
    if len(values) > _MAX_PAIRS:
        text.append(f" … and {len(values) - _MAX_PAIRS} more", style="dim")
    return text


def shown(value: Any) -> Text:
    """A recorded value in few characters: numbers short, described values by their repr, the rest as JSON."""
    if isinstance(value, bool) or value is None:
        return Text(str(value))
    if isinstance(value, float):
        return Text(f"{value:.6g}", style="" if math.isfinite(value) else "bold red")
    if isinstance(value, dict):
        if "$error" in value:
            return plain(f"<{value['$error']}>", "dim")
        if "$type" in value:
            return plain(_bounded(" ".join(str(value.get("repr", value["$type"])).split())))
    if isinstance(value, str) and value and value.isprintable() and " " not in value:
        return Text(_bounded(value))
    return plain(_bounded(codec.dumps(value)))


def _bounded(text: str) -> str:
    return text if len(text) <= _MAX_VALUE else text[: _MAX_VALUE - 1] + "…"
