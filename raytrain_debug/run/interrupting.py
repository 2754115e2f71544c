"""A call in a thread of its own that can be ended: an exception raised there ends Python code wherever it is."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

T = TypeVar("T")

_AGAIN = 0.2  # seconds after which code that caught the exception gets the next one


class Interrupted(BaseException):
    """Raised in a call that is to end, and what it has come to then."""


def raise_in(thread: int | None, error: type[BaseException] | None) -> None:
    """Raise `error` in the thread of that ident when it next runs Python code; None takes back one that still waits."""
    what = ctypes.py_object(error) if error is not None else None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread or 0), what)


class Call(Generic[T]):
    """`function()`, which has begun when this is made; `future` gets what comes of it, Interrupted included.

    Its thread is a daemon: it does not hold up the end of the process.
    """

    def __init__(self, function: Callable[[], T], name: str) -> None:
        self.future: Future[T] = Future()
        self.future.set_running_or_notify_cancel()
        self._function = function
        self._over = False
        self._interrupted = False
        self._raising = threading.Lock()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def interrupt(self) -> None:
        """Have it end when it next runs Python code; returns at once. Native code goes on until it is through."""
        if not self._interrupted:
            self._interrupted = True
            threading.Thread(target=self._end, name=f"{self._thread.name} ends", daemon=True).start()

    def _work(self) -> None:
        try:
            try:
                result = self._function()
            finally:
                self._over = True
                with self._raising:
                    pass
                raise_in(threading.get_ident(), None)  # what was raised too late must not end the rest
        except BaseException as error:
            self.future.set_exception(error)
        else:
            self.future.set_result(result)

    def _end(self) -> None:
        while self._thread.is_alive():
            with self._raising:
                if not self._over:
                    raise_in(self._thread.ident, Interrupted)
            self._thread.join(_AGAIN)
        if not self.future.done():
            self.future.set_exception(Interrupted())
