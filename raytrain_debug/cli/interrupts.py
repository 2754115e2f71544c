"""Ctrl-C at moments at which an exception would be lost or do harm: it is remembered.

While a job is being started, libraries that are being imported may clear the exception. While ranks are set in motion,
what would come of it, a request to stop, must not overtake the requests that are under way.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from types import FrameType

_pressed = False


def remember() -> None:
    """From now on remember Ctrl-C, beside the KeyboardInterrupt that it raises as ever. In the main thread."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupted)


def check() -> None:
    """Raise KeyboardInterrupt when Ctrl-C was pressed meanwhile: whoever asks would not be here had it been seen."""
    if _pressed:
        raise KeyboardInterrupt


@contextlib.contextmanager
def held_back() -> Iterator[Callable[[], bool]]:
    """Within, Ctrl-C raises nothing; what this gives tells whether it was pressed. Once more, and it raises as ever."""
    before = signal.getsignal(signal.SIGINT)
    times = 0

    def remember_one(number: int, frame: FrameType | None) -> None:
        nonlocal times
        times += 1
        if times > 1:
            raise KeyboardInterrupt

    ignored = before is signal.SIG_IGN
    if not ignored:
        signal.signal(signal.SIGINT, remember_one)
    try:
        yield lambda: times > 0
    finally:
        if not ignored:
            signal.signal(signal.SIGINT, signal.default_int_handler if before is None else before)


def _interrupted(number: int, frame: FrameType | None) -> None:
    global _pressed
    _pressed = True
    raise KeyboardInterrupt
