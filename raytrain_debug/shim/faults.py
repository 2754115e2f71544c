"""Fatal signals (SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGILL): Python's faulthandler writes all stacks to a file of ours.

It costs nothing until then, and the process dies of its signal as it would have. To the user's code faulthandler
looks off, as it is under plain python: Ray and torch then enable it for stderr, and ours has had its day.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import os
from pathlib import Path
from typing import Any

_is_ours = False


def install(path: Path) -> None:
    """Write to `path` at a fatal signal, unless the user has asked for it on stderr (PYTHONFAULTHANDLER). OSError."""
    global _is_ours
    if faulthandler.is_enabled():
        return
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(path, flags, 0o600)
    faulthandler.enable(descriptor, all_threads=True)
    _is_ours = True
    faulthandler.enable, faulthandler.is_enabled = _watched(faulthandler.enable), _hidden(faulthandler.is_enabled)
    ours = os.fstat(descriptor)
    os.register_at_fork(after_in_child=lambda: _point_nowhere(descriptor, ours))


def _watched(enable: Any) -> Any:
    @functools.wraps(enable)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        global _is_ours
        result = enable(*args, **kwargs)
        _is_ours = False
        return result

    return wrapper


def _hidden(is_enabled: Any) -> Any:
    @functools.wraps(is_enabled)
    def wrapper() -> bool:
        return bool(is_enabled()) and not _is_ours

    return wrapper


def _point_nowhere(descriptor: int, ours: os.stat_result) -> None:
    """In a forked child, which is not the rank. Not closed: the number could come to mean a file of the user's.

    It means one already where the script has closed all files, and in what a child forks.
    """
    with contextlib.suppress(OSError):
        if os.path.samestat(os.fstat(descriptor), ours):
            nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
            os.dup2(nowhere, descriptor, inheritable=False)
            os.close(nowhere)
