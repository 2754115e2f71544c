"""A blocking, thread-safe client of one Debug Adapter Protocol server over TCP: requests, answers and events.

One reader thread receives everything in the order in which the adapter sent it; `on_event` and `on_close` run there,
so they must be short and must not send requests and wait for their answers.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any

from raytrain_debug.dap.framing import Decoder, encode
from raytrain_debug.errors import DapError, RankEnded

Event = dict[str, Any]
"""An event as it came: `event` is its name, `body` its content."""

_CLOSED = "the connection was closed"


class Client:
    """A connection to a debug adapter. Every method may be called from any thread."""

    def __init__(self, connection: socket.socket) -> None:
        """Take over `connection`; `start` begins to receive."""
        self._socket = connection
        # Two locks: a send that waits for the adapter to read must not keep the reader from taking its answers.
        self._sending = threading.Lock()
        self._lock = threading.Lock()
        self._seq = 0
        self._pending: dict[int, tuple[str, Future[dict[str, Any]]]] = {}
        self._notice = ""
        self._closed: str | None = None
        self._reader: threading.Thread | None = None
        self._on_event: Callable[[Event], None] = lambda event: None
        self._on_close: Callable[[str], None] = lambda reason: None

    @classmethod
    def connect(cls, host: str, port: int, timeout: float = 10.0) -> Client:
        """A client of the adapter that listens at `host`:`port`; raises DapError when none answers in `timeout` s."""
        try:
            connection = socket.create_connection((host, port), timeout)
        except OSError as error:
            raise DapError(f"nobody answers at {host}:{port}: {error.strerror or error}") from None
        connection.settimeout(None)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return cls(connection)

    def start(
        self, on_event: Callable[[Event], None] | None = None, on_close: Callable[[str], None] | None = None
    ) -> None:
        """Begin to receive: `on_event` gets every event, `on_close` is told once why the connection ended."""
        self._on_event = on_event or self._on_event
        self._on_close = on_close or self._on_close
        self._reader = threading.Thread(target=self._read, name="dap-client", daemon=True)
        self._reader.start()

    @property
    def notice(self) -> str:
        """What the adapter said of its own accord since the last request: the reason, when it then goes away."""
        return self._notice

    @property
    def closed(self) -> str | None:
        """Why the connection ended, or None while it lives."""
        return self._closed

    def send(self, command: str, arguments: dict[str, Any] | None = None) -> Future[dict[str, Any]]:
        """Send a request; the future gives the answer's body or raises as `request` does."""
        future: Future[dict[str, Any]] = Future()
        with self._sending:
            self._seq += 1
            with self._lock:
                if self._closed is not None:
                    raise RankEnded(self._closed)
                self._pending[self._seq] = (command, future)
                self._notice = ""
            self._write({"seq": self._seq, "type": "request", "command": command, "arguments": arguments or {}})
        return future

    def request(
        self, command: str, arguments: dict[str, Any] | None = None, timeout: float | None = 30.0
    ) -> dict[str, Any]:
        """The body of the adapter's answer to `command`, waiting at most `timeout` seconds (None: for ever).

        Raises DapError with the adapter's own words when it refuses or is silent, RankEnded when it is gone.
        """
        future = self.send(command, arguments)
        try:
            return future.result(timeout)
        except FutureTimeout:
            raise DapError(f"no answer to {command!r} within {timeout:g} s") from None

    def abandon(self, reason: str) -> None:
        """Wait for no answer any more: what is pending raises RankEnded. The connection stays, for `disconnect`."""
        with self._lock:
            pending, self._pending = self._pending, {}
        for _, future in pending.values():
            future.set_exception(RankEnded(reason))

    def wait_closed(self, timeout: float) -> None:
        """Wait for the adapter to end the connection, at most `timeout` seconds."""
        if self._reader is not None:
            self._reader.join(timeout)

    def close(self) -> None:
        """End the connection; who waits for an answer gets RankEnded."""
        self._end(_CLOSED)

    def _write(self, message: dict[str, Any]) -> None:
        """Send `message`, holding `_sending`. That the connection is broken is for the reader to notice and to say."""
        with contextlib.suppress(OSError):
            self._socket.sendall(encode(message))

    def _read(self) -> None:
        decoder = Decoder()
        reason = ""
        try:
            while data := self._socket.recv(65536):
                for message in decoder.feed(data):
                    self._dispatch(message)
        except OSError:
            pass  # reset, or closed by us
        except DapError as error:
            reason = str(error)
        self._end(reason or self._notice or _CLOSED)

    def _dispatch(self, message: dict[str, Any]) -> None:
        kind = message.get("type")
        if kind == "response":
            self._answer(message)
        elif kind == "event":
            body = message.get("body") or {}
            if message.get("event") == "output" and body.get("category", "console") in ("console", "important"):
                self._notice = str(body.get("output", "")).strip()
            self._on_event({**message, "body": body})
        elif kind == "request":
            self._refuse(message)

    def _answer(self, message: dict[str, Any]) -> None:
        with self._lock:
            command, future = self._pending.pop(message.get("request_seq", -1), ("", None))
        if future is None:
            return
        if message.get("success"):
            future.set_result(message.get("body") or {})
        else:
            future.set_exception(DapError(_refusal(message) or f"the adapter refused {command!r}"))

    def _refuse(self, message: dict[str, Any]) -> None:
        """Adapters may ask a client to start terminals and sessions: we do neither, and they must not wait."""
        with self._sending:
            self._seq += 1
            answer = {
                "seq": self._seq,
                "type": "response",
                "request_seq": message.get("seq"),
                "command": message.get("command"),
                "success": False,
                "message": "not supported",
            }
            self._write(answer)

    def _end(self, reason: str) -> None:
        with self._lock:
            if self._closed is not None:
                return
            self._closed = reason
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            self._socket.close()
        self.abandon(reason)
        self._on_close(reason)


def _refusal(message: dict[str, Any]) -> str:
    """What the adapter says in a failed answer: its long form with the variables filled in, or its short one."""
    body = message.get("body")
    error = body.get("error") if isinstance(body, dict) else None
    if isinstance(error, dict) and error.get("format"):
        text = str(error["format"])
        for name, value in (error.get("variables") or {}).items():
            text = text.replace("{" + name + "}", str(value))
        return text
    return str(message.get("message") or "")
