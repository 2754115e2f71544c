"""Reads a run directory back, live or dead, and never fails on what a kill or a full disk left in it.

A missing or half-written file reads as None, an unreadable line is skipped and counted in `Rank.damaged`. A last line
without its end belongs to a writer that is at work or was killed; it is no record and no damage.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from raytrain_debug.run import codec
from raytrain_debug.run.fault import read_fault
from raytrain_debug.run.layout import RankPaths, RunPaths
from raytrain_debug.run.records import (
    CheckpointRecord,
    CoreRecord,
    ExitRecord,
    ProcessRecord,
    ReportRecord,
    RunRecord,
    ThreadExceptionRecord,
    from_dict,
)

_BLOCK = 64 * 1024
_READ_ERRORS = (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError)

T = TypeVar("T")


@dataclass(frozen=True)
class Rank:
    """What one rank left; `reports` holds those that were asked for, `report_count` counts all that were made."""

    rank: int
    paths: RankPaths
    process: ProcessRecord | None
    reports: tuple[ReportRecord, ...]
    core: CoreRecord | None
    exits: tuple[ExitRecord, ...]
    report_count: int = 0
    damaged: int = 0

    @property
    def last_report(self) -> ReportRecord | None:
        """The newest report."""
        return self.reports[-1] if self.reports else None

    @cached_property
    def checkpoint_report(self) -> ReportRecord | None:
        """The newest report that came with a checkpoint; later metrics-only reports do not erase it."""
        for report in reversed(self.reports):
            if report.checkpoint is not None:
                return report
        if len(self.reports) == self.report_count:
            return None
        return next(_backwards(self.paths.reports, only_checkpoints=True), None)

    @property
    def last_checkpoint(self) -> CheckpointRecord | None:
        """The checkpoint of `checkpoint_report`."""
        report = self.checkpoint_report
        return report.checkpoint if report is not None else None

    @property
    def snapshot(self) -> Path | None:
        """The absolute path of the last checkpoint's snapshot; None when none was kept or it is gone."""
        checkpoint = self.last_checkpoint
        return self.snapshot_of(checkpoint) if checkpoint is not None else None

    def snapshot_of(self, checkpoint: CheckpointRecord) -> Path | None:
        """The absolute path of `checkpoint`'s snapshot; None when none was kept or it has been removed since."""
        if checkpoint.snapshot is None:
            return None
        path = (self.paths.directory / checkpoint.snapshot).absolute()
        return path if path.is_dir() else None

    def core_of(self, attempt: int) -> CoreRecord | None:
        """What the rank left at the end of that attempt."""
        if self.core is not None and self.core.attempt == attempt:
            return self.core
        for path in (self.paths.core, self.paths.earlier_core(attempt)):
            core = read_record(path, CoreRecord)
            if core is not None and core.attempt == attempt:
                return core
        end = next((exit for exit in self.exits if exit.attempt == attempt), None)
        return read_fault(self.paths.fault(attempt), attempt, end.pid) if end is not None else None

    @cached_property
    def thread_exceptions(self) -> tuple[ThreadExceptionRecord, ...]:
        """Exceptions that ended threads of the rank, oldest first."""
        return thread_exceptions(self.paths)

    @property
    def last_exit(self) -> ExitRecord | None:
        """How the newest attempt of this rank ended; None while it runs or when no launcher saw it."""
        return max(self.exits, key=lambda exit: (exit.attempt, exit.order), default=None)


@dataclass(frozen=True)
class Run:
    """A run as it lies on disk; `ranks` in rank order, those that are expected but left nothing yet included."""

    paths: RunPaths
    record: RunRecord | None
    ranks: tuple[Rank, ...]

    def rank(self, rank: int) -> Rank | None:
        """The rank of that number, or None."""
        return next((each for each in self.ranks if each.rank == rank), None)


def load_run(paths: RunPaths, last: int | None = None) -> Run:
    """Read the run at `paths`; `last` bounds how many of each rank's newest reports are read (None reads all).

    Never raises for what lies in the directory: what cannot be read is absent from the result.
    """
    record = read_record(paths.record, RunRecord)
    exits = record.exits if record is not None else ()
    numbers = _rank_directories(paths) | {exit.rank for exit in exits}
    if record is not None and record.launcher is not None:
        elsewhere = record.launcher.hosts  # ranks of other nodes leave what they leave there
        numbers |= {int(rank) for rank in record.launcher.ports if rank.isdecimal() and rank not in elsewhere}
    ranks = (
        load_rank(paths.rank(number), number, tuple(exit for exit in exits if exit.rank == number), last)
        for number in sorted(numbers)
    )
    return Run(paths, record, tuple(ranks))


def load_rank(paths: RankPaths, rank: int, exits: tuple[ExitRecord, ...] = (), last: int | None = None) -> Rank:
    """Read one rank's directory; see `load_run` for `last`."""
    damaged = 0
    if last is None:
        reports, damaged = _all_records(paths.reports, ReportRecord)
        count = reports[-1].index + 1 if reports else 0
    else:
        count, reports = tail_reports(paths, last)
    process = read_record(paths.process, ProcessRecord)
    return Rank(rank, paths, process, reports, _core(paths, process), exits, count, damaged)


def tail_reports(paths: RankPaths, n: int) -> tuple[int, tuple[ReportRecord, ...]]:
    """How many reports the rank made, and its newest `n` readable ones, oldest first.

    Reads the end of the file only, so the cost does not grow with the number of reports.
    """
    newest: list[ReportRecord] = []
    for report in _backwards(paths.reports):
        newest.append(report)
        if len(newest) >= max(n, 1):
            break
    count = newest[0].index + 1 if newest else 0
    return count, tuple(reversed(newest[:n])) if n > 0 else ()


def thread_exceptions(paths: RankPaths) -> tuple[ThreadExceptionRecord, ...]:
    """Exceptions that ended threads of the rank, oldest first."""
    return _all_records(paths.exceptions, ThreadExceptionRecord)[0]


def newest_first(paths: RankPaths, only_checkpoints: bool = False) -> Iterator[ReportRecord]:
    """The rank's readable reports, or those with a checkpoint, newest first; read from the file's end as asked for."""
    return _backwards(paths.reports, only_checkpoints)


def read_record(path: Path, cls: type[T]) -> T | None:
    """The record of type `cls` in the JSON file `path`; None when the file is missing, half written or of no use."""
    try:
        return from_dict(cls, codec.loads(path.read_bytes()))
    except _READ_ERRORS:
        return None


def _core(paths: RankPaths, process: ProcessRecord | None) -> CoreRecord | None:
    """What the rank's newest process left, or that of an earlier attempt."""
    core = read_record(paths.core, CoreRecord)
    if process is not None and (core is None or core.pid != process.pid):
        return read_fault(paths.fault(process.attempt), process.attempt, process.pid) or core
    return core


def _rank_directories(paths: RunPaths) -> set[int]:
    try:
        return {int(name) for name in os.listdir(paths.ranks) if name.isdecimal() and name.isascii()}
    except OSError:
        return set()


def _parse(line: bytes, cls: type[T]) -> T | None:
    try:
        return from_dict(cls, codec.loads(line))
    except _READ_ERRORS:
        return None


def _all_records(path: Path, cls: type[T]) -> tuple[tuple[T, ...], int]:
    """The records of the file's complete lines, and how many lines are none."""
    records: list[T] = []
    damaged = 0
    try:
        with open(path, "rb") as file:
            for line in file:
                if not line.endswith(b"\n"):
                    break
                record = _parse(line, cls)
                if record is not None:
                    records.append(record)
                elif line.strip():
                    damaged += 1
    except OSError:
        pass
    return tuple(records), damaged


def _backwards(path: Path, only_checkpoints: bool = False) -> Iterator[ReportRecord]:
    """The readable reports of the file, newest first, read from its end in blocks."""
    for line in _lines_backwards(path):
        # Every checkpoint has a source: looking for it spares parsing the reports that cannot have one.
        report = _parse(line, ReportRecord) if line and (not only_checkpoints or b'"source":' in line) else None
        if report is not None and (not only_checkpoints or report.checkpoint is not None):
            yield report


def _lines_backwards(path: Path) -> Iterator[bytes]:
    """Complete lines of the file, last first; what follows the last newline is left out."""
    try:
        with open(path, "rb") as file:
            position = file.seek(0, os.SEEK_END)
            pending: list[bytes] = []  # pieces of the line being collected, last piece first
            seen_end = False
            while position > 0:
                size = min(_BLOCK, position)
                position -= size
                file.seek(position)
                first, *rest = file.read(size).split(b"\n")
                while rest:
                    line = rest.pop() + b"".join(reversed(pending))
                    pending = []
                    if seen_end:
                        yield line
                    seen_end = True
                pending.append(first)
            if seen_end:
                yield b"".join(reversed(pending))
    except OSError:
        return
