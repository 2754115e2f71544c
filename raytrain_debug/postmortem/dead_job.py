"""A run as a debugger shows it: a thread a rank, named by how it ended, with the stack that it left."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from raytrain_debug.postmortem.causes import core_of
from raytrain_debug.postmortem.liveness import liveness
from raytrain_debug.postmortem.recorded import headline
from raytrain_debug.postmortem.source_text import chain
from raytrain_debug.postmortem.verdict import EXCEPTION, Verdict, verdict
from raytrain_debug.run.reader import Rank, Run
from raytrain_debug.run.records import CoreRecord, ExceptionRecord, FrameRecord


@dataclass(frozen=True)
class DeadFrame:
    """A frame, `outer` to those before it in its stack; or, without a record, a line that says what the next ones are.

    `globals` is the frame of the module that its code stands in, when that is in the same stack. `raised` is the
    exception that came out of it.
    """

    title: str
    record: FrameRecord | None = None
    globals: FrameRecord | None = None
    raised: ExceptionRecord | None = None


@dataclass(frozen=True)
class DeadThread:
    """A thread of a rank, frames innermost first; `exception` is what it died of, `reason` one line on its end."""

    rank: Rank
    name: str
    reason: str
    frames: tuple[DeadFrame, ...]
    exception: ExceptionRecord | None = None


@dataclass(frozen=True)
class DeadJob:
    """The threads of the ranks asked for; `focus` is the one to look at first, the first failure's if it is here."""

    run: Run
    verdict: Verdict
    threads: tuple[DeadThread, ...]
    focus: DeadThread | None
    notes: tuple[str, ...] = field(default=())


def dead_job(run: Run, ranks: tuple[int, ...] | None = None) -> DeadJob:
    """`run` for a debugger; `ranks` are those to show (None: all)."""
    judged = verdict(run, liveness(run))
    chosen = [rank for rank in run.ranks if ranks is None or rank.rank in ranks]
    threads = tuple(thread for rank in chosen for thread in _threads(rank, judged.outcomes[rank.rank]))
    first = judged.first_failure.rank if judged.first_failure is not None else None
    failed = [thread for thread in threads if thread.exception is not None]
    of_first = [thread for thread in threads if thread.rank.rank == first]
    focus = next(iter([*of_first, *failed, *(each for each in threads if each.frames), *threads]), None)
    return DeadJob(run, judged, threads, focus, tuple(note for rank in chosen for note in _notes(rank)))


def last_core(rank: Rank) -> CoreRecord | None:
    """The core of the rank's newest process; None when that left none, though one before it may have."""
    end = rank.last_exit
    if end is not None and rank.process is not None and rank.process.attempt > end.attempt:
        end = None  # the end of a process before it
    return core_of(rank, end)


def _threads(rank: Rank, outcome: str) -> Iterator[DeadThread]:
    core = last_core(rank)
    if core is None:
        yield DeadThread(rank, f"rank {rank.rank}: {outcome}", outcome, tuple(_last_report(rank)))
        if rank.core is not None:
            yield from _threads_of_core(rank, rank.core, f"rank {rank.rank}, attempt {rank.core.attempt}", EXCEPTION)
    else:
        yield from _threads_of_core(rank, core, f"rank {rank.rank}", outcome)


def _threads_of_core(rank: Rank, core: CoreRecord, name: str, outcome: str) -> Iterator[DeadThread]:
    error = core.exception
    how = error.type if error is not None and outcome == EXCEPTION else outcome
    reason = headline(error) if error is not None else outcome
    for number, thread in enumerate(core.threads):
        if number == 0:
            if thread.waiting_in and error is None:
                reason = f"in {thread.waiting_in}"
            yield DeadThread(rank, f"{name}: {how}", reason, tuple(_stack(thread.frames, error)), error)
        elif any(frame.origin == "user" for frame in thread.frames):
            waiting = f"in {thread.waiting_in}" if thread.waiting_in else "was running"
            yield DeadThread(rank, f"{name}, {thread.name}", waiting, tuple(_stack(thread.frames, None)))
    if not core.threads:
        frames = [] if error is None or error.where is None else [_place(error)]
        yield DeadThread(rank, f"{name}: {how}", reason, (*frames, *_last_report(rank)), error)


def _stack(frames: tuple[FrameRecord, ...], error: ExceptionRecord | None) -> Iterator[DeadFrame]:
    """Frames innermost first, then those of each exception that led to this one, below a line that says so."""
    modules = {frame.file: frame for frame in frames if frame.function == "<module>"}
    for number, frame in enumerate(reversed(frames)):
        raised = error if number == 0 else None
        yield DeadFrame(frame.function, frame, modules.get(frame.file), raised)
    for tie, other in chain(error) if error is not None else ():
        yield DeadFrame(f"{tie} {headline(other)}")
        yield from _stack_of_chained(other)


def _stack_of_chained(error: ExceptionRecord) -> Iterator[DeadFrame]:
    modules = {frame.file: frame for frame in error.frames if frame.function == "<module>"}
    for number, frame in enumerate(reversed(error.frames)):
        yield DeadFrame(frame.function, frame, modules.get(frame.file), error if number == 0 else None)


def _place(error: ExceptionRecord) -> DeadFrame:
    """Where an exception came from, of which no more is known."""
    where = error.where
    assert where is not None
    record = FrameRecord(where.file, where.line, where.function, note="only this place was recorded")
    return DeadFrame(where.function, record, raised=error)


def _last_report(rank: Rank) -> Iterator[DeadFrame]:
    """Where a rank without a core was last heard of."""
    report = rank.last_report
    if report is not None and report.where is not None:
        where = report.where
        note = "no frames were left, only that it reported from here"
        yield DeadFrame(
            f"{where.function} (last report)", FrameRecord(where.file, where.line, where.function, note=note)
        )


def _notes(rank: Rank) -> Iterator[str]:
    """What a person has to know before they believe what they see."""
    if rank.core is None:
        return
    for note in rank.core.notes:
        yield f"rank {rank.rank}: {note}"
    for source in rank.core.sources:
        if source.changed:
            yield f"{source.file} was changed while rank {rank.rank} ran: the lines shown may not be those that ran"
