"""An editor for tests: it runs the debug adapter on pipes and opens a session a rank when the adapter asks for it.

It sends what nvim-dap and dape send. A rank's session goes straight to its port, as in VS Code and nvim-dap, or through
an adapter process of its own, as in dape.
"""

from __future__ import annotations

import queue
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from raytrain_debug.dap import framing
from tests.conftest import wait_for

Message = dict[str, Any]

INITIALIZE = {
    "clientID": "tests",
    "clientName": "an editor",
    "adapterID": "raytrain",
    "pathFormat": "path",
    "linesStartAt1": True,
    "columnsStartAt1": True,
    "supportsVariableType": True,
    "supportsStartDebuggingRequest": True,
}


class AdapterProcess:
    """One `python -m raytrain_debug adapter` and what it says. `children` are the configurations it asked to start."""

    def __init__(self, cwd: Path, **initialize: Any) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "raytrain_debug", "adapter"],
            cwd=cwd,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.events: list[Message] = []
        self.children: list[Message] = []
        self.closed = threading.Event()
        self._answers: dict[int, queue.Queue[Message]] = {}
        self._seq = 0
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.capabilities = self.request("initialize", {**INITIALIZE, **initialize})

    def send(self, command: str, arguments: Message | None = None) -> queue.Queue[Message]:
        """Send a request; its answer will be in the queue."""
        self._seq += 1
        answer = self._answers[self._seq] = queue.Queue()
        self._write({"seq": self._seq, "type": "request", "command": command, "arguments": arguments or {}})
        return answer

    def request(self, command: str, arguments: Message | None = None, timeout: float = 60.0) -> Message:
        """The body of a successful answer."""
        answer = self.send(command, arguments).get(timeout=timeout)
        assert answer["success"], answer
        body: Message = answer.get("body") or {}
        return body

    def refusal(self, command: str, arguments: Message | None = None, timeout: float = 60.0) -> str:
        """The words of a refusal."""
        answer = self.send(command, arguments).get(timeout=timeout)
        assert not answer["success"], answer
        return str(answer["body"]["error"]["format"])

    def configure(self, path: str | None = None, line: int = 0) -> None:
        """What an editor sends once it has seen `initialized`: breakpoints, and that these are all."""
        self.wait_event("initialized")
        if path is not None:
            self.request("setBreakpoints", {"source": {"path": path}, "breakpoints": [{"line": line}]})
        self.request("setExceptionBreakpoints", {"filters": ["uncaught"]})
        self.request("configurationDone")

    def bodies(self, name: str) -> list[Message]:
        return [event.get("body") or {} for event in list(self.events) if event["event"] == name]

    def wait_event(self, name: str, timeout: float = 60.0) -> Message:
        def came() -> list[Message]:
            bodies = self.bodies(name)
            if not bodies and self.closed.is_set():
                pytest.fail(f"the adapter ended without {name}: {self.events}")
            return bodies

        return wait_for(came, timeout, lambda: f"the event {name}; {self.events}")[0]

    def output(self) -> str:
        return "".join(str(body["output"]) for body in self.bodies("output"))

    def close(self) -> None:
        """Go away without a word, as an editor that is closed does."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _write(self, message: Message) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(framing.encode(message))
        self.process.stdin.flush()

    def _read(self) -> None:
        assert self.process.stdout is not None
        decoder = framing.Decoder()
        while data := self.process.stdout.read1(65536):  # type: ignore[attr-defined]
            for message in decoder.feed(data):
                self._take(message)
        self.closed.set()

    def _take(self, message: Message) -> None:
        if message["type"] == "response":
            self._answers[message["request_seq"]].put(message)
        elif message["type"] == "event":
            self.events.append(message)
        else:
            assert message["command"] == "startDebugging"
            assert message["arguments"]["request"] == "attach"
            self.children.append(message["arguments"]["configuration"])
            answer = {"type": "response", "request_seq": message["seq"], "command": "startDebugging", "success": True}
            self._seq += 1
            self._write({"seq": self._seq, **answer})
