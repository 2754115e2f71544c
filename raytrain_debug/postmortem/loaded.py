"""A recorded run in Python and notebooks: what `raytrain_debug.load_run` gives.

>>> import raytrain_debug
>>> run = raytrain_debug.load_run()              # the newest run of this directory
>>> run.ranks[1].reports[-1].metrics["loss"]
0.25
>>> run.ranks[1].reports[-1].context["world_size"]
2
>>> weights = run.ranks[0].reports[-1].checkpoint.open()["model.pt"]
>>> sorted(weights)
['bias', 'weight']
>>> weights["weight"].shape
torch.Size([2, 3])
>>> print(run.verdict)
Rank 1 failed first with ValueError: ... in train_func, after 2 reports...
>>> core = run.ranks[1].core
>>> core.reason, core.exception.type
('exception', 'ValueError')
>>> core.frames[-1].function, core.frames[-1].locals["step"]
('train_func', 7)
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raytrain_debug.errors import CheckpointError, NotInRun, RaytrainDebugError
from raytrain_debug.postmortem.liveness import liveness
from raytrain_debug.postmortem.verdict import verdict
from raytrain_debug.run import layout, reader
from raytrain_debug.run.ranks import format_ranks
from raytrain_debug.run.records import (
    CallSite,
    CheckpointRecord,
    CoreRecord,
    ExceptionRecord,
    ExitRecord,
    FileEntry,
    FrameRecord,
    ProcessUsage,
    ReportRecord,
    RunRecord,
    ThreadExceptionRecord,
)
from raytrain_debug.run.words import counted

if TYPE_CHECKING:  # torch and pandas are loaded only by who asks for tensors and frames
    from raytrain_debug.postmortem.compare import Comparison
    from raytrain_debug.postmortem.opened import Kept, OpenCheckpoint


class LoadedRun:
    """A run as it lies on disk at this moment; load it again to see what a live one has written since."""

    def __init__(self, run: reader.Run) -> None:
        self._run = run
        self.ranks = Ranks(LoadedRank(rank) for rank in run.ranks)

    @property
    def id(self) -> str:
        """The run's id, which `--run` takes."""
        return self._run.paths.id

    @property
    def path(self) -> Path:
        """The run's directory."""
        return self._run.paths.directory

    @property
    def record(self) -> RunRecord | None:
        """run.json: argv, times, versions, how processes ended; None when it cannot be read."""
        return self._run.record

    @property
    def verdict(self) -> str:
        """Who failed first and why, and how the others ended, in words."""
        return verdict(self._run, liveness(self._run)).sentence

    def compare(
        self,
        other: LoadedRun | None = None,
        *,
        report: int | None = None,
        reports: tuple[int, int] | None = None,
        ranks: Collection[int] | None = None,
        rtol: float = 0.0,
        atol: float = 0.0,
    ) -> tuple[Comparison, ...]:
        """What differs between the ranks at a report, between two `reports` of a rank, or from an `other` run.

        Each of what comes back has `differs`, `metrics` and `found.tensors`. None takes the newest report whose
        checkpoint is kept; all ranks, and of `reports` the first rank only. Values count as equal up to
        `atol + rtol * |a|`. Raises UsageError and RunNotFound.
        """
        from raytrain_debug.postmortem import compare
        from raytrain_debug.postmortem.differences import Tolerance

        options = compare.Options(tolerance=Tolerance(rtol, atol))
        if other is not None:
            return compare.compare_runs(self._run, other._run, reports or (report, report), ranks, options)
        if reports is not None:
            chosen = ranks if ranks is not None else [rank.rank for rank in self.ranks][:1]
            return tuple(compare.compare_reports(self._run, rank, *reports, options) for rank in chosen)
        return (compare.compare_ranks(self._run, report, ranks, options),)

    def reports_frame(self) -> Any:
        """All reports of all ranks as a pandas DataFrame, a row each, in order of time.

        Columns `rank`, `index`, `attempt`, `time` (UTC), `interval` (seconds), `rss` (bytes), and a column for each
        metric, nested ones by dotted name. A metric named as one of those is `metrics.<name>`. Raises
        RaytrainDebugError without pandas.
        """
        try:
            import pandas
        except ImportError:
            raise RaytrainDebugError("reports_frame() needs pandas", "pip install pandas") from None
        rows = [_row(rank.rank, report) for rank in self.ranks for report in rank.reports]
        rows.sort(key=lambda row: (row["time"], row["rank"]))
        frame = pandas.DataFrame(rows, columns=None if rows else list(_COLUMNS))
        frame["time"] = pandas.to_datetime(frame["time"], unit="s", utc=True)
        return frame

    def __repr__(self) -> str:
        return f"<run {self.id}, {counted(len(self.ranks), 'rank')}>"


class Ranks(Sequence["LoadedRank"]):
    """The ranks of a run, had by their number; iterates over the ranks themselves, in order."""

    def __init__(self, ranks: Iterator[LoadedRank]) -> None:
        self._by_number = {rank.rank: rank for rank in ranks}

    def __getitem__(self, number: Any) -> Any:
        if isinstance(number, int) and number in self._by_number:
            return self._by_number[number]
        there = format_ranks(self._by_number) or "none"
        raise NotInRun(f"there is no rank {number!r} in this run", f"there is {there}")

    def __iter__(self) -> Iterator[LoadedRank]:
        return iter(self._by_number.values())

    def __len__(self) -> int:
        return len(self._by_number)

    def __repr__(self) -> str:
        return f"<ranks {format_ranks(self._by_number)}>"


class LoadedRank:
    """One rank of a run."""

    def __init__(self, rank: reader.Rank) -> None:
        self._rank = rank
        self.reports = tuple(_report(rank, each) for each in rank.reports)

    @property
    def rank(self) -> int:
        """Its number."""
        return self._rank.rank

    @property
    def path(self) -> Path:
        """Its directory."""
        return self._rank.paths.directory

    @property
    def exit(self) -> ExitRecord | None:
        """How its newest process ended; None while it runs, or when no launcher saw it."""
        return self._rank.last_exit

    @property
    def checkpoint(self) -> LoadedCheckpoint | None:
        """The last one it reported; later reports without a checkpoint do not erase it."""
        return next((each.checkpoint for each in reversed(self.reports) if each.checkpoint is not None), None)

    @cached_property
    def core(self) -> LoadedCore | None:
        """What it left at its death; None when it left nothing."""
        return LoadedCore(self._rank, self._rank.core) if self._rank.core is not None else None

    @property
    def thread_exceptions(self) -> tuple[ThreadExceptionRecord, ...]:
        """Exceptions that ended threads of it, but not itself."""
        return self._rank.thread_exceptions

    def __repr__(self) -> str:
        return f"<rank {self.rank}, {counted(len(self.reports), 'report')}>"


@dataclass(frozen=True)
class LoadedReport:
    """One `ray.train.report`: `time` in Unix seconds, `interval` in seconds since the last of its attempt."""

    rank: int
    index: int
    attempt: int
    time: float
    interval: float | None
    metrics: Mapping[str, Any]
    context: Mapping[str, Any]
    checkpoint: LoadedCheckpoint | None
    where: CallSite | None
    process: ProcessUsage

    def __repr__(self) -> str:
        checkpoint = "" if self.checkpoint is None else ", with a checkpoint"
        return f"<report {self.index} of rank {self.rank}: {dict(self.metrics)}{checkpoint}>"


@dataclass(frozen=True)
class LoadedCheckpoint:
    """A reported checkpoint: `source` is where the script had it, `path` our copy (None when there is none any more).

    `files` are what was reported, `kept` how it was, or why it was not: see docs/run-directory.md.
    """

    source: str
    path: Path | None
    files: tuple[FileEntry, ...]
    kept: str

    def open(self, unsafe: bool = False) -> OpenCheckpoint:
        """Its files by path, each a mapping of names to tensors that are loaded (mapped, on the CPU) when asked for.

        A file in no known format is its Path. `unsafe` runs code from pickles that safe loading refuses. Raises
        CheckpointError when there is no copy, and on access to a file that cannot be read.
        """
        from raytrain_debug.postmortem.opened import OpenCheckpoint, OpenFiles

        if self.path is None:
            raise CheckpointError(
                f"there is no copy of this checkpoint ({_why_none(self.kept)}); the script had it at {self.source}",
                "keep more of them with: launch --keep-checkpoints K",
            )
        return OpenCheckpoint(self.path, OpenFiles(unsafe))


class LoadedCore:
    """What a rank left at its death: see CoreRecord, which `record` is."""

    def __init__(self, rank: reader.Rank, record: CoreRecord) -> None:
        self.record = record
        self._path = rank.paths.directory / record.tensors if record.tensors is not None else None

    @property
    def reason(self) -> str:
        """ "exception", "ended" (by the launcher), or "signal"."""
        return self.record.reason

    @property
    def exception(self) -> ExceptionRecord | None:
        """What ended the rank."""
        return self.record.exception

    @property
    def waiting_in(self) -> str | None:
        """What the main thread waited in: "all_reduce", "DataLoader next"."""
        return self.record.waiting_in

    @cached_property
    def frames(self) -> tuple[LoadedFrame, ...]:
        """The frames of the thread that died, else of the main thread; outermost first."""
        return self.threads[0] if self.threads else ()

    @cached_property
    def threads(self) -> tuple[tuple[LoadedFrame, ...], ...]:
        """The frames of all threads, in the order of `record.threads`."""
        kept = self._kept
        return tuple(tuple(LoadedFrame(frame, kept) for frame in thread.frames) for thread in self.record.threads)

    @cached_property
    def _kept(self) -> Kept:
        from raytrain_debug.postmortem.opened import Kept, OpenFiles

        return Kept(self._path, OpenFiles())

    def __repr__(self) -> str:
        error = self.exception
        return f"<core: {self.reason if error is None else f'{error.type}: {error.message}'}>"


class LoadedFrame:
    """A frame of a core: see FrameRecord, which `record` is."""

    def __init__(self, record: FrameRecord, kept: Kept) -> None:
        self.record = record
        self.locals: Mapping[str, Any] = Locals(record, kept)

    @property
    def file(self) -> str:
        return self.record.file

    @property
    def line(self) -> int:
        return self.record.line

    @property
    def function(self) -> str:
        return self.record.function

    def __repr__(self) -> str:
        return f"<{self.function} at {self.file}:{self.line}>"


class Locals(Mapping[str, Any]):
    """A frame's variables: values where the core has all of them (tensors too), else what describes them."""

    def __init__(self, record: FrameRecord, kept: Kept) -> None:
        self._described = record.locals
        self._kept = kept

    def __getitem__(self, name: str) -> Any:
        from raytrain_debug.postmortem.recorded import valued

        return valued(self._described[name], self._kept)

    def __iter__(self) -> Iterator[str]:
        return iter(self._described)

    def __len__(self) -> int:
        return len(self._described)

    def __repr__(self) -> str:
        return "{" + ", ".join(f"{name}: {value.text}" for name, value in self._described.items()) + "}"


def load(name: str | None = None) -> LoadedRun:
    """The run of that id (a unique start of it will do) or directory; None for the newest. Raises RunNotFound."""
    return LoadedRun(reader.load_run(layout.find_run(name)))


_COLUMNS = ("rank", "index", "attempt", "time", "interval", "rss")


def _why_none(kept: str) -> str:
    """Why there is no copy of a checkpoint that was `kept` so."""
    return "it made room for newer ones" if kept in ("copy", "hard links") else f"kept: {kept}"


def _row(rank: int, report: LoadedReport) -> dict[str, Any]:
    values = (rank, report.index, report.attempt, report.time, report.interval, report.process.rss)
    row: dict[str, Any] = dict(zip(_COLUMNS, values, strict=True))
    for name, value in _flat(report.metrics):
        if isinstance(value, str):  # pandas takes no lone surrogates
            value = value.encode(errors="backslashreplace").decode()
        row[f"metrics.{name}" if name in _COLUMNS else name] = value
    return row


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping) and not any(str(key).startswith("$") for key in value):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _report(rank: reader.Rank, record: ReportRecord) -> LoadedReport:
    checkpoint = record.checkpoint
    return LoadedReport(
        rank.rank,
        record.index,
        record.attempt,
        record.time,
        record.interval,
        record.metrics,
        record.context,
        None if checkpoint is None else _checkpoint(rank, checkpoint),
        record.where,
        record.process,
    )


def _checkpoint(rank: reader.Rank, record: CheckpointRecord) -> LoadedCheckpoint:
    return LoadedCheckpoint(record.source, rank.snapshot_of(record), record.files, record.kept)
