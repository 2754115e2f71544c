"""debugpy inside a rank, on demand: switched on for a client, and off again so that the rank runs at full speed.

Debug Adapter Protocol layer: none of its messages are read here; pydevd, the part of debugpy that lives in the
debuggee, speaks it over a socket that the control thread hands over. pydevd serves one client after another when its
network is initialised without `terminate_on_socket_close`, as debugpy's `in_process_debug_adapter` does.

Everything in this module runs in the control thread unless it says otherwise.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import traceback
import types
from collections.abc import Callable
from typing import Any

from raytrain_debug.shim import tracing
from raytrain_debug.shim.target import path_lock

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

# While pydevd is imported. Python's frozen standard library modules carry no file names to stop in; nobody debugs
# those, so the warning about them is switched off. Frame evaluation (Python 3.10) cannot be switched off again.
_ENVIRONMENT = {"PYDEVD_DISABLE_FILE_VALIDATION": "1", "PYDEVD_USE_FRAME_EVAL": "NO"}

# Of PyDB, what a client's `attach` sets if it names it: `stopAllThreadsOnSuspend`, `variablePresentation`,
# `breakOnSystemExitZero` and, since debugpy 1.8.22, `breakOnSystemExit`.
_WISHES = (
    "multi_threads_single_notification",
    "variable_presentation",
    "_ignore_system_exit_codes",
    "_break_on_system_exit",
)

_FIRST_LOOK, _LAST_LOOK = 0.05, 1.0  # seconds between looks for threads in which tracing could come back


class Debugger:
    """The switch. `attached` is True from a client's connection to its end."""

    def __init__(self, later: Callable[[float, Callable[[], None]], None]) -> None:
        """`later(seconds, function)` calls a function in the control thread."""
        self._later = later
        self._db: Any = None
        self._tracing: tracing.Tracing | None = None
        self._unasked: dict[str, Any] = {}
        self._connection: socket.socket | None = None
        self._session = 0
        self.attached = False
        self.stop_on_entry = False

    def activate(self, connection: socket.socket, *, stop_on_entry: bool = False) -> None:
        """Say `ok` and serve the client behind `connection`; the caller has made sure that there is no other."""
        if self.attached:
            self.deactivate()
        if self._tracing is None:
            self._db = _start_pydevd()
            self._unasked = {name: getattr(self._db, name) for name in _WISHES if hasattr(self._db, name)}
            self._tracing = tracing.Tracing(self._db)
        else:
            self._tracing.switch_on()
        # What to do when a breakpoint's condition raises: a client may have asked for something else.
        self._db.skip_suspend_on_breakpoint_exception = (BaseException,)
        self._db.skip_print_breakpoint_exception = (NameError,)
        self._session += 1
        self.stop_on_entry = stop_on_entry
        self.attached = True
        connection.sendall(b'{"ok":true}\n')
        self._connection = _WatchedSocket(connection, self._gone_in(self._session))
        self._db.initialize_network(self._connection, terminate_on_socket_close=False)

    def deactivate(self) -> None:
        """Let paused threads go on, forget breakpoints, and take all tracing out of the process."""
        if self._db is None or not self.attached:
            return
        from _pydevd_bundle import pydevd_io
        from _pydevd_bundle.pydevd_api import PyDevdAPI

        self.attached = False
        api = PyDevdAPI()
        api.set_function_breakpoints(self._db, [])  # the one kind that stays over a disconnect
        api.request_disconnect(self._db, resume_threads=True)
        self._db.enable_output_redirection(False, False)
        for stream in ("stdout", "stderr"):
            pydevd_io.stop_redirect_stream_to_pydb_io_messages(stream)
        self._db.writer.do_kill_pydev_thread()
        self._db.writer = _Silence()
        self._switch_off(self._session, _FIRST_LOOK)
        self._forget_wishes()

    def client_is_ready(self) -> bool:
        """True once the client has sent all its breakpoints (`configurationDone`). Any thread."""
        return self.attached and self._db is not None and bool(self._db.is_attached())

    def suspend(self, frame: types.FrameType) -> None:
        """Stop the calling thread at the next line of `frame`."""
        import pydevd

        pydevd.settrace(suspend=True, trace_only_current_thread=True, patch_multiprocessing=False, stop_at_frame=frame)

    def stop_if_uncaught_is_wanted(self, error: BaseException) -> None:
        """Stop at `error`, which nobody has caught but us, if the client's exception breakpoints want that.

        pydevd itself would see only what the shim ends the process with.
        """
        if error.__traceback__ is not None and self.client_is_ready():
            self._stop_at(error, as_uncaught=True)

    def stop_at_exception(self, error: BaseException) -> None:
        """Show the calling thread stopped at `error`, with all frames of its traceback, until the client lets it go."""
        if error.__traceback__ is not None and self._db is not None:
            self._stop_at(error, as_uncaught=False)

    def suspend_at_first_line(self) -> None:
        """Stop the calling thread at the first line of the user's code that it comes to."""
        from _pydevd_bundle.pydevd_comm_constants import CMD_STEP_INTO_MY_CODE, CMD_STOP_ON_START
        from _pydevd_bundle.pydevd_constants import PYDEVD_USE_SYS_MONITORING
        from _pydevd_sys_monitoring import pydevd_sys_monitoring

        # As pydevd's own PyDevdAPI.stop_on_entry, which knows the main thread only.
        info = self._db.set_additional_thread_info(threading.current_thread())
        info.pydev_original_step_cmd = CMD_STOP_ON_START
        info.pydev_step_cmd = CMD_STEP_INTO_MY_CODE
        info.update_stepping_info()
        if PYDEVD_USE_SYS_MONITORING:
            pydevd_sys_monitoring.update_monitor_events(suspend_requested=True)
            pydevd_sys_monitoring.restart_events()

    def leave_in_child(self) -> None:
        """In a forked child: nobody debugs this process, and the connection is its parent's."""
        if self._connection is not None:
            self._connection.close()
            tracing.leave_in_child()

    def _gone_in(self, session: int) -> Callable[[], None]:
        def leave() -> None:
            if session == self._session:
                self.deactivate()

        # In pydevd's thread; the next client may come before the control thread hears of it.
        return lambda: self._later(0.0, leave)

    def _forget_wishes(self) -> None:
        """Undo what pydevd keeps of a client that has gone, though the next one may not ask for it."""
        import pydevd_file_utils
        from _pydevd_bundle.pydevd_constants import is_true_in_env

        for name, value in self._unasked.items():
            setattr(self._db, name, value)
        self._db.setup_auto_reload_watcher(False, [], 0, (), ())
        pydevd_file_utils.set_resolve_symlinks(is_true_in_env("PYDEVD_RESOLVE_SYMLINKS"))
        pydevd_file_utils.setup_client_server_paths(pydevd_file_utils.PATHS_FROM_ECLIPSE_TO_PYTHON)

    def _stop_at(self, error: BaseException, *, as_uncaught: bool) -> None:
        found = type(error), error, error.__traceback__
        if hasattr(self._db, "trigger_exception_handler"):
            self._db.trigger_exception_handler(found, as_uncaught=as_uncaught)
        else:
            _trigger_exception_handler(self._db, found, as_uncaught)
        self._db.break_on_uncaught_exceptions = {}  # or it would stop once more, on the way out

    def _switch_off(self, session: int, pause: float) -> None:
        """Switch tracing off, and look again after `pause` seconds until it can no longer come back."""
        if self.attached or session != self._session or self._tracing is None or self._tracing.switch_off():
            return
        self._later(pause, lambda: self._switch_off(session, min(2 * pause, _LAST_LOOK)))


class _Silence:
    """What pydevd writes to while it has no client."""

    def add_command(self, command: Any) -> None:
        pass

    def empty(self) -> bool:
        return True

    def do_kill_pydev_thread(self) -> None:
        pass


class _WatchedSocket(socket.socket):
    """A socket that tells when its peer has gone: pydevd itself does not act on it."""

    def __init__(self, connection: socket.socket, on_gone: Callable[[], None]) -> None:
        super().__init__(fileno=connection.detach())
        self._on_gone: Callable[[], None] | None = on_gone

    def recv(self, *args: Any) -> bytes:
        try:
            data = super().recv(*args)
        except OSError:
            data = b""
        if not data and self._on_gone is not None:
            tell, self._on_gone = self._on_gone, None
            tell()
        return data


def _trigger_exception_handler(db: Any, found: tuple[Any, ...], as_uncaught: bool) -> None:
    """PyDB's method of that name, which came with debugpy 1.8.22, by what it is made of."""
    from _pydevd_bundle.pydevd_breakpoints import stop_on_unhandled_exception

    thread = threading.current_thread()
    info = db.set_additional_thread_info(thread)
    info.is_tracing += 1
    try:
        if as_uncaught:
            stop_on_unhandled_exception(db, thread, info, found)
            return
        frames = [frame for frame, _ in traceback.walk_tb(found[2]) if db.get_file_type(frame) != db.PYDEV_FILE]
        if frames:
            db.do_stop_on_unhandled_exception(thread, frames[-1], None, found)
    finally:
        info.is_tracing -= 1


def _start_pydevd() -> Any:
    before = {name: os.environ.get(name) for name in _ENVIRONMENT}
    breakpointhook = sys.breakpointhook
    os.environ.update(_ENVIRONMENT)
    try:
        with path_lock:
            import debugpy.server.api  # makes debugpy's own copy of pydevd importable
        import pydevd
        from _pydevd_bundle.pydevd_constants import get_global_debugger
    finally:
        sys.breakpointhook = breakpointhook  # importing pydevd takes it
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
    # Connections come from us; pydevd must not open a port of its own.
    pydevd.PyDB.create_wait_for_connection_thread = lambda self: None
    pydevd.settrace(
        host="127.0.0.1",
        port=0,
        suspend=False,
        patch_multiprocessing=False,
        notify_stdin=False,
        wait_for_ready_to_run=False,
        block_until_connected=False,
        dont_trace_start_patterns=(os.path.dirname(os.path.abspath(debugpy.__file__)), _PACKAGE),
    )
    return get_global_debugger()
