"""pydevd seen from outside: what it reads on threads, how a thread that it has stopped is told, where its code lies.

With debugger.py, which switches it on and off, and tracing.py, which takes its hooks out again, this is all that we
touch of it beside the Debug Adapter Protocol, of debugpy 1.8.14 to 1.8.22: tests/unit/test_pydevd_internals.py. Nothing
here imports it.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from types import CodeType

_SUSPENDED = 2  # its STATE_SUSPEND, from when a thread is asked to stop
_STANDS = "do_wait_suspend"  # its function in which the thread then does


def hide(thread: threading.Thread) -> None:
    """Have pydevd neither trace nor stop nor show a thread; before the thread starts."""
    never_stop(thread)
    thread.is_pydev_daemon_thread = True  # type: ignore[attr-defined]


def never_stop(thread: threading.Thread) -> None:
    """Have pydevd leave a thread alone that it may show."""
    thread.pydev_do_not_trace = True  # type: ignore[attr-defined]


def is_hidden(thread: threading.Thread | None) -> bool:
    """Whether a thread is the shim's or pydevd's own."""
    return bool(getattr(thread, "is_pydev_daemon_thread", False))


def is_never_stopped(thread: threading.Thread) -> bool:
    """Whether pydevd leaves a thread alone."""
    return bool(getattr(thread, "pydev_do_not_trace", False))


def is_asked_to_stop(thread: threading.Thread) -> bool:
    """Whether a thread stands, or will once it leaves native code."""
    return getattr(getattr(thread, "additional_info", None), "pydev_state", None) == _SUSPENDED


def is_standing(code: CodeType) -> bool:
    """Whether this is the code in which a thread stands that pydevd has stopped."""
    return code.co_name == _STANDS


def directory() -> str | None:
    """Where debugpy lies, pydevd included; None while it has not been imported."""
    file = getattr(sys.modules.get("debugpy"), "__file__", None)
    return None if file is None else os.path.join(os.path.dirname(os.path.abspath(file)), "")


def is_its_file(file: str) -> bool:
    """Whether a code object of that file name is pydevd's; what was compiled to C gives a relative one."""
    where = directory()
    return file.startswith("_pydevd_bundle/") or (where is not None and file.startswith(where))


def unseen_children() -> contextlib.AbstractContextManager[None]:
    """While child processes are started that pydevd must not make its debuggees."""
    patches = sys.modules.get("_pydev_bundle.pydev_monkey")
    return contextlib.nullcontext() if patches is None else patches.skip_subprocess_arg_patch()
