"""The state of a run's ranks for a person: a line a rank."""

from __future__ import annotations

from rich.console import RenderableType
from rich.text import Text

from raytrain_debug.postmortem.overview import command_of
from raytrain_debug.postmortem.status import RankStatus, RunStatus
from raytrain_debug.postmortem.verdict import short_path
from raytrain_debug.render import text

_COLUMNS = ("rank", "state", "pid", "port", "reports", "last", "metrics")


def render(status: RunStatus, now: float) -> list[RenderableType]:
    """A headline and a line a rank (two where the width is small); `now` in Unix seconds, for ages."""
    run, record = status.run, status.run.record
    head = f"run {run.paths.id}"
    if record is not None:
        head += f"; {command_of(run)}; started {text.duration(now - record.started)} ago"
        if record.ended is not None:
            head += f", ended {text.duration(now - record.ended)} ago"
    cwd = record.cwd if record is not None else None
    rows = [_row(rank, cwd, now) for rank in status.ranks]
    narrow = [
        (
            rank,
            state + Text(f"  pid {pid}  port {port}  ") + Text(f"{reports} reports, {last}\n") + metrics,
        )
        for rank, state, pid, port, reports, last, metrics in rows
    ]
    parts: list[RenderableType] = [text.plain(head, "dim")]
    if status.verdict.state != "running":
        parts.append(text.plain(status.verdict.sentence, "bold"))
    elif not status.answered and record is not None and record.launcher is not None:
        parts.append(Text("The launcher does not answer; states are told by the ranks' processes.", style="yellow"))
    wide = text.table(_COLUMNS, rows, right=("rank", "pid", "port", "reports"))
    return [*parts, text.Fitting(wide, text.table(("rank", "state"), narrow, right=("rank",)))]


def _row(rank: RankStatus, cwd: str | None, now: float) -> tuple[Text, ...]:
    state = text.word(rank.state)
    if rank.where is not None:
        state.append_text(text.plain(f" at {short_path(rank.where.file, cwd)}:{rank.where.line}"))
    if rank.client is not None:
        state.append_text(text.plain(f" by {rank.client}"))
    if rank.node is not None:
        state.append_text(text.plain(f" on {rank.node}"))
    report = rank.last_report
    return (
        Text(str(rank.rank)),
        state,
        Text(str(rank.pid) if rank.pid is not None else "-"),
        Text(str(rank.port) if rank.port is not None else "-"),
        Text(str(rank.reports) if rank.reports is not None else "-"),
        Text(f"{text.duration(now - report.time)} ago" if report is not None else "-"),
        text.pairs(report.metrics) if report is not None else Text("-"),
    )
