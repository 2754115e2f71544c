"""The post-mortem server on real sockets: the protocol's flow, several clients, and clients that misbehave."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from raytrain_debug.cli import serving
from raytrain_debug.dap import framing, postmortem_server
from raytrain_debug.dap.client import Client, Event
from raytrain_debug.dap.dead_session import DeadSession
from raytrain_debug.dap.postmortem_server import Server
from raytrain_debug.errors import DapError, RunNotFound
from raytrain_debug.postmortem.dead_job import dead_job
from raytrain_debug.run.layout import ROOT_NAME, find_run
from raytrain_debug.run.reader import load_run
from tests.conftest import wait_for
from tests.dap_vscode import INITIALIZE
from tests.dead_runs import RAISES, DeadRun


class Debugger:
    """A debugger's connection, with what it was told."""

    def __init__(self, port: int) -> None:
        self.client = Client.connect("127.0.0.1", port)
        self.events: list[Event] = []
        self.closed = threading.Event()
        self.client.start(self.events.append, lambda reason: self.closed.set())

    def attach(self) -> None:
        self.client.request("initialize", INITIALIZE)
        self.client.request("attach", {"type": "debugpy"})
        self.wait("initialized")
        self.client.request("configurationDone")

    def named(self, name: str) -> list[dict[str, Any]]:
        return [event["body"] for event in list(self.events) if event["event"] == name]

    def wait(self, name: str, count: int = 1) -> dict[str, Any]:
        return wait_for(lambda: self.named(name)[count - 1 :], 20, lambda: f"{name} number {count}; {self.events}")[0]

    def evaluate(self, expression: str) -> str:
        return str(self.client.request("evaluate", {"expression": expression, "context": "repl"})["result"])

    def said(self) -> str:
        return "".join(body["output"] for body in self.named("output"))


@pytest.fixture
def run(tmp_path: Path) -> DeadRun:
    return DeadRun(tmp_path)


@pytest.fixture
def serve(tmp_path: Path) -> Callable[[], int]:
    """`serve()` opens the newest run under tmp_path on a port of its own."""

    def load() -> DeadSession:
        return DeadSession(dead_job(load_run(find_run(None, tmp_path / ROOT_NAME), last=1)))

    return lambda: serving.serve_in_background(load)[1]


@pytest.fixture
def connect(run: DeadRun, serve: Callable[[], int]) -> Iterator[Callable[[], Debugger]]:
    """`connect()` makes a debugger, all with one server."""
    port = serve()
    made: list[Debugger] = []

    def start() -> Debugger:
        made.append(Debugger(port))
        return made[-1]

    yield start
    for each in made:
        each.client.close()


def test_a_debugger_that_attaches_is_told_the_verdict_and_shown_the_exception(connect: Callable[[], Debugger]) -> None:
    debugger = connect()
    debugger.attach()
    stop = debugger.wait("stopped", 3)
    assert (stop["reason"], stop["preserveFocusHint"]) == ("exception", False)
    assert "Rank 1 failed first with ValueError: loss is nan" in debugger.said()
    assert "rank 1: 2 tensors were not kept" in debugger.said()
    (frame,) = debugger.client.request("stackTrace", {"threadId": stop["threadId"], "levels": 1})["stackFrames"]
    assert frame["line"] == RAISES


def test_answers_come_in_the_order_of_the_requests(connect: Callable[[], Debugger]) -> None:
    debugger = connect()
    debugger.attach()
    slow = debugger.client.send("evaluate", {"expression": "sum(range(3_000_000))", "context": "repl"})
    fast = debugger.client.send("threads")
    fast.result(20)
    assert slow.done()


def test_printed_text_is_output_before_the_answer(connect: Callable[[], Debugger]) -> None:
    debugger = connect()
    debugger.attach()
    assert debugger.evaluate("for name in names: print(name)") == ""
    assert [body["output"] for body in debugger.named("output") if body["category"] == "stdout"] == ["a\nb\n"]


def test_a_refusal_is_an_answer_with_words_to_show_and_the_next_request_is_served(
    connect: Callable[[], Debugger],
) -> None:
    debugger = connect()
    debugger.attach()
    for command in ("continue", "next", "setVariable", "goto", "noSuchRequest"):
        with pytest.raises(DapError, match="dead"):
            debugger.client.request(command, {"threadId": 1})
    assert len(debugger.client.request("threads")["threads"]) == 3


def test_requests_before_attach_are_answered(connect: Callable[[], Debugger]) -> None:
    debugger = connect()
    assert debugger.client.request("threads") == {"threads": []}
    with pytest.raises(DapError, match="attach"):
        debugger.client.request("evaluate", {"expression": "1"})
    debugger.client.request("initialize", INITIALIZE)
    debugger.attach()


def test_debuggers_look_side_by_side_each_with_names_of_its_own(connect: Callable[[], Debugger]) -> None:
    first, second = connect(), connect()
    first.attach()
    second.attach()
    first.evaluate("mine = 1")
    assert first.evaluate("mine") == "1"
    with pytest.raises(DapError, match="mine"):
        second.evaluate("mine")


def test_who_waits_for_a_long_computation_can_leave_and_others_are_served(connect: Callable[[], Debugger]) -> None:
    busy, other = connect(), connect()
    busy.attach()
    busy.client.send("evaluate", {"expression": "[None for _ in range(10**9) if all([])][:0]", "context": "repl"})
    other.attach()
    assert other.evaluate("names[0]") == "'a'"
    busy.client.request("disconnect", {}, timeout=10)
    assert busy.closed.wait(10)


def evaluations() -> int:
    """How many statements are being executed in this process."""
    return sum(
        frame.f_code.co_filename == "<statements>"
        for outermost in sys._current_frames().values()
        for frame, _ in traceback.walk_stack(outermost)
    )


@pytest.fixture
def busy(connect: Callable[[], Debugger]) -> tuple[Debugger, Future[dict[str, Any]]]:
    """A debugger whose statement goes on for ever, and what will be its answer."""
    debugger = connect()
    debugger.attach()
    endless = "try:\n    while True: pass\nfinally:\n    while True: pass"
    answer = debugger.client.send("evaluate", {"expression": endless, "context": "repl"})
    wait_for(evaluations, 20, "the statement to run")
    return debugger, answer


@pytest.mark.parametrize("how", ["cancel", "pause", "restart", "terminate"])
def test_an_expression_that_does_not_end_can_be_ended_and_the_next_is_evaluated(
    busy: tuple[Debugger, Future[dict[str, Any]]], how: str
) -> None:
    debugger, answer = busy
    waiting = debugger.client.send("threads")
    debugger.client.request(how, {"threadId": 1})
    with pytest.raises(DapError, match="interrupted before it had a result"):
        answer.result(20)
    assert len(waiting.result(20)["threads"]) == 3
    assert debugger.evaluate("6 * 7") == "42"
    assert evaluations() == 0


def test_a_request_that_waits_for_its_turn_can_be_cancelled_alone(
    busy: tuple[Debugger, Future[dict[str, Any]]],
) -> None:
    debugger, answer = busy
    waiting = debugger.client.send("evaluate", {"expression": "cancelled = 1", "context": "repl"})
    debugger.client.request("cancel", {"requestId": debugger.client._seq})
    assert not answer.done()
    debugger.client.request("cancel", {"requestId": debugger.client._seq - 2})
    for each in (answer, waiting):
        with pytest.raises(DapError, match="interrupted"):
            each.result(20)
    with pytest.raises(DapError, match="cancelled"):
        debugger.evaluate("cancelled")


def test_expressions_that_have_not_begun_when_a_debugger_wants_an_end_are_not_evaluated(
    connect: Callable[[], Debugger],
) -> None:
    debugger = connect()
    debugger.attach()
    endless = {"expression": "while True: pass", "context": "repl"}
    answers = [debugger.client.send("evaluate", endless) for _ in range(3)]
    debugger.client.request("terminate")
    for each in answers:
        with pytest.raises(DapError, match="interrupted"):
            each.result(20)


@pytest.mark.parametrize("leave", [lambda client: client.request("disconnect"), lambda client: client.close()])
def test_nothing_is_evaluated_for_a_debugger_that_has_left(
    busy: tuple[Debugger, Future[dict[str, Any]]], leave: Callable[[Client], object]
) -> None:
    debugger, _ = busy
    leave(debugger.client)
    wait_for(lambda: evaluations() == 0, 20, "the statement to end")


def test_restart_looks_again_at_what_is_the_newest_run_now(
    connect: Callable[[], Debugger], run: DeadRun, tmp_path: Path
) -> None:
    debugger = connect()
    debugger.attach()
    debugger.wait("stopped", 3)
    (before,) = debugger.client.request("stackTrace", {"threadId": 3, "levels": 1})["stackFrames"]
    report = run.paths.rank(1).reports
    report.write_text(report.read_text().replace('"step":2', '"step":22'))
    debugger.client.request("restart")
    debugger.wait("stopped", 6)
    assert debugger.evaluate("metrics['step']") == "22"
    assert debugger.client.request("scopes", {"frameId": before["id"]}) == {"scopes": []}


def test_terminate_ends_the_session(connect: Callable[[], Debugger]) -> None:
    debugger = connect()
    debugger.attach()
    debugger.client.request("terminate")
    debugger.wait("terminated")
    debugger.client.request("disconnect")
    assert debugger.closed.wait(10)


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"Content-Length: 99999999999\r\n\r\n",
        b"Content-Length: 2\r\n\r\n[]",
        framing.encode({"type": "request"}),
        framing.encode({"type": "request", "command": ["x"], "arguments": 3, "seq": "y"}),
        framing.encode({"type": "response", "command": "attach"}),
        b"Content-Le",
    ],
)
def test_bytes_that_are_no_such_protocol_harm_nobody(connect: Callable[[], Debugger], data: bytes) -> None:
    debugger = connect()
    debugger.attach()
    with socket.create_connection(("127.0.0.1", connect().client._socket.getpeername()[1])) as stranger:
        stranger.sendall(data)
        stranger.shutdown(socket.SHUT_WR)
        stranger.settimeout(10)
        while stranger.recv(65536):
            pass
    assert debugger.evaluate("names[0]") == "'a'"


def test_a_run_that_is_gone_is_told_and_ends_the_session(tmp_path: Path, serve: Callable[[], int]) -> None:
    debugger = Debugger(serve())
    debugger.client.request("initialize", INITIALIZE)
    with pytest.raises(DapError, match=r"no run is recorded.*\n.*launch"):
        debugger.client.request("attach", {})
    debugger.wait("terminated")
    debugger.client.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_other_users_are_not_let_in(run: DeadRun, serve: Callable[[], int]) -> None:
    script = (
        "import os, socket; 'x'.encode('idna'); os.setuid(65534)\n"
        f"with socket.create_connection(('127.0.0.1', {serve()})) as s:\n"
        "    try: print(s.recv(1))\n"
        "    except ConnectionResetError: print(b'')\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=20)
    assert done.stdout == "b''\n", done.stderr


def test_who_is_not_admitted_gets_nothing(run: DeadRun) -> None:
    asked: list[tuple[Any, Any]] = []

    async def main() -> bytes:
        listener = socket.create_server(("127.0.0.1", 0))
        server = Server(lambda: pytest.fail("not admitted"), lambda local, remote: bool(asked.append((local, remote))))
        serving_ = asyncio.ensure_future(server.serve([listener]))
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        try:
            return await asyncio.wait_for(reader.read(), 10)
        except ConnectionResetError:
            return b""
        finally:
            writer.close()
            serving_.cancel()

    assert asyncio.run(main()) == b""
    (pair,) = asked
    assert pair[0] != pair[1]


def test_a_server_of_one_use_ends_when_its_last_debugger_has_left(
    run: DeadRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postmortem_server, "RETURNS", 0.5)
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    server = Server(lambda: DeadSession(dead_job(load_run(run.paths, last=1))), lambda local, remote: True)
    ended = threading.Event()

    def work() -> None:
        asyncio.run(server.serve([listener], once=True))
        ended.set()

    threading.Thread(target=work, daemon=True).start()
    socket.create_connection(("127.0.0.1", port)).close()  # somebody who says nothing is no debugger
    assert not ended.wait(1.0)
    first, second = Debugger(port), Debugger(port)
    first.attach()
    second.attach()
    first.client.request("disconnect")
    assert not ended.wait(1.0)
    assert second.evaluate("names[0]") == "'a'"
    second.client.close()
    began = time.monotonic()
    assert ended.wait(10)
    assert time.monotonic() - began > 0.2


def test_a_port_that_is_taken_is_told_with_its_holder() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(Exception, match=f"port {port} is taken by .*pid {os.getpid()}") as caught:
            serving._listeners(port)
    assert "--serve PORT" in getattr(caught.value, "remedy", "")


def test_a_run_that_is_not_there_is_told_before_the_port_is_taken(tmp_path: Path) -> None:
    def load() -> DeadSession:
        return DeadSession(dead_job(load_run(find_run(None, tmp_path))))

    with pytest.raises(RunNotFound):
        serving.serve(load, 0, once=True)
