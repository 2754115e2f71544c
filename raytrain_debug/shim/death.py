"""What a rank leaves when it dies: its core, and the traceback on stderr as plain python prints it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from raytrain_debug.run import codec, reader, writer
from raytrain_debug.run.records import ThreadExceptionRecord, to_sparse_dict
from raytrain_debug.shim import core, crash, faults, frames
from raytrain_debug.shim.target import run_to_end

if TYPE_CHECKING:
    from raytrain_debug.shim.rank import Rank

_MAX_THREAD_EXCEPTIONS = 20  # of one process


class Death:
    """Prepared for the end of one rank; nothing happens until then."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._pid = os.getpid()
        self._lock = threading.Lock()  # held while a core is written
        self._recorded = False
        self.error: type[BaseException] | None = None  # what ends the rank
        self._thread_exceptions = 0

    def install(self) -> None:
        """Be ready for fatal signals, exceptions in threads, and the launcher that is about to end this rank."""
        with self._rank.guard("preparing for the rank's death"):
            faults.install(self._rank.paths.fault(self._rank.identity.attempt))
            hook = threading.excepthook
            threading.excepthook = lambda args: self._thread_ended(args, hook)
            if self._rank.control is not None:
                self._rank.control.slow_operations["dump"] = self._ending

    def run_and_record(self, run: Callable[[], None]) -> None:
        """Call `run`; an exception that ends it is recorded, and ends the process as it would under plain python."""
        run_to_end(run, self._failed, lambda error: crash.hold(self._rank, error), self._exits)

    def _exits(self, error: SystemExit) -> None:
        """Leave the core of a rank that calls sys.exit to say that it fails; the launcher's own have no frames."""
        if error.code not in (None, 0) and error.__traceback__ is not None:
            self.record(error)

    def _failed(self, error: BaseException) -> None:
        self.record(error)
        if self._rank.settings.hold_on_crash is None:  # else it is stopped at, once, when all has been printed
            with self._rank.guard("stopping at an exception"):
                self._rank.debugger.stop_if_uncaught_is_wanted(error)

    def record(self, error: BaseException) -> None:
        """Leave the core of a rank that `error` is ending in this thread; never raises, and not in a forked child."""
        if os.getpid() != self._pid:
            return
        try:
            with self._lock, self._rank.guard("core.json"):
                self._recorded, self.error = True, type(error)
                core.of_exception(self._whose(), error, threading.current_thread())
        except KeyboardInterrupt:
            pass  # somebody is in a hurry: what has been written must do

    # Other threads.

    def _ending(self, request: dict[str, Any]) -> dict[str, Any]:
        """The launcher is about to end this rank. Answered once the core is written, this one or that of a crash."""
        with self._lock, self._rank.guard("core.json"):
            if not self._recorded:
                core.of_threads(self._whose())
        return {"ok": True}

    def _thread_ended(self, args: Any, hook: Callable[[Any], Any]) -> None:
        error = args.exc_value
        theirs = os.getpid() == self._pid and not frames.is_ours(args.thread)
        if theirs and error is not None and not isinstance(error, SystemExit):
            with self._rank.guard("exceptions.jsonl"):
                self._thread_exceptions += 1
                if self._thread_exceptions <= _MAX_THREAD_EXCEPTIONS:
                    self._record_thread(error, args.thread)
        hook(args)

    def _record_thread(self, error: BaseException, thread: threading.Thread | None) -> None:
        record = ThreadExceptionRecord(
            time=time.time(),
            attempt=self._rank.identity.attempt,
            pid=self._pid,
            thread=thread.name if thread is not None else "unknown",
            exception=core.of_thread_exception(error),
            report=reader.tail_reports(self._rank.paths, 0)[0],
        )
        writer.append_line(self._rank.paths.exceptions, codec.dumps(to_sparse_dict(record)))

    def _whose(self) -> core.Whose:
        from raytrain_debug.shim.rank import process_create_time

        rank = self._rank
        return core.Whose(rank.paths, rank.identity.attempt, process_create_time(), rank.settings.core_budget)
