"""Threads of ranks that ended with an exception, each exception once with its traceback."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType
from rich.padding import Padding

from raytrain_debug.across.threads import ThreadEnd, place_of, thread_ends
from raytrain_debug.render import text
from raytrain_debug.run.ranks import name_ranks
from raytrain_debug.run.reader import Rank, Run
from raytrain_debug.run.words import counted, joined

TITLE = "Threads that ended with an exception"
MOST = 20  # exceptions shown


def of_ranks(ranks: Sequence[Rank]) -> list[ThreadEnd]:
    """What ended threads of `ranks`, in all attempts."""
    return thread_ends((rank.rank, record) for rank in ranks for record in rank.thread_exceptions)


def render(run: Run, ranks: Sequence[Rank]) -> list[RenderableType]:
    """The section of a post-mortem; nothing where no thread ended so."""
    ends = of_ranks(ranks)
    cwd = run.record.cwd if run.record is not None else ""
    parts: list[RenderableType] = []
    for end in ends[:MOST]:
        said = f"{whose(end)}: {end.headline}{place_of(end, cwd)}"
        parts.append(text.plain(said) + text.plain(when(end, run), "dim"))
        parts.append(Padding(text.plain("\n".join(end.exception.traceback)), (0, 0, 0, 2), expand=False))
    if (more := left_out(ends)) is not None:
        parts.append(text.plain(more, "dim"))
    return text.titled(TITLE, *parts) if parts else []


def whose(end: ThreadEnd) -> str:
    """`rank 1, thread 'loader'`."""
    return f"{name_ranks(end.ranks)}, thread{'' if len(end.threads) == 1 else 's'} {end.names}"


def when(end: ThreadEnd, run: Run) -> str:
    """`, 12 s after the start, attempt 1`, of the first of them."""
    first = end.threads[0][1].time
    after = f", {text.duration(first - run.record.started)} after the start" if run.record is not None else ""
    if end.attempts == [0]:
        return after
    return f"{after}, attempt{'' if len(end.attempts) == 1 else 's'} {joined([str(each) for each in end.attempts])}"


def left_out(ends: Sequence[ThreadEnd]) -> str | None:
    """How many of `ends` are not shown."""
    more = len(ends) - MOST
    return f"and {counted(more, 'other exception')} (--json has all)" if more > 0 else None
