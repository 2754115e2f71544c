"""The core of a rank: its exception's frames, or all threads' as they stand, with described locals; within seconds.

A first, small core.json is written at once, so that whatever goes wrong afterwards leaves at least that.
"""

from __future__ import annotations

import linecache
import os
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from raytrain_debug.run import codec, layout, writer
from raytrain_debug.run.reader import read_record
from raytrain_debug.run.records import (
    CoreRecord,
    ExceptionRecord,
    FrameRecord,
    SourceRecord,
    ThreadRecord,
    to_sparse_dict,
)
from raytrain_debug.shim import callsite, exceptions, flight_recorder, frames
from raytrain_debug.shim.bounded import Helper
from raytrain_debug.shim.evaluate import variables
from raytrain_debug.shim.exceptions import Taken
from raytrain_debug.shim.frames import Position
from raytrain_debug.shim.kept import Keeper
from raytrain_debug.shim.structure import is_plain_variable
from raytrain_debug.shim.values import FULL, SHALLOW, Describer
from raytrain_debug.shim.waits import find_wait

DEFAULT_BUDGET = 64 << 20
"""Bytes of tensors kept by a rank."""

_TENSORS_UNTIL, _VALUES_UNTIL = 1.5, 4.0  # seconds from the start of a dump; what is left is for writing
_MAX_FRAMES = 200  # of a thread
_OUTERMOST = 50  # of which are at the outer end
_MAX_THREADS = 100
_AROUND = 4  # source lines before and after a frame's own
_MAX_SOURCE = 1 << 20  # bytes of a source file that is kept
_MAX_SOURCES = 50
_ORIGINS = {
    callsite.USER: "user",
    callsite.PACKAGE: "package",
    callsite.FRAMEWORK: "framework",
    callsite.PLUMBING: "plumbing",
}


@dataclass(frozen=True)
class Whose:
    """Which rank the core is of, and what its tensors may take on disk."""

    paths: layout.RankPaths
    attempt: int
    started: float  # Unix seconds, of the process
    budget: int = DEFAULT_BUDGET


def of_exception(whose: Whose, error: BaseException, thread: threading.Thread) -> None:
    """Write the core of a rank that `error` is ending in `thread`. Raises OSError when it cannot be written."""
    dump = _Dump(whose, "exception")
    taken = dump.helped(lambda: exceptions.take(error))
    if taken is None:
        taken = Taken(error, type(error).__qualname__, "<its message took too long>", None, ())
        taken.positions = exceptions.positions_of(error.__traceback__)
        taken.where = exceptions.last_user_site(taken.positions)
    else:
        dump.printed = dump.helped(lambda: exceptions.printed(error)) or ()
    dump.first(taken)
    threads = [_Thread(thread.name, thread is frames.training_thread(), taken.positions)]
    dump.write(threads + _standing(without=thread.ident), taken)


def of_threads(whose: Whose) -> None:
    """Write the core of a rank that is about to be ended: what all its threads do at this moment."""
    dump = _Dump(whose, "ended")
    dump.first(None)
    dump.write(_standing(), None)


def of_thread_exception(error: BaseException, seconds: float = 2.0) -> ExceptionRecord:
    """An exception that has ended a thread, but not the rank, with its frames described."""
    taken = exceptions.take(error)
    with Describer(seconds, values=2_000) as describer:
        return _Builder(describer).exception(taken, exceptions.printed(error), own_frames=True)


@dataclass(frozen=True)
class _Thread:
    name: str
    is_main: bool
    positions: Sequence[Position]
    waiting_in: str | None = None


def _standing(without: int | None = None) -> list[_Thread]:
    """All threads of the user's, as they stand, the training thread first."""
    known = {thread.ident: thread for thread in threading.enumerate()}
    main = frames.training_thread().ident
    pending = flight_recorder.pending()
    found = []
    for ident in sorted(sys._current_frames(), key=lambda each: each != main)[:_MAX_THREADS]:
        thread = known.get(ident)
        if ident == without or frames.is_ours(thread) or ident == threading.get_ident():
            continue
        positions = frames.positions(ident)
        wait = find_wait(positions, pending if ident == main else ())
        name = thread.name if thread is not None else "not started by Python"
        found.append(_Thread(name, ident == main, positions, wait.label if wait is not None else None))
    return found


class _Dump:
    """One core being written, and the time it has."""

    def __init__(self, whose: Whose, reason: str) -> None:
        self.printed: tuple[str, ...] = ()
        self._whose = whose
        self._reason = reason
        self._began = time.monotonic()
        self._time = time.time()
        self._notes: list[str] = []
        self._helper = Helper("raytrain_debug core")

    def helped(self, function: Any) -> Any:
        """What `function` returns; None when it raises or takes too long."""
        try:
            return self._helper.call(function, 0.5)
        except Exception as error:
            self._notes.append(f"{type(error).__name__}: {error}")
            return None

    def first(self, taken: Taken | None) -> None:
        """Write what is known without looking at values."""
        paths = self._whose.paths
        _put_aside(paths, self._whose.attempt)
        exception = None if taken is None else ExceptionRecord(taken.type, taken.message, taken.where, self.printed)
        self._replace(self._record(exception, (), (), None))

    def write(self, threads: list[_Thread], taken: Taken | None) -> None:
        """Write it all."""
        chained = [each for each in taken.tree() if each is not taken] if taken is not None else []
        stacks = [threads[0].positions if threads else (), *(each.positions for each in chained)]
        stacks += [each.positions for each in threads[1:]]
        keeper = self._keep(stacks)
        left = self._began + _VALUES_UNTIL - time.monotonic()
        with Describer(left, kept=keeper.names) as describer:
            builder = _Builder(describer)
            builder.look(stacks)
            records = tuple(
                ThreadRecord(each.name, each.is_main, builder.frames(each.positions), each.waiting_in)
                for each in threads
            )
            exception = builder.exception(taken, self.printed) if taken is not None else None
            if describer.exhausted:
                self._notes.append("some values were left out: there were too many, or they took too long")
        self._notes += builder.notes
        sources = _keep_sources(self._whose, stacks)
        tensors = "core/tensors.safetensors" if keeper.names else None
        self._replace(self._record(exception, records, sources, tensors))
        self._helper.close()

    def _keep(self, stacks: list[Sequence[Position]]) -> Keeper:
        keeper = Keeper(self._whose.budget)
        if self._whose.budget <= 0:
            return keeper
        own = [each for stack in stacks for each in reversed(frames.user_positions(_window(stack)))]
        deadline = self._began + _TENSORS_UNTIL

        def keep() -> int:
            keeper.choose((each.function, _variables(each)) for each in own)
            return keeper.write(self._whose.paths.core_tensors, deadline)

        try:
            self._helper.call(keep, _TENSORS_UNTIL)
        except Exception as error:
            self._notes.append(f"no tensors were kept: {type(error).__name__}: {error}")
            return Keeper(0)
        if keeper.left_out:
            self._notes.append(
                f"tensors that were not kept, for want of room in {self._whose.budget >> 20} MiB (--core-budget): "
                f"{keeper.left_out}"
            )
        return keeper

    def _record(
        self,
        exception: ExceptionRecord | None,
        threads: tuple[ThreadRecord, ...],
        sources: tuple[SourceRecord, ...],
        tensors: str | None,
    ) -> CoreRecord:
        return CoreRecord(
            time=self._time,
            attempt=self._whose.attempt,
            pid=os.getpid(),
            exception=exception,
            reason=self._reason,
            threads=threads,
            tensors=tensors,
            sources=sources,
            notes=tuple(self._notes),
            seconds=round(time.monotonic() - self._began, 3),
        )

    def _replace(self, record: CoreRecord) -> None:
        writer.replace_file(self._whose.paths.core, codec.dumps(to_sparse_dict(record)) + "\n")


@dataclass
class _Builder:
    """Makes records of frames and exceptions; a frame that is met twice is described once."""

    describer: Describer
    notes: list[str] = field(default_factory=list)
    _made: dict[tuple[int, int], FrameRecord] = field(default_factory=dict)

    def look(self, stacks: Iterable[Sequence[Position]]) -> None:
        """Describe the user's frames before all others, innermost first: time and room may not be enough for all."""
        for stack in stacks:
            for each in reversed(frames.user_positions(_window(stack))):
                self._frame(each, own=True)

    def frames(self, positions: Sequence[Position]) -> tuple[FrameRecord, ...]:
        if len(positions) > _MAX_FRAMES:
            self.notes.append(f"{len(positions) - _MAX_FRAMES} frames were left out after frame {_OUTERMOST}")
        return tuple(self._frame(each, own=False) for each in _window(positions))

    def exception(self, taken: Taken, printed: tuple[str, ...] = (), own_frames: bool = False) -> ExceptionRecord:
        return ExceptionRecord(
            taken.type,
            taken.message,
            taken.where,
            traceback=printed,
            notes=taken.notes,
            cause=self.exception(taken.cause, own_frames=True) if taken.cause is not None else None,
            context=self.exception(taken.context, own_frames=True) if taken.context is not None else None,
            members=tuple(self.exception(each, own_frames=True) for each in taken.members),
            frames=self.frames(taken.positions) if own_frames else (),
            attributes=self.describer.variables(taken.fields, SHALLOW),
        )

    def _frame(self, position: Position, own: bool) -> FrameRecord:
        key = id(position.frame), position.lasti
        if key not in self._made:
            first, lines = _source(position)
            self._made[key] = FrameRecord(
                position.file,
                position.line,
                position.function,
                position.module,
                _ORIGINS[position.origin],
                first,
                lines,
                self.describer.variables(_variables(position), FULL if own else SHALLOW),
            )
        return self._made[key]


def _window(positions: Sequence[Position]) -> Sequence[Position]:
    """The outermost and the innermost frames, when there are too many: of a recursion without end."""
    if len(positions) <= _MAX_FRAMES:
        return positions
    return [*positions[:_OUTERMOST], *positions[_OUTERMOST - _MAX_FRAMES :]]


def _variables(position: Position) -> Mapping[str, Any]:
    """The frame's variables that a person would look at."""
    try:
        found = variables(position.frame)
    except Exception:
        return {}
    in_module = position.function == "<module>"
    return {name: value for name, value in found.items() if is_plain_variable(name, value, in_module)}


def _source(position: Position) -> tuple[int, tuple[str, ...]]:
    """The number of the first line, and the lines around the frame's own."""
    lines = linecache.getlines(position.code.co_filename, position.frame.f_globals)
    first = max(position.line - _AROUND, 1)
    return first, tuple(line.rstrip("\n")[:1_000] for line in lines[first - 1 : position.line + _AROUND])


def _keep_sources(whose: Whose, stacks: Iterable[Sequence[Position]]) -> tuple[SourceRecord, ...]:
    """Copy the source files of the user's frames."""
    kept: dict[str, SourceRecord] = {}
    for stack in stacks:
        for each in frames.user_positions(stack):
            if each.file in kept or len(kept) >= _MAX_SOURCES:
                continue
            text = "".join(linecache.getlines(each.code.co_filename, each.frame.f_globals))
            if not text or len(text) > _MAX_SOURCE:
                continue
            directory = whose.paths.core_sources
            layout.make_private(directory.parent)
            layout.make_private(directory)
            target = directory / f"{len(kept)}.py"
            writer.replace_file(target, text)
            path = os.path.relpath(target, whose.paths.directory)
            kept[each.file] = SourceRecord(each.file, path, _changed_since(each.file, whose.started))
    return tuple(kept.values())


def _changed_since(file: str, moment: float) -> bool:
    try:
        return os.stat(file).st_mtime > moment
    except OSError:
        return False


def _put_aside(paths: layout.RankPaths, attempt: int) -> None:
    """Move the core of an earlier attempt out of the way; its tensors and sources would take too much room."""
    earlier = read_record(paths.core, CoreRecord)
    if earlier is not None and earlier.attempt != attempt:
        os.replace(paths.core, paths.earlier_core(earlier.attempt))
    for file in (paths.core_tensors, *paths.core_sources.glob("*.py")):
        try:
            file.unlink()
        except OSError:
            pass
