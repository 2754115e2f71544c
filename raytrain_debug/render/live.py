"""The live table of a job's ranks: a row for ranks that are alike, what stands out in red, readable at 64 ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from rich.console import RenderableType
from rich.text import Text

from raytrain_debug.across.hang import place_in_words
from raytrain_debug.across.progress import RankProgress, Row
from raytrain_debug.across.stacks import short_ranks, wait_in_words
from raytrain_debug.render import text

_COLUMNS = ("ranks", "state", "doing", "for", "reports", "last", "reports/s", "collectives/s", "memory")
_RIGHT = ("for", "reports", "last", "reports/s", "collectives/s", "memory")
_STILL = 2.0  # seconds


def render(rows: Sequence[Row], head: str, cwd: str = "") -> list[RenderableType]:
    """A headline and the table, without columns that tell nothing: a line a row where that fits, else two."""
    cells = [_cells(row, cwd) for row in rows]
    narrow = [
        (ranks, state + Text(" ") + doing + Text(f" {still}\n") + Text(_small(reports, last, memory), style="dim"))
        for ranks, state, doing, still, reports, last, _, _, memory in cells
    ]
    told = [at for at in range(len(_COLUMNS)) if any(row[at].plain not in ("", "-") for row in cells)]
    wide = text.table([_COLUMNS[at] for at in told], [[row[at] for at in told] for row in cells], right=_RIGHT)
    return [text.plain(head, "dim"), text.Fitting(wide, text.table(("ranks", "state"), narrow))]


def _cells(row: Row, cwd: str) -> tuple[Text, ...]:
    members, first = row.members, row.members[0]
    stands_out = "bold red" if row.remark or row.silent else ""
    doing = _doing(first, cwd, stands_out)
    if row.remark:
        doing.append(f"  ← {row.remark}", style="bold red")
    still = min(member.still for member in members)
    return (
        Text(short_ranks(row.ranks), style=stands_out or "bold"),
        text.word(first.state),
        doing,
        Text(text.duration(still) if still >= _STILL else ""),
        Text(str(first.reports) if first.reports is not None else "-"),
        Text(_span(members, lambda member: member.age, text.duration)),
        Text(_span(members, lambda member: member.report_rate, text.number)),
        Text(_span(members, lambda member: member.collective_rate, text.number)),
        Text(_memory(members)),
    )


def _doing(rank: RankProgress, cwd: str, style: str) -> Text:
    if rank.now is None:
        return text.plain(rank.silent, style)
    stack = rank.now.training
    place = stack.place
    at = f" at {place_in_words(place.file, place.line, cwd)}" if place is not None else ""
    if stack.waiting_in is not None:
        return text.plain(f"{wait_in_words(stack.waiting_in)}{at}", style or "yellow")
    return text.plain(f"{place.function}{at}" if place is not None else "", style)


def _span(
    members: Iterable[RankProgress], value: Callable[[RankProgress], float | None], show: Callable[[float], str]
) -> str:
    """The value of all members, or its range: `1.2` or `1.2-1.4`; a dash when nobody has one."""
    known = [found for member in members if (found := value(member)) is not None]
    if not known:
        return "-"
    low, high = show(min(known)), show(max(known))
    return low if low == high else f"{low}-{high}"


def _memory(members: Iterable[RankProgress]) -> str:
    everyone = list(members)
    host = _span(everyone, lambda member: member.rss, lambda size: text.size(int(size)))
    device = _span(everyone, lambda member: member.gpu_memory, lambda size: text.size(int(size)))
    return host if device == "-" else f"{host}, GPU {device}"


def _small(reports: Text, last: Text, memory: Text) -> str:
    return f"{reports} reports, last {last} ago, {memory}"
