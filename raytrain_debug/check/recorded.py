"""Rules on what a run recorded: what ranks of local mode did that workers of Ray must not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from raytrain_debug.check.finding import Place, Rule, Subject
from raytrain_debug.check.program import show
from raytrain_debug.run.reader import Rank, Run
from raytrain_debug.run.records import ReportRecord


def _counts(subject: Subject) -> Iterator[Place]:
    run = subject.run
    if run is None or not _all_finished(run):
        return
    counts = {rank.rank: len(_last_attempt(rank)) for rank in run.ranks}
    if len(set(counts.values())) < 2:
        return
    most = max(counts.values())
    fewer = min(counts, key=lambda rank: (counts[rank], rank))
    more = min(rank for rank, count in counts.items() if count == most)
    extra = next(rank for rank in run.ranks if rank.rank == more)
    report = _last_attempt(extra)[counts[fewer]]
    file, line = site(report, subject)
    yield Place(
        file,
        line,
        f"in run {run.paths.id} rank {fewer} reported {_times(counts[fewer])}, rank {more} {_times(most)}; report "
        "waits for all workers, so a cluster hangs there",
    )


def _overwritten(subject: Subject) -> Iterator[Place]:
    run = subject.run
    if run is None:
        return
    first: dict[tuple[int, int, str], tuple[int, int]] = {}
    told: set[tuple[str, int, str]] = set()
    for rank in run.ranks:
        for report in rank.reports:
            if report.checkpoint is None:
                continue
            for entry in report.checkpoint.files:
                key = (report.attempt, report.index, entry.path)
                other, size = first.setdefault(key, (rank.rank, entry.size))
                file, line = site(report, subject)
                if size != entry.size and (file, line, entry.path) not in told:
                    told.add((file, line, entry.path))
                    yield Place(
                        file,
                        line,
                        f"in run {run.paths.id} the checkpoints of ranks {other} and {rank.rank} both have "
                        f"{entry.path}, of {size} and {entry.size} bytes; Ray puts the files of all workers into one "
                        "directory, where one of them is left",
                    )


def _all_finished(run: Run) -> bool:
    """Whether every rank came to its end by itself: one that was ended early has reported less for that."""
    return bool(run.ranks) and all(
        rank.last_exit is not None and rank.last_exit.exit_code == 0 and not rank.damaged for rank in run.ranks
    )


def _last_attempt(rank: Rank) -> list[ReportRecord]:
    end = rank.last_exit
    return [report for report in rank.reports if end is None or report.attempt == end.attempt]


def site(report: ReportRecord, subject: Subject) -> tuple[str, int]:
    """File and line of the call that made a report; the script as a whole when that is not known."""
    if report.where is None:
        return subject.program.script.shown, 0
    return show(Path(report.where.file)), report.where.line


def _times(count: int) -> str:
    return {0: "never", 1: "once"}.get(count, f"{count} times")


RULES = (
    Rule(
        "report-counts",
        "any",
        "ranks of the run that reported different numbers of times",
        "let every rank report as often: report in loops that are of the same length on all ranks",
        _counts,
    ),
    Rule(
        "checkpoint-overwritten",
        "any",
        "ranks of the run whose checkpoints have a file of the same name, but not of the same size",
        'put the rank into the name of what differs: f"part-{rank}.pt"; let one rank save what all have',
        _overwritten,
    ),
)
