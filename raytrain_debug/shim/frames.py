"""Frames of a thread as a person wants to see them: outermost first, none of ours, none of a debugger's.

Everything here is read from another thread while the one that is looked at runs, without stopping it.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import CodeType, FrameType

from raytrain_debug.shim import callsite, pydevd_signs

_OURS = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")
# What runs the user's script: all frames around these are ours.
_ENTRY = tuple(
    os.path.join(_OURS, "shim", name) for name in ("bootstrap.py", "death.py", "target.py", "ray_internals.py")
)
_MAX_FRAMES = 2_000  # the innermost ones
_TRIES = 3
_COMPREHENSIONS = ("<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>")
_crashed: dict[int, list[Position]] = {}
_training: threading.Thread | None = None  # where that is not the main thread


@dataclass(frozen=True)
class Position:
    """Where one frame stood when it was looked at; `origin` is callsite's word for whose code it is."""

    frame: FrameType
    code: CodeType
    line: int
    lasti: int
    module: str
    origin: int

    @property
    def file(self) -> str:
        name = self.code.co_filename
        return name if name.startswith("<") else os.path.abspath(name)

    @property
    def function(self) -> str:
        return self.code.co_name


def training_thread() -> threading.Thread:
    """The thread that trains: the main thread, but for Ray's workers."""
    return _training or threading.main_thread()


def set_training_thread(thread: threading.Thread) -> None:
    """From now on `thread` is the one that trains."""
    global _training
    _training = thread


def positions(thread: int) -> list[Position]:
    """The frames of the thread of that `ident`, outermost first, cleaned; empty when it runs no Python."""
    return _crashed.get(thread) or clean(_collect(thread))


def show_crashed(thread: int, found: list[Position]) -> None:
    """From now on that thread, which has left all its frames, is seen where its exception was raised."""
    _crashed[thread] = found


def has_crashed(thread: int) -> bool:
    """Whether the thread is kept alive at an exception."""
    return thread in _crashed


def clean(collected: list[Position]) -> list[Position]:
    """Without our frames and a debugger's, nor what was called by a debugger that has stopped the thread."""
    entry = max((at for at, each in enumerate(collected) if each.code.co_filename in _ENTRY), default=-1)
    below = collected[entry + 1 :]
    debugger = pydevd_signs.directory()
    last_own = max(
        (
            at
            for at, each in enumerate(below)
            if not _is_stdlib(each) and not _is_debugger(each.code, debugger) and not _is_ours(each)
        ),
        default=-1,
    )
    inner = below[last_own + 1 :]
    stopped = next(
        (at for at, each in enumerate(inner) if _is_debugger(each.code, debugger) or _is_wait(each.code)), len(inner)
    )
    kept = below[: last_own + 1 + stopped]
    return [each for each in kept if not _is_debugger(each.code, debugger) and not _is_ours(each)]


def user_positions(found: Sequence[Position]) -> list[Position]:
    """Those in the user's own code, outermost first; in installed packages' when the script is itself installed."""
    best = max((each.origin for each in found), default=callsite.PLUMBING)
    return [each for each in found if each.origin == best] if best >= callsite.PACKAGE else []


def without_comprehensions(found: Sequence[Position]) -> list[Position]:
    """Those whose locals are a function's: before Python 3.12 a comprehension had a frame and locals of its own."""
    return [each for each in found if each.function not in _COMPREHENSIONS]


def is_suspended(thread: threading.Thread) -> bool:
    """Whether a debugger keeps the thread standing still; one that is asked to stop goes on while in native code."""
    return pydevd_signs.is_asked_to_stop(thread) and _is_inside(thread.ident or 0, pydevd_signs.is_standing)


def waits_for_client(thread: int) -> bool:
    """Whether the thread of that `ident` waits in the shim until a debugger has come."""
    return _is_inside(thread, _is_wait)


def _is_inside(thread: int, wanted: Callable[[CodeType], bool]) -> bool:
    """Whether one of a thread's frames runs code that is `wanted`."""
    frame = sys._current_frames().get(thread)
    for _ in range(_MAX_FRAMES):
        if frame is None or wanted(frame.f_code):
            return frame is not None
        frame = frame.f_back
    return False


def is_ours(thread: threading.Thread | None) -> bool:
    """Whether a thread is of the shim or of the debugger, and not the user's business."""
    return pydevd_signs.is_hidden(thread)


def _collect(thread: int) -> list[Position]:
    """All frames, outermost first. Tried again when the thread may have got a turn in the middle of it."""
    found: list[Position] = []
    for _ in range(_TRIES):
        started = time.perf_counter()
        found = []
        frame = sys._current_frames().get(thread)
        while frame is not None and len(found) < _MAX_FRAMES:
            found.append(
                Position(
                    frame,
                    frame.f_code,
                    frame.f_lineno or frame.f_code.co_firstlineno,
                    frame.f_lasti,
                    str(frame.f_globals.get("__name__", "")),
                    callsite.origin(frame),
                )
            )
            frame = frame.f_back
        if time.perf_counter() - started < sys.getswitchinterval():
            break
    found.reverse()
    return found


def _is_debugger(code: CodeType, directory: str | None) -> bool:
    return directory is not None and code.co_filename.startswith(directory)


def _is_ours(position: Position) -> bool:
    return position.code.co_filename.startswith(_OURS)


def _is_wait(code: CodeType) -> bool:
    return code.co_name == "wait_for_client" and code.co_filename.startswith(_OURS)


def _is_stdlib(position: Position) -> bool:
    return position.origin <= callsite.FRAMEWORK and position.module.partition(".")[0] in sys.stdlib_module_names
