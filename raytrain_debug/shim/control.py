"""The control channel of a rank, server side, and its lifeline to the launcher: one daemon thread, no debugger in it.

Wire: one JSON object and a newline each way (run/channel.py is the client). The request `debug` turns its connection
into the Debug Adapter Protocol stream of one client; its answer is two lines, the first of them (TAKEN) at once. On the
lifeline both sides send lines whenever they like; its end means that the launcher is gone; a rank does not outlive its
launcher, unless somebody else (Ray) is its master.
"""

from __future__ import annotations

import heapq
import itertools
import os
import selectors
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from raytrain_debug.run import codec
from raytrain_debug.run.channel import MAX_LINE
from raytrain_debug.shim import pydevd_signs

Request = dict[str, Any]
Operation = Callable[[Request], dict[str, Any]]

TAKEN = b'{"taken":true}\n'
"""What a rank says before it loads the debugger, which takes a while: it is there, and runs Python."""

_MAX_FAULTS = 100  # after which this thread gives up rather than spin
_GRACE = 10.0  # seconds between SIGTERM and SIGKILL when the launcher has died


class ControlThread:
    """Owns the rank's control socket and the lifeline; only this thread reads them.

    `operations` answer requests in this thread, `slow_operations` each in a thread of its own; `on_message` takes what
    the launcher says; `hand_over(connection, request)` takes the connection of a `debug` request and answers it.
    """

    def __init__(self, path: Path, protect: Callable[[str], Any]) -> None:
        self.path = path
        self.operations: dict[str, Operation] = {}
        self.slow_operations: dict[str, Operation] = {}
        self.on_message: Callable[[Request], None] = lambda message: None
        self.ends_with_launcher = True  # not where the rank hosts its own gateway, nor where it is Ray's to end
        self.on_launcher_gone: Callable[[], None] = lambda: None
        self.hand_over: Callable[[socket.socket, Request], None] = lambda connection, request: connection.close()
        self._protect = protect
        self._selector = selectors.DefaultSelector()
        self._calls: list[Callable[[], None]] = []
        self._timers: list[tuple[float, int, Callable[[], None]]] = []  # a heap, by time.monotonic()
        self._timer_number = itertools.count()
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_in.setblocking(False)
        self._wake_out.setblocking(False)
        self._lifeline: socket.socket | None = None
        self._send_lock = threading.Lock()
        self._pid = os.getpid()
        self._listener = _listen(path)
        self._thread = threading.Thread(target=self._run, name="raytrain_debug control", daemon=True)
        pydevd_signs.hide(self._thread)

    def start(self) -> None:
        """Serve from now on."""
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._selector.register(self._wake_out, selectors.EVENT_READ, self._run_calls)
        self._thread.start()

    def connect_lifeline(self, path: str, hello: dict[str, Any]) -> None:
        """Say hello to the launcher at `path` and stay connected. Called before `start`; raises OSError."""
        lifeline = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        lifeline.settimeout(5)
        try:
            lifeline.connect(path)
            lifeline.sendall(codec.dumps({"op": "hello", **hello}).encode() + b"\n")
        except OSError:
            lifeline.close()
            raise
        lifeline.setblocking(False)
        self._lifeline = lifeline
        self._selector.register(lifeline, selectors.EVENT_READ, _Lines(lifeline, self._heard, self._launcher_is_gone))

    def tell_launcher(self, message: dict[str, Any]) -> None:
        """Send one line to the launcher, from any thread; dropped when there is none or it does not keep up."""
        if self._lifeline is None:
            return
        with self._send_lock:
            try:
                self._lifeline.sendall(codec.dumps(message).encode() + b"\n")
            except OSError:
                pass

    def call_soon(self, function: Callable[[], None]) -> None:
        """Run `function` in this thread, from any thread."""
        self._calls.append(function)
        try:
            self._wake_in.send(b"x")
        except OSError:
            pass

    def call_later(self, seconds: float, function: Callable[[], None]) -> None:
        """Run `function` in this thread `seconds` from now; may be called from any thread."""
        timer = (time.monotonic() + seconds, next(self._timer_number), function)
        self.call_soon(lambda: heapq.heappush(self._timers, timer))

    def close_in_child(self) -> None:
        """After a fork, in the child: let go of everything that is the parent's, without a sound."""
        for key in list(self._selector.get_map().values()):
            if isinstance(key.fileobj, socket.socket):
                key.fileobj.close()
        self._wake_in.close()
        self._selector.close()
        self._lifeline = None

    def remove_socket(self) -> None:
        """Take the socket's file away; only in the process that made it."""
        if os.getpid() == self._pid:
            try:
                self.path.unlink()
            except OSError:
                pass

    # Below: control thread only.

    def _run(self) -> None:
        faults = 0
        while faults < _MAX_FAULTS:
            faults += 1
            with self._protect("control channel"):
                self._turn()
                faults -= 1

    def _turn(self) -> None:
        wait = max(self._timers[0][0] - time.monotonic(), 0) if self._timers else None
        for key, _ in self._selector.select(wait):
            key.data()
        while self._timers and self._timers[0][0] <= time.monotonic():
            heapq.heappop(self._timers)[2]()

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        connection.setblocking(False)
        lines = _Lines(connection, lambda request: self._answer(connection, request), lambda: self._drop(connection))
        self._selector.register(connection, selectors.EVENT_READ, lines)

    def _answer(self, connection: socket.socket, request: Request) -> None:
        name = str(request.get("op"))
        operation = self.operations.get(name)
        answer: dict[str, Any] = {"error": f"a rank does not know {name!r}"}
        if name in self.slow_operations:
            self._selector.unregister(connection)
            thread = threading.Thread(
                target=self._answer_slowly,
                args=(connection, self.slow_operations[name], request),
                name="raytrain_debug answer",
                daemon=True,
            )
            pydevd_signs.hide(thread)
            thread.start()
            return
        if name == "debug":
            self._selector.unregister(connection)
            connection.setblocking(True)
            try:
                connection.sendall(TAKEN, socket.MSG_NOSIGNAL)
            except OSError:
                self._drop(connection)  # the client has given up: this rank stays as it is
                return
            answer = {"error": "the debugger could not be switched on in this rank; see errors.log of the run"}
            with self._protect("switching the debugger on"):
                self.hand_over(connection, request)
                return
        elif operation is not None:
            answer = _carry_out(operation, request)
        _send(connection, answer)
        self._drop(connection)

    def _answer_slowly(self, connection: socket.socket, operation: Operation, request: Request) -> None:
        with connection, self._protect("control channel"):
            _send(connection, _carry_out(operation, request))

    def _drop(self, connection: socket.socket) -> None:
        try:
            self._selector.unregister(connection)
        except (KeyError, ValueError):
            pass
        connection.close()

    def _heard(self, message: Request) -> None:
        self.on_message(message)

    def _run_calls(self) -> None:
        try:
            self._wake_out.recv(4096)
        except OSError:
            pass
        while self._calls:
            self._calls.pop(0)()

    def _launcher_is_gone(self) -> None:
        if self._lifeline is not None:
            self._drop(self._lifeline)
            self._lifeline = None
        self.on_launcher_gone()
        if not self.ends_with_launcher:
            return
        self.call_later(_GRACE, lambda: os.kill(os.getpid(), signal.SIGKILL))
        os.kill(os.getpid(), signal.SIGTERM)


class _Lines:
    """Collects a non-blocking connection's bytes into JSON objects; called when it is readable."""

    def __init__(
        self, connection: socket.socket, on_line: Callable[[Request], None], on_end: Callable[[], None]
    ) -> None:
        self._connection = connection
        self._on_line = on_line
        self._on_end = on_end
        self._data = bytearray()

    def __call__(self) -> None:
        try:
            data = self._connection.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._data += data
        while (end := self._data.find(b"\n")) >= 0:
            line = bytes(self._data[:end])
            del self._data[: end + 1]
            try:
                value = codec.loads(line)
            except ValueError:
                value = None
            if not isinstance(value, dict):
                self._on_end()
                return
            self._on_line(value)
        if not data or len(self._data) > MAX_LINE:
            self._on_end()


def _carry_out(operation: Operation, request: Request) -> dict[str, Any]:
    try:
        return operation(request)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def _send(connection: socket.socket, answer: dict[str, Any]) -> None:
    connection.setblocking(True)
    connection.settimeout(2)
    try:
        connection.sendall(codec.dumps(answer).encode() + b"\n")
    except OSError:
        pass


def _listen(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path.unlink()
    except FileNotFoundError:
        pass
    listener.bind(os.fspath(path))
    os.chmod(path, 0o600)
    listener.listen(64)
    listener.setblocking(False)
    return listener
