"""A real gateway in a thread, on real ports, with a stand-in for the rank behind its Unix socket.

The stand-in answers every request of the debugger at once, and does badly what a test asks it to do badly.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from pathlib import Path
from typing import Any

from raytrain_debug.dap import framing
from raytrain_debug.launcher import ports
from raytrain_debug.launcher.gateway import Gateway
from raytrain_debug.launcher.host import Host
from raytrain_debug.launcher.job import Job
from raytrain_debug.run import layout
from raytrain_debug.run.records import LauncherRecord, RunRecord
from tests.conftest import wait_for


class Rig:
    """The gateway of a job of one rank, which is there (`rank`) unless `absent`."""

    def __init__(self, directory: Path, absent: bool = False, address: str = "127.0.0.1", **options: Any) -> None:
        self.paths = layout.create_run(directory / layout.ROOT_NAME)
        launcher = LauncherRecord(pid=0, create_time=0.0, host="", socket="")
        record = RunRecord(self.paths.id, ("train.py",), ".", "torchrun", time.time(), 1, launcher=launcher)
        self.job = Job(self.paths, record)
        self.host = Host(self.job, layout.socket_path(self.paths.id, "launcher"))
        self.notes: list[str] = []
        self.stops: list[str] = []
        self.gateway = Gateway(self.job, self.stops.append, self.notes.append, **options)
        self.host.start()
        base_port, bound = ports.bind_free_ports(address, [0])
        self.port = base_port
        self.host.open_gateway(self.gateway, bound)
        self.ranks: list[FakeRank] = []
        if not absent:
            self.start_rank()

    @property
    def rank(self) -> FakeRank:
        return self.ranks[-1]

    def start_rank(self, **faults: Any) -> FakeRank:
        """A new attempt of the rank says hello."""
        rank = FakeRank(self, pid=1000 + len(self.ranks), **faults)
        self.ranks.append(rank)
        return rank

    def client(self, **options: Any) -> Client:
        return Client(self.port, **options)

    def state(self) -> str:
        return self.host.run(lambda: self.job.rank(0).state)

    def tasks(self) -> int:
        """How many connections the gateway serves."""
        return self.host.run(lambda: len(self.gateway._tasks))

    def close(self) -> None:
        self.host.stop()
        for rank in self.ranks:
            rank.close()


class FakeRank:
    """Listens as a rank does. `accepts` False takes no connection until `accept()`, `answers` False leaves a debugger
    without an answer, `reads` False is deaf once it has one, `release_takes` seconds to take the tracing off."""

    def __init__(
        self,
        rig: Rig,
        pid: int,
        accepts: bool = True,
        answers: bool = True,
        reads: bool = True,
        release_takes: float = 0.0,
    ) -> None:
        self.rig, self.pid = rig, pid
        self.answers, self.reads, self.release_takes = answers, reads, release_takes
        self.released = 0
        self.sent = 0
        self.debuggers: list[socket.socket] = []
        self.unanswered: list[socket.socket] = []
        path = layout.socket_path(rig.paths.id, f"rank0-{pid}")
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(path))
        self.listener.listen()
        self.lifeline = socket.socket(socket.AF_UNIX)
        self.lifeline.connect(str(rig.host.socket_path))
        hello = {"op": "hello", "rank": 0, "pid": pid, "attempt": pid - 1000, "control": str(path)}
        self.lifeline.sendall(json.dumps(hello).encode() + b"\n")
        if accepts:
            self.accept()
        wait_for(lambda: rig.host.run(lambda: rig.job.rank(0).control == str(path)), what="the rank's hello")

    def accept(self) -> None:
        """Take connections from now on."""
        threading.Thread(target=self._accept, daemon=True).start()

    def end(self, exit_code: int | None, signal: int | None = None, silently: bool = False) -> None:
        """The process ends; `silently` when a child of it holds the debugger's connection open."""
        if not silently:
            self.close()
        self.rig.host.run(lambda: self.rig.job.ended(self.pid, exit_code, signal))

    def flood(self, size: int) -> None:
        """Send the debugger `size` bytes of events, as fast as it takes them."""
        event = framing.encode({"seq": 1, "type": "event", "event": "output", "body": {"output": "x" * 65000}})
        try:
            while self.sent < size:
                self.debuggers[-1].sendall(event)
                self.sent += len(event)
        except OSError:
            pass

    def close(self) -> None:
        for each in (self.listener, self.lifeline, *self.debuggers, *self.unanswered):
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            each.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection.makefile("rb") as lines:
                request = json.loads(lines.readline())
            if request["op"] == "release":
                time.sleep(self.release_takes)
                self.released += 1
                connection.sendall(b'{"ok":true}\n')
                connection.close()
            elif request["op"] == "debug" and self.answers:
                self.debuggers.append(connection)
                connection.sendall(b'{"ok":true}\n')
                self._debug(connection)
            elif request["op"] == "debug":
                self.unanswered.append(connection)
        except (OSError, ValueError):
            pass

    def _debug(self, connection: socket.socket) -> None:
        decoder = framing.Decoder()
        while self.reads and (data := connection.recv(65536)):
            for message in decoder.feed(data):
                if message.get("type") != "request":
                    continue
                answer = {
                    "seq": 1,
                    "type": "response",
                    "request_seq": message.get("seq"),
                    "command": message.get("command"),
                    "success": True,
                    "body": {"echo": message.get("arguments")},
                }
                connection.sendall(framing.encode(answer))


class Client:
    """A debugger that says exactly what it is told to say."""

    def __init__(self, port: int, host: str = "127.0.0.1", receive_buffer: int | None = None) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.socket = socket.socket(family)
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(10)
        self.socket.connect((host, port))
        self.events: list[dict[str, Any]] = []
        self._decoder = framing.Decoder()
        self._messages: list[dict[str, Any]] = []
        self._seq = 0

    def send(self, command: str, arguments: Any = None, **more: Any) -> int:
        self._seq += 1
        message = {"seq": self._seq, "type": "request", "command": command, "arguments": arguments or {}, **more}
        self.socket.sendall(framing.encode(message))
        return self._seq

    def request(self, command: str, arguments: Any = None) -> dict[str, Any]:
        """The answer to a request; events on the way are kept in `events`."""
        seq = self.send(command, arguments)
        while True:
            message = self.receive()
            assert message is not None, f"the connection ended before {command} was answered"
            if message["type"] == "response" and message["request_seq"] == seq:
                return message
            self.events.append(message)

    def attach(self, **arguments: Any) -> dict[str, Any]:
        self.request("initialize", {"clientName": "the test"})
        return self.request("attach", arguments)

    def receive(self) -> dict[str, Any] | None:
        """The next message; None at the end of the connection."""
        while not self._messages:
            try:
                data = self.socket.recv(65536)
            except ConnectionError:
                return None
            if not data:
                return None
            self._messages += self._decoder.feed(data)
        return self._messages.pop(0)

    def ended(self, timeout: float = 5.0) -> list[dict[str, Any]]:
        """What came until the connection ended."""
        self.socket.settimeout(timeout)
        rest = [*self.events]
        while (message := self.receive()) is not None:
            rest.append(message)
        return rest

    def wait_event(self, name: str) -> dict[str, Any]:
        for known in self.events:
            if known.get("event") == name:
                return known
        while True:
            message = self.receive()
            assert message is not None, f"the connection ended before the event {name}"
            if message.get("event") == name:
                return message
            self.events.append(message)

    def close(self) -> None:
        self.socket.close()
