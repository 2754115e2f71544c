"""Ctrl-C while a job is being started: not lost, though libraries that are being imported may clear the exception."""

from __future__ import annotations

import signal
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


def _interrupted(number: int, frame: FrameType | None) -> None:
    global _pressed
    _pressed = True
    raise KeyboardInterrupt
