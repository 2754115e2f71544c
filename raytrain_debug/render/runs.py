"""The list of recorded runs for a person."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.text import Text

from raytrain_debug.postmortem.overview import Overview
from raytrain_debug.postmortem.pruning import Pruning
from raytrain_debug.render import text
from raytrain_debug.run.words import counted

_COLUMNS = ("run", "started", "took", "mode", "script", "ranks", "size", "state")


def render(runs: Sequence[Overview], now: float) -> RenderableType:
    """A line a run where the width allows, else two; `now` in Unix seconds, for how long running ones have taken."""
    rows = [_row(run, now) for run in runs]
    narrow = [
        (name + Text(f"  {size}  ") + state + Text("\n  ") + script + Text(f", {mode}, {ranks} ranks, {started}"),)
        for name, started, _, mode, script, ranks, size, state in rows
    ]
    return text.Fitting(text.table(_COLUMNS, rows, right=("ranks", "size")), text.table(("run",), narrow))


def render_pruning(pruning: Pruning) -> Iterator[RenderableType]:
    """Each run with its size and what became of it, and how much room that made."""
    gone = "would be removed" if pruning.dry else "removed"
    rows = [
        (Text(each.run), Text(text.size(each.size)), text.plain(f"kept: {each.why}" if each.why else gone))
        for each in pruning.runs
    ]
    if rows:
        yield text.table(("run", "size", ""), rows, right=("size",))
    count = len(pruning.removed)
    yield text.plain(f"{counted(count, 'run')} {gone}, {text.size(pruning.freed)}")


def _row(run: Overview, now: float) -> tuple[Text, ...]:
    end = run.ended if run.ended is not None else now if run.state == "running" else None
    state = text.word(run.state)
    if run.first_failure is not None:
        failure = run.first_failure
        what = failure.exception or failure.signal or f"exit {failure.exit_code}"
        state.append_text(text.plain(f": rank {failure.rank}, {_first_line(what)}"))
    elif run.state == "unknown":
        state.append(": run.json is missing or damaged")
    return (
        Text(run.run),
        Text(text.clock(run.started) if run.started is not None else "-"),
        Text(text.duration(end - run.started) if end is not None and run.started is not None else "-"),
        text.plain(run.mode or "-"),
        text.plain(run.script or "-"),
        Text(str(run.world_size)),
        Text(text.size(run.size)),
        state,
    )


def _first_line(what: str) -> str:
    line = (what.splitlines() or [""])[0]
    return line if len(line) <= 80 else line[:79] + "…"
