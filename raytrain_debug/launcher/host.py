"""The launcher's second thread: one event loop that runs the gateway, the control socket and the death watch.

The main thread belongs to torchrun (or to the user's script, outside the launcher) and comes in here through `call`.
"""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import socket
import threading
import traceback
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

from raytrain_debug.launcher import control
from raytrain_debug.launcher.gateway import Gateway
from raytrain_debug.launcher.job import Job, RankState
from raytrain_debug.run import codec
from raytrain_debug.run import writer as run_writer
from raytrain_debug.run.channel import MAX_LINE
from raytrain_debug.shim import pydevd_signs

_ELSEWHERE = 1.0  # seconds to ask other nodes before `status` is answered without their news

T = TypeVar("T")

Conversation = Callable[[dict[str, Any], asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]
"""Takes over a connection to the control socket, with the first line that came, until it ends."""

_CORE_TIME = 5.0  # seconds that a rank has for its core before it is ended


class Host:
    """Starts and stops the thread. `exit_status(pid)` looks a return code up where another has reaped the process."""

    def __init__(self, job: Job, socket_path: Path) -> None:
        self.job = job
        self.socket_path = socket_path
        self.exit_status: Callable[[int], int | None] = lambda pid: None
        self.lifeline_ended: Callable[[RankState, dict[str, Any]], None] = lambda rank, hello: None
        self.conversations: dict[str, Conversation] = {}  # by the `op` of its first line
        self.elsewhere: Callable[[], Future[dict[int, dict[str, Any]]]] | None = None  # what other nodes' ranks do
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(self._note_fault)
        self._faults: set[str] = set()
        self._watched: set[int] = set()  # processes whose end has not been told yet
        self._gateways: list[Gateway] = []
        self._control: asyncio.Server | None = None
        self._thread = threading.Thread(target=self._loop.run_forever, name="raytrain_debug host", daemon=True)
        pydevd_signs.hide(self._thread)

    def start(self) -> None:
        """Start the thread and open the launcher's control socket."""
        self._thread.start()
        self.call(self._open_control())

    def open_gateway(self, gateway: Gateway, bound: dict[int, list[socket.socket]]) -> None:
        """Accept debuggers on `bound` ports."""
        if gateway not in self._gateways:
            self._gateways.append(gateway)
        self.call(gateway.open(bound))

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` in the event loop and return its result. From any other thread."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def call_soon(self, function: Callable[[], object]) -> None:
        """Run `function` in the event loop. From any thread."""
        self._loop.call_soon_threadsafe(function)

    def run(self, function: Callable[[], T]) -> T:
        """Run `function` in the event loop and return its result. From any other thread."""

        async def work() -> T:
            return function()

        return self.call(work())

    def watch(self, pids: list[int]) -> None:
        """Tell the job when these processes end, in the order in which the kernel tells."""
        for pid in pids:
            self.call_soon(functools.partial(self._watch, pid))

    def leave_cores(self) -> None:
        """Let the ranks of this node that are alive write down what they do: they are about to be ended."""
        try:
            self.call(self.dump_cores())
        except Exception as error:
            self.call_soon(functools.partial(self._note_fault, self._loop, {"message": "cores", "exception": error}))

    def stop(self) -> None:
        """Close everything and end the thread."""
        self.call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        if not self._thread.is_alive():
            self._loop.close()  # or its last words, at the interpreter's end, may be a traceback
        try:
            self.socket_path.unlink()
        except OSError:
            pass

    # Event loop thread.

    def _note_fault(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """A fault of ours in a callback: written down, and said once; the job goes on."""
        error = context.get("exception")
        text = f"{context.get('message')}: {error!r}"
        if text in self._faults or len(self._faults) > 20:
            return
        self._faults.add(text)
        self.job.complain(f"a fault of ours; the job goes on. Details: {self.job.paths.errors}")
        trace = "".join(traceback.format_exception(error)) if error is not None else ""
        try:
            run_writer.append_line(self.job.paths.errors, f"launcher, pid {os.getpid()}: {text}\n{trace}")
        except OSError:
            pass

    def _watch(self, pid: int) -> None:
        self._watched.add(pid)
        try:
            descriptor = os.pidfd_open(pid)
        except OSError:
            self._ended(pid)
            return

        def ended() -> None:
            self._loop.remove_reader(descriptor)
            os.close(descriptor)
            self._ended(pid)

        self._loop.add_reader(descriptor, ended)

    def _ended(self, pid: int) -> None:
        """Read how `pid` ended without taking that from torchrun, which waits for it too; see waitid(2), WNOWAIT."""
        try:
            result = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        except OSError:
            result = None
        if result is not None:
            exited = result.si_code == os.CLD_EXITED
            code, number = (result.si_status, None) if exited else (None, result.si_status)
        else:
            status = self.exit_status(pid)
            if status is None:
                # torchrun has just reaped it and is about to note its return code.
                self._loop.call_later(0.05, lambda: self._ended_late(pid))
                return
            code, number = (status, None) if status >= 0 else (None, -status)
        self._tell_end(pid, code, number)

    def _ended_late(self, pid: int) -> None:
        status = self.exit_status(pid)
        code, number = (status, None) if status is None or status >= 0 else (None, -status)
        self._tell_end(pid, code, number)

    def _tell_end(self, pid: int, code: int | None, number: int | None) -> None:
        self._watched.discard(pid)
        self.job.ended(pid, code, number)

    async def _hear_ends(self) -> None:
        """How a process ended that is gone already must be known before its client is told that all is over."""
        deadline = self._loop.time() + 1.0
        while self._loop.time() < deadline and any(not os.path.exists(f"/proc/{pid}") for pid in self._watched):
            await asyncio.sleep(0.01)

    async def dump_cores(self) -> None:
        """As `leave_cores`, in the event loop."""
        sockets = [rank.control for rank in self.job.ranks.values() if rank.control and rank.exit is None]
        await asyncio.gather(*(control.ask(socket, {"op": "dump"}, _CORE_TIME) for socket in sockets))

    async def _open_control(self) -> None:
        self._control = await asyncio.start_unix_server(self._serve, os.fspath(self.socket_path), limit=MAX_LINE)
        os.chmod(self.socket_path, 0o600)  # its directory is ours alone, so it has not been open before either

    async def _close(self) -> None:
        await self._hear_ends()
        if self._control is not None:
            self._control.close()
        for gateway in self._gateways:
            await gateway.close()
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                request = codec.loads(line)
                if request.get("op") == "hello":
                    await self._lifeline(request, reader, writer)
                    return
                if request.get("op") == "follow":
                    await self._follow(reader, writer)
                    return
                if request.get("op") in self.conversations:
                    await self.conversations[request["op"]](request, reader, writer)
                    return
                if request.get("op") == "status":
                    await self._look_elsewhere()
                writer.write(codec.dumps(self._answer(request)).encode() + b"\n")
                await writer.drain()
        except (OSError, ValueError, AttributeError, KeyError, TypeError, asyncio.CancelledError):
            pass  # cancelled by `stop`: asyncio's own callback would print a traceback for a task that ends so
        finally:
            writer.close()

    async def _lifeline(
        self, hello: dict[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        def send(message: dict[str, Any]) -> None:
            writer.write(codec.dumps(message).encode() + b"\n")

        rank = self.job.hello(hello, send)
        pid = rank.pid
        while line := await reader.readline():
            try:
                if rank.pid == pid:
                    self.job.says(rank, codec.loads(line))
            except Exception as error:  # a rank that loses its lifeline ends
                self._note_fault(self._loop, {"message": f"rank {rank.rank} said {line[:200]!r}", "exception": error})
        if rank.pid == pid:
            self.lifeline_ended(rank, hello)

    async def _follow(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Send the status now and after every change, one line each, until the other side goes."""
        news = asyncio.Event()
        news.set()

        def hear(rank: RankState) -> None:
            news.set()

        self.job.listeners.append(hear)
        gone = asyncio.ensure_future(reader.read(1))
        try:
            while not gone.done():
                waiting = asyncio.ensure_future(news.wait())
                await asyncio.wait({waiting, gone}, return_when=asyncio.FIRST_COMPLETED)
                waiting.cancel()
                if news.is_set() and not gone.done():
                    news.clear()
                    writer.write(codec.dumps(self._answer({"op": "status"})).encode() + b"\n")
                    await writer.drain()
        finally:
            gone.cancel()
            self.job.listeners.remove(hear)

    async def _look_elsewhere(self) -> None:
        """Learn what the ranks of other nodes do now, if that can be had soon."""
        if self.elsewhere is not None:
            try:
                self.job.elsewhere = await asyncio.wait_for(asyncio.wrap_future(self.elsewhere()), _ELSEWHERE)
            except asyncio.TimeoutError:
                pass

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        if request.get("op") == "status":
            here = {number: describe(rank) for number, rank in self.job.ranks.items()}
            ranks = {**self.job.elsewhere, **here}
            return {
                "attempt": self.job.record.attempt,
                "ranks": {str(number): rank for number, rank in sorted(ranks.items())},
            }
        if request.get("op") == "stop":
            end_job(self.job, str(request.get("reason")))
            return {"ok": True}
        return {"error": f"the launcher does not know {request.get('op')!r}"}


def end_job(job: Job, reason: str) -> None:
    """End the job as a person's SIGTERM to the launcher would."""
    job.stop_reason, job.stopping = reason, True
    os.kill(os.getpid(), signal.SIGTERM)


def describe(rank: RankState) -> dict[str, Any]:
    """What `status` shows of a rank."""
    where = rank.where
    return {
        "state": rank.state,
        "pid": rank.pid,
        "port": rank.port,
        "attempt": rank.attempt,
        "client": rank.client,
        "where": None if where is None else {"file": where.file, "line": where.line, "function": where.function},
    }
