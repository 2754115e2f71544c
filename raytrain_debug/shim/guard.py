"""The rule "never the cause": a fault of ours inside a rank is written down, said once, and training goes on."""

from __future__ import annotations

import errno
import functools
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import ParamSpec, TypeVar

from raytrain_debug.run import writer

_DISK_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO, errno.ESTALE})
_MAX_PARAGRAPHS = 20  # a place: a fault at every report of a long training must not fill the disk

P = ParamSpec("P")
T = TypeVar("T")


class Guard:
    """Keeps our faults from the user's script; one a process, for all threads.

        with guard("process.json"):
            writer.write_record(...)

    Any Exception in the block ends the block only: a paragraph with the traceback goes to the run's errors.log, and
    one line to stderr the first time that place fails. KeyboardInterrupt and SystemExit are the user's and pass.
    The guard itself never raises, with a full disk, a deleted run directory or a closed stderr.
    """

    def __init__(self, errors: str | os.PathLike[str]) -> None:
        self._errors = os.fspath(errors)
        self._counts: dict[str, int] = {}
        self._lock = threading.Lock()

    def __call__(self, place: str) -> _Guarded:
        """A context manager for a block of ours; `place` says what it does, in words for the user."""
        return _Guarded(self, place)

    def wrap(self, place: str) -> Callable[[Callable[P, T]], Callable[P, T | None]]:
        """A decorator for a function of ours, which then returns None when it fails."""

        def decorate(function: Callable[P, T]) -> Callable[P, T | None]:
            @functools.wraps(function)
            def guarded(*args: P.args, **kwargs: P.kwargs) -> T | None:
                with self(place):
                    return function(*args, **kwargs)
                return None

            return guarded

        return decorate

    def note(self, place: str, error: BaseException | str) -> None:
        """Record a fault that was dealt with already; never raises."""
        if self._is_the_disks(error):
            place = "writing to the run directory"  # full, read-only or gone: one reason, whatever it was for
        with self._lock:
            count = self._counts[place] = self._counts.get(place, 0) + 1
        if count <= _MAX_PARAGRAPHS:
            self._write(place, error, last=count == _MAX_PARAGRAPHS)
        if count == 1:
            self._say(place, error)

    def _is_the_disks(self, error: BaseException | str) -> bool:
        if not isinstance(error, OSError):
            return False
        file = error.filename if isinstance(error.filename, str) else ""
        return error.errno in _DISK_ERRORS or file.startswith(os.path.join(os.path.dirname(self._errors), ""))

    def _write(self, place: str, error: BaseException | str, last: bool) -> None:
        try:
            stamp = time.strftime("%Y-%m-%d %H:%M:%S")
            text = f"[{stamp}] rank {os.environ.get('RANK', '0')}, pid {os.getpid()}: {place}: {_one_line(error)}\n"
            if isinstance(error, BaseException):
                text += "".join(traceback.format_exception(type(error), error, error.__traceback__))
            if last:
                text += "(further faults of this kind are not written down)\n"
            writer.append_line(self._errors, text)
        except Exception:
            pass

    def _say(self, place: str, error: BaseException | str) -> None:
        try:
            print(
                f"raytrain_debug: {place} failed ({_one_line(error)}); training goes on. Details: {self._errors}",
                file=sys.stderr,
                flush=True,
            )
        except Exception:
            pass


class _Guarded:
    """One guarded block."""

    __slots__ = ("_guard", "_place")

    def __init__(self, guard: Guard, place: str) -> None:
        self._guard = guard
        self._place = place

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        self._guard.note(self._place, error)
        return True


def _one_line(error: BaseException | str) -> str:
    text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
    return " ".join(text.split())
