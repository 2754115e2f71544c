"""Threads of ranks that ended with an exception, for the page."""

from __future__ import annotations

from collections.abc import Sequence

from raytrain_debug.render.html.markup import Markup, join, tag
from raytrain_debug.render.html.places import place
from raytrain_debug.render.threads import MOST, left_out, of_ranks, when, whose
from raytrain_debug.run.reader import Rank, Run


def ended(run: Run, ranks: Sequence[Rank]) -> Markup:
    """An element for each exception, with its traceback; nothing where no thread ended so."""
    ends = of_ranks(ranks)
    cwd = run.record.cwd if run.record is not None else None
    parts: list[Markup | None] = []
    for end in ends[:MOST]:
        where = end.exception.where
        site = (" at ", place(where.file, where.line, cwd), f" in {where.function}") if where is not None else None
        said = tag("p", tag("b", whose(end)), f": {end.headline}", site, tag("span", when(end, run), class_="soft"))
        trace = tag("pre", "\n".join(end.exception.traceback))
        parts += [said, tag("details", tag("summary", "traceback"), trace, class_="frame")]
    more = left_out(ends)
    return join([*parts, tag("p", more, class_="soft") if more is not None else None])
