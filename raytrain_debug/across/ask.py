"""One question to many ranks at the same time, over their control channels; a rank that is silent holds up no other."""

from __future__ import annotations

import errno
import os
import selectors
import socket
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from raytrain_debug.errors import ControlError
from raytrain_debug.run import codec
from raytrain_debug.run.channel import MAX_LINE

_AT_ONCE = 128  # connections: file descriptors are few
_RETRY = 0.01  # seconds, while a rank's listen queue is full

# By the letters of proc(5).
_STATES = {
    "T": "its process is stopped, by SIGSTOP or Ctrl-Z",
    "t": "another tool has stopped its process",
    "D": "its process waits in the kernel, for a disk or a device",
    "R": "native code keeps Python busy in it",
    "S": "native code waits in it and lets no other Python run",
    "Z": "its process has ended",
    "X": "its process has ended",
}
_NO_ANSWER = "no answer"


@dataclass(frozen=True)
class Address:
    """A rank of this machine, and where it answers."""

    rank: int
    control: str
    pid: int | None = None


@dataclass
class _Question:
    """What is under way with one rank."""

    address: Address
    deadline: float
    connection: socket.socket
    received: bytearray = field(default_factory=bytearray)
    asked: bool = False


def ask_all(
    addresses: Iterable[Address], request: dict[str, Any], timeout: float = 2.0
) -> dict[int, dict[str, Any] | ControlError]:
    """Send `request` to every rank; each one's answer, or a ControlError that says why there is none.

    A rank has `timeout` seconds from when it is asked. An answer `{"error": text}` is returned as ControlError.
    """
    return _Asking(request, timeout).run(list(addresses))


class _Asking:
    def __init__(self, request: dict[str, Any], timeout: float) -> None:
        self.line = codec.dumps(request).encode() + b"\n"
        self.timeout = timeout
        self.answers: dict[int, dict[str, Any] | ControlError] = {}
        self.selector = selectors.DefaultSelector()

    def run(self, addresses: list[Address]) -> dict[int, dict[str, Any] | ControlError]:
        waiting = list(reversed(addresses))
        questions: list[_Question] = []
        try:
            while waiting or questions:
                while waiting and len(questions) < _AT_ONCE:
                    questions.append(self._begin(waiting.pop()))
                self._turn(questions)
                questions = [each for each in questions if each.address.rank not in self.answers]
        finally:
            for question in questions:
                question.connection.close()
            self.selector.close()
        return self.answers

    def _begin(self, address: Address) -> _Question:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.setblocking(False)
        question = _Question(address, time.monotonic() + self.timeout, connection)
        self._connect(question)
        return question

    def _connect(self, question: _Question) -> None:
        try:
            question.connection.connect(question.address.control)
            question.connection.sendall(self.line)
        except BlockingIOError:
            return  # its listen queue is full: tried again at the next turn
        except OSError as error:
            self._end(question, _absent(question.address, error))
            return
        question.asked = True
        self.selector.register(question.connection, selectors.EVENT_READ, question)

    def _turn(self, questions: list[_Question]) -> None:
        now = time.monotonic()
        wait = min((each.deadline for each in questions), default=now) - now
        if not all(each.asked for each in questions):
            wait = min(wait, _RETRY)
        for key, _ in self.selector.select(max(0.0, wait)):
            self._receive(key.data)
        now = time.monotonic()
        for each in questions:
            if each.address.rank in self.answers:
                continue
            if now >= each.deadline:
                self._end(each, ControlError(silence(each.address.pid, self.timeout)))
            elif not each.asked:
                self._connect(each)

    def _receive(self, question: _Question) -> None:
        try:
            data = question.connection.recv(1 << 18)
        except BlockingIOError:
            return
        except OSError as error:
            self._end(question, _absent(question.address, error))
            return
        question.received += data
        if data.endswith(b"\n"):
            self._end(question, _parse(question))
        elif not data:
            self._end(question, ControlError(f"rank {question.address.rank} hung up: {_fate(question.address.pid)}"))
        elif len(question.received) > MAX_LINE:
            self._end(question, ControlError("its answer is longer than any answer of ours"))

    def _end(self, question: _Question, answer: dict[str, Any] | ControlError) -> None:
        if question.asked:
            self.selector.unregister(question.connection)
        question.connection.close()
        self.answers[question.address.rank] = answer


def _parse(question: _Question) -> dict[str, Any] | ControlError:
    try:
        answer = codec.loads(bytes(question.received))
    except ValueError:
        return ControlError("its answer is not JSON")
    if not isinstance(answer, dict):
        return ControlError("its answer is not an object")
    return ControlError(str(answer["error"])) if "error" in answer else answer


def silence(pid: int | None, seconds: float) -> str:
    """Why a rank that was asked has said nothing for that long; `pid` is its process, None when that is elsewhere."""
    return f"{_NO_ANSWER} within {seconds:g} s: {_fate(pid)}"


def is_silence(why: str) -> bool:
    """Whether `why` there is no answer is that the rank, which is there, says nothing."""
    return why.startswith(_NO_ANSWER)


def is_stopped(pid: int | None) -> bool:
    """Whether a process of this machine runs no code at all until somebody lets it go on."""
    return _state(pid) in ("T", "t")


def _absent(address: Address, error: OSError) -> ControlError:
    reason = os.strerror(error.errno or 0)
    fate = _fate(address.pid)
    if error.errno in (errno.ENOENT, errno.ECONNREFUSED) and _state(address.pid) in ("R", "S", "D"):
        fate = "it is ending"  # its socket is taken away when Python ends, which may take a while
    return ControlError(f"nobody answers at {address.control} ({reason}): {fate}")


def _fate(pid: int | None) -> str:
    """What the process of a rank that does not answer does, as far as the system tells."""
    if pid is None:
        return "its process is not known"
    return _STATES.get(_state(pid), "its process lives")


def _state(pid: int | None) -> str:
    """The letter that proc(5) has for what the process does; "X" when there is none, "" when that cannot be told."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b") ")[2][:1].decode()
    except (FileNotFoundError, ProcessLookupError):
        return "" if pid is None else "X"
    except OSError:
        return ""
