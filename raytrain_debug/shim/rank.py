"""This process as a rank: what the shim's parts are and how they are joined. One object a process, `current()`."""

from __future__ import annotations

import atexit
import builtins
import ctypes
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from raytrain_debug.run import layout, writer
from raytrain_debug.run.records import CallSite, ProcessRecord
from raytrain_debug.shim import evaluate, stacks
from raytrain_debug.shim.control import ControlThread
from raytrain_debug.shim.debugger import Debugger
from raytrain_debug.shim.guard import Guard
from raytrain_debug.shim.settings import Identity, Settings
from raytrain_debug.shim.timeouts import CollectiveTimeouts

_PR_SET_PDEATHSIG = 1  # prctl(2)

_current: Rank | None = None
_forked = False


def current() -> Rank | None:
    """The rank that this process is; None in any other process, children of a rank included."""
    return _current


def forked() -> bool:
    """True in a process that a rank has forked."""
    return _forked


class Rank:
    """The shim of one rank. `start` makes the process reachable; nothing else changes until somebody asks."""

    def __init__(self, settings: Settings, identity: Identity, script: str) -> None:
        self.settings = settings
        self.identity = identity
        self.script = script
        self.run = layout.RunPaths(Path(settings.run))
        self.paths = self.run.rank(identity.rank)
        self.guard = Guard(self.run.errors)
        self.where: CallSite | None = None  # where the main thread waits for a client
        self.control: ControlThread | None = None
        self.more_to_say: dict[str, Any] = {}  # in its first words to the launcher
        self.alone = False  # its launcher is gone: no client can come any more
        self.debugger = Debugger(self._later)
        self.timeouts = CollectiveTimeouts(self.guard, self.say, self._later)

    def start(self) -> None:
        """Become reachable: process.json, the control socket, the lifeline. Never raises for a fault of ours."""
        global _current
        _current = self
        builtins.__rank__ = self.identity.rank  # type: ignore[attr-defined]  # for breakpoint conditions
        os.register_at_fork(after_in_child=self._leave_in_child)
        with self.guard("rank start"):
            if self.settings.mode != "ray":  # Ray ends its workers itself
                _end_with(self.settings.launcher_pid)
            layout.make_private(self.paths.directory)
        with self.guard("control channel"):
            name = f"rank{self.identity.rank}-{os.getpid()}"
            control = ControlThread(layout.socket_path(self.run.id, name), self.guard)
            control.hand_over = self._serve_client
            control.operations["release"] = self._release
            control.operations["stacks"] = lambda request: stacks.answer(self, request)
            control.slow_operations["evaluate"] = evaluate.answer
            control.on_message = self._launcher_says
            control.ends_with_launcher = self.settings.mode != "ray" and self.settings.launcher_pid != os.getpid()
            control.on_launcher_gone = self._launcher_is_gone
            atexit.register(control.remove_socket)
            self.control = control
            record = self._process_record(control.path)
            with self.guard("process.json"):
                writer.write_record(self.paths.process, record)
            if self.settings.launcher:
                control.connect_lifeline(
                    self.settings.launcher,
                    {
                        "rank": record.rank,
                        "local_rank": record.local_rank,
                        "world_size": record.world_size,
                        "attempt": record.attempt,
                        "pid": record.pid,
                        "control": record.control,
                        "directory": str(self.paths.directory),
                        **self.more_to_say,
                    },
                )
            control.start()
        with self.guard("process-group timeouts"):
            self.timeouts.install()

    def wait_for_client(self, where: CallSite | None, reason: str, limit: float | None = None) -> bool:
        """Block the calling thread until a client has attached and sent its breakpoints.

        False when none has come within `limit` seconds (None: no limit), or none can.
        """
        if self.control is None or self.debugger.client_is_ready():
            return self.control is not None
        end = None if limit is None else time.monotonic() + limit
        self.where = where
        self.control.tell_launcher(
            {
                "event": "waiting",
                "reason": reason,
                "where": None
                if where is None
                else {"file": where.file, "line": where.line, "function": where.function},
            }
        )
        try:
            while not self.debugger.client_is_ready():
                if self.alone and not self.debugger.attached:
                    return False
                if end is not None and time.monotonic() > end and not self.debugger.attached:
                    return False
                time.sleep(0.02)
            return True
        finally:
            self.where = None
            self.control.tell_launcher({"event": "running"})

    # Control thread.

    def _serve_client(self, connection: socket.socket, request: dict[str, Any]) -> None:
        self.debugger.activate(connection, stop_on_entry=bool(request.get("stop_on_entry")))

    def _release(self, request: dict[str, Any]) -> dict[str, Any]:
        """The client leaves: its gateway tells it so only once this has been answered."""
        self.debugger.deactivate()
        return {"ok": True}

    def _launcher_says(self, message: dict[str, Any]) -> None:
        if message.get("op") == "hold":
            self.timeouts.hold(bool(message.get("on")))

    def _launcher_is_gone(self) -> None:
        """Nobody reaches this rank any more: it goes on as if it had never been debugged."""
        self.alone = True
        self.timeouts.hold(False)
        self.debugger.deactivate()

    # Other threads.

    def _later(self, seconds: float, function: Callable[[], None]) -> None:
        if self.control is not None:
            self.control.call_later(seconds, function)

    def say(self, text: str) -> None:
        """Print a line for the user, on stderr; never raises."""
        try:
            print(f"raytrain_debug: rank {self.identity.rank}: {text}", file=sys.stderr, flush=True)
        except (OSError, ValueError):
            pass

    def _leave_in_child(self) -> None:
        """A forked child is not this rank: it must hold none of its sockets, nor keep its records."""
        global _current, _forked
        if _forked:
            return  # its parent, a child itself, has nothing of ours any more
        _current, _forked = None, True
        with self.guard("fork"):
            if hasattr(builtins, "__rank__"):
                del builtins.__rank__
            if self.control is not None:
                self.control.close_in_child()
            self.debugger.leave_in_child()

    def _process_record(self, control: Path) -> ProcessRecord:
        return ProcessRecord(
            rank=self.identity.rank,
            local_rank=self.identity.local_rank,
            world_size=self.identity.world_size,
            pid=os.getpid(),
            create_time=process_create_time(),
            host=socket.gethostname(),
            attempt=self.identity.attempt,
            control=str(control),
            script=self.script,
        )


def _end_with(launcher: int) -> None:
    """Have the kernel send us SIGTERM when the launcher dies, also while native code keeps our threads from running."""
    if launcher == os.getpid():
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    try:
        os.kill(launcher, 0)
    except ProcessLookupError:  # it has died already
        os.kill(os.getpid(), signal.SIGTERM)


def process_create_time(pid: int | str = "self") -> float:
    """Unix seconds at which the process started, as psutil's `create_time()` gives it, without importing psutil."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        ticks = int(file.read().rpartition(b")")[2].split()[19])
    with open("/proc/stat", "rb") as file:
        boot = next(int(line.split()[1]) for line in file if line.startswith(b"btime"))
    return boot + ticks / os.sysconf("SC_CLK_TCK")


def call_site(frame: Any) -> CallSite:
    """Where `frame` stands."""
    return CallSite(os.path.abspath(frame.f_code.co_filename), frame.f_lineno, frame.f_code.co_name)
