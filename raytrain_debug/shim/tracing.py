"""The debugger's hooks in the interpreter: put in for a client, and taken out of every thread when it has gone.

pydevd itself has no way back: after a client's `disconnect` its trace functions stay. On Python 3.12 and later it uses
sys.monitoring, which one thread can switch off for all. Before, a trace function belongs to its thread and nothing
reaches into another one but pydevd's own helper library (x86-64) or a pending call (main thread), so what is put in
there takes itself out when the thread next runs Python code.

Names of pydevd that we touch here, debugpy 1.8: PyDB.enable_tracing, patch_threads and trace_dispatch; pydevd_tracing's
set_trace_to_threads and the two functions that replace sys.settrace; undo_patch_thread_modules; in
pydevd_sys_monitoring stop_monitoring and _code_to_func_code_info_cache.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import types
from collections import deque
from collections.abc import Callable
from typing import Any

from raytrain_debug.shim import pydevd_signs

_MONITORING = sys.version_info >= (3, 12)
_original_settrace = sys.settrace


class Tracing:
    """pydevd's tracing of this process, through `db`, its PyDB. Used by one thread, which is never traced itself."""

    def __init__(self, db: Any) -> None:
        """`db` was made by pydevd.settrace, which has switched tracing on."""
        self._db = db
        self._remover: _Remover | None = None
        self._calm = 0
        self._threading_hook: Any = None
        _untrace_this_thread()
        if not _helper_reaches_threads():
            _in_main_thread(lambda: _original_settrace(db.trace_dispatch))

    def switch_on(self) -> None:
        """Trace every thread again, and those that start from now on."""
        if self._remover is not None:
            self._remover.active = False
            self._remover = None
        self._calm = 0
        db = self._db
        self._threading_hook = threading.gettrace()
        db.__dict__.pop("enable_tracing", None)
        if not _MONITORING:
            import pydevd_tracing

            pydevd_tracing.replace_sys_set_trace_func()
        db.enable_tracing(db.trace_dispatch, apply_to_all_threads=True)
        db.patch_threads()
        _untrace_this_thread()
        if not _helper_reaches_threads():
            _in_main_thread(lambda: _original_settrace(db.trace_dispatch))

    def switch_off(self) -> bool:
        """Take tracing out of all threads; True once nothing can put it back. Call again until then.

        A thread that is inside the debugger, paused or just passing, may switch its tracing on once more when it
        leaves; so it takes two calls that find none there, a moment apart.
        """
        if _MONITORING:
            self._unpatch()
            _end_monitoring()
        else:
            if self._remover is None:
                self._unpatch()
                self._remover = _Remover()
                _trace_all_threads(self._remover)
            self._remover.sweep()
        self._calm = 0 if _anyone_stands_still() else self._calm + 1
        return self._calm >= 2

    def _unpatch(self) -> None:
        from _pydev_bundle.pydev_monkey import undo_patch_thread_modules

        undo_patch_thread_modules()
        threading.settrace(self._threading_hook)
        # Asked for by a thread that was made while tracing was on and begins to run only now.
        self._db.enable_tracing = lambda *args, **kwargs: None
        if not _MONITORING:
            import pydevd_tracing

            pydevd_tracing.restore_sys_set_trace_func()


def leave_in_child() -> None:
    """In a forked child, which has one thread: take out what tracing it inherited, and pydevd's idea of a session."""
    import pydevd
    from _pydev_bundle.pydev_monkey import undo_patch_thread_modules

    undo_patch_thread_modules()
    threading.settrace(None)
    pydevd.settrace_forked(setup_tracing=False)
    if _MONITORING:
        _end_monitoring()
    else:
        _Remover()(sys._getframe(), "", None)


class _Remover:
    """A trace function that takes itself, and what the debugger left in the frames, out of each thread it runs in."""

    def __init__(self) -> None:
        self.active = True
        self._cleaned: set[int] = set()

    def __call__(self, frame: types.FrameType | None, event: str, argument: Any) -> None:
        if not self.active:  # a debugger has come back meanwhile, and this thread is its
            if frame is not None:
                frame.f_trace = None
            return
        _original_settrace(None)
        self._cleaned.add(threading.get_ident())
        while frame is not None:
            frame.f_trace = None
            frame = frame.f_back

    def sweep(self) -> None:
        """See to it that every traced thread calls us at its next line, whichever of its frames that is in."""
        for thread, top in sys._current_frames().items():
            frame: types.FrameType | None = None if thread in self._cleaned or thread in _never_traced() else top
            while frame is not None:
                frame.f_trace = self
                frame = frame.f_back


def _end_monitoring() -> None:
    from _pydevd_sys_monitoring import pydevd_sys_monitoring

    monitoring: Any = sys.monitoring  # type: ignore[attr-defined]
    tool = monitoring.DEBUGGER_ID
    if monitoring.get_tool(tool) != "pydevd":
        return
    # Events of single functions outlive the tool (before Python 3.14), and go on to cost what they cost.
    implementation = sys.modules[pydevd_sys_monitoring.stop_monitoring.__module__]
    for code in list(implementation._code_to_func_code_info_cache):
        monitoring.set_local_events(tool, code, 0)
    monitoring.register_callback(tool, monitoring.events.PY_UNWIND, None)
    pydevd_sys_monitoring.stop_monitoring(all_threads=True)


def _anyone_stands_still() -> bool:
    """Whether a thread is still on its way out of a pause, in which pydevd could switch monitoring on once more."""
    for top in sys._current_frames().values():
        frame: types.FrameType | None = top
        while frame is not None:
            if pydevd_signs.is_standing(frame.f_code):
                return True
            frame = frame.f_back
    return False


def _trace_all_threads(function: Callable[..., Any]) -> None:
    import pydevd_tracing

    if _helper_reaches_threads():
        pydevd_tracing.set_trace_to_threads(function, create_dummy_thread=False)
    else:
        _in_main_thread(lambda: _original_settrace(function))


def _helper_reaches_threads() -> bool:
    import pydevd_tracing

    return _MONITORING or pydevd_tracing._load_python_helper_lib() is not None


def _never_traced() -> set[int]:
    return {
        thread.ident
        for thread in threading._active.values()  # type: ignore[attr-defined]
        if thread.ident is not None and pydevd_signs.is_never_stopped(thread)
    }


def _untrace_this_thread() -> None:
    if not _MONITORING:
        _original_settrace(None)


_wanted: deque[Callable[[], object]] = deque()


def _run_wanted(_: int | None) -> int:
    _wanted.popleft()()
    return 0


_RUN_WANTED = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(_run_wanted)


def _in_main_thread(function: Callable[[], object]) -> None:
    """Have the main thread call `function` when it next runs Python code; see Py_AddPendingCall."""
    _wanted.append(function)
    ctypes.pythonapi.Py_AddPendingCall(_RUN_WANTED, None)
