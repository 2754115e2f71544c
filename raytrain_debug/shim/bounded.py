"""Code of unknown temper, such as a user's `__repr__`, called where it can be given up when it does not come back."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from raytrain_debug.run.interrupting import raise_in
from raytrain_debug.shim import pydevd_signs

T = TypeVar("T")

_SOON = 0.2  # seconds


class TookTooLong(Exception):
    """The call did not end; its thread was told to stop, and is left alone whether it does or not."""


class _GiveUp(BaseException):
    """Raised inside a call that has used up its time."""


class Helper:
    """A thread that calls functions for another one, and is replaced when it gets stuck in one.

    It is a daemon thread: it does not hold up the end of the process.
    """

    def __init__(self, name: str = "raytrain_debug helper") -> None:
        self._name = name
        self._thread: threading.Thread | None = None
        self._tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()

    def call(self, function: Callable[[], T], seconds: float, progress: Callable[[], Any] = lambda: None) -> T:
        """What `function()` returns or raises; TookTooLong when nothing happens in it for `seconds`.

        Something happens when what `progress()` returns has changed. Raises RuntimeError when no thread can start.
        """
        task = _Task(function)
        if self._thread is None:
            self._start()
        self._tasks.put(task)
        mark = progress()
        while not task.done.wait(seconds):
            if (now := progress()) == mark:
                self._abandon()
                raise TookTooLong(f"it did not end within {seconds:g} s")
            mark = now
        if task.error is not None:
            raise task.error
        result: T = task.result
        return result

    def close(self) -> None:
        """Let the thread end."""
        if self._thread is not None:
            self._tasks.put(None)
            self._thread = None

    def _start(self) -> None:
        self._tasks = queue.SimpleQueue()
        thread = threading.Thread(target=_serve, args=(self._tasks,), name=self._name, daemon=True)
        pydevd_signs.hide(thread)
        thread.start()
        self._thread = thread

    def _abandon(self) -> None:
        thread, self._thread = self._thread, None
        self._tasks.put(None)
        if thread is not None:
            _interrupt(thread)


def _interrupt(thread: threading.Thread) -> None:
    """Raise _GiveUp in a thread that runs Python code; one that is in native code for longer is left alone.

    An exception that waits to be raised must not stay: every thread of the process looks for it at each step, and on
    Python 3.11 one that is traced does nothing else any more.
    """
    raise_in(thread.ident, _GiveUp)
    thread.join(_SOON)
    if thread.is_alive():
        raise_in(thread.ident, None)
        # That took it back, but the interpreter goes on looking until some thread has got one.
        try:
            raise_in(threading.get_ident(), _GiveUp)
            for _ in range(1_000):
                pass
        except _GiveUp:
            pass


class _Task:
    """A call to make, and what came of it."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self.function = function
        self.done = threading.Event()
        self.result: Any = None
        self.error: BaseException | None = None


def _serve(tasks: queue.SimpleQueue[_Task | None]) -> None:
    try:
        while (task := tasks.get()) is not None:
            try:
                task.result = task.function()
            except _GiveUp:
                return
            except BaseException as error:
                task.error = error
            task.done.set()
            del task
    except _GiveUp:
        pass
