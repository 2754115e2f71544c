"""A Debug Adapter Protocol server over a run that has ended: the dead job opens in an editor as a core dump does.

Clients are served side by side, each with a look of its own at the run. What they ask is answered in threads, so that
one's long computation keeps nobody else waiting, and so that who asked for it can end it or leave meanwhile.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from raytrain_debug.dap.dead_session import CAPABILITIES, DeadSession
from raytrain_debug.dap.stream import CHUNK, Stream
from raytrain_debug.errors import DapError, RaytrainDebugError
from raytrain_debug.run.interrupting import Call, Interrupted

MAX_MESSAGE = 8 * 1024 * 1024  # bytes of one message of a client
RETURNS = 2.0  # seconds in which a client that left may come back before a server of one use ends
UNCALLED = 300.0  # seconds for which a server of one use waits for its first client
_MAX_ASKED = 1_000  # requests of a client that wait for their answer
_THREAD = "postmortem-client"
_INTERRUPTED = "interrupted before it had a result"

Address = tuple[str, int]
Message = dict[str, Any]
T = TypeVar("T")


class Server:
    """`load` makes a look at the run, anew for each client; `admits(local, remote)` says who may connect."""

    def __init__(self, load: Callable[[], DeadSession], admits: Callable[[Address, Address], bool]) -> None:
        self._load = load
        self._admits = admits
        self._clients: set[asyncio.Task[None]] = set()
        self._used = False

    async def serve(
        self, listeners: Sequence[socket.socket], once: bool = False, ready: Callable[[], None] = lambda: None
    ) -> None:
        """Accept clients on the bound sockets until cancelled, or (`once`) until the last client has left.

        `ready` is called when they may come.
        """
        servers = [await asyncio.start_server(self._accept, sock=each, limit=CHUNK) for each in listeners]
        ready()
        try:
            await (self._used_up() if once else asyncio.Event().wait())
        finally:
            for server in servers:
                server.close()
            for task in list(self._clients):
                task.cancel()
            await asyncio.gather(*self._clients, return_exceptions=True)

    async def _used_up(self) -> None:
        alone = time.monotonic()
        while time.monotonic() - alone < (RETURNS if self._used else UNCALLED):
            await asyncio.sleep(0.1)
            if self._clients:
                alone = time.monotonic()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        local, remote = writer.get_extra_info("sockname"), writer.get_extra_info("peername")
        if not local or not remote or not self._admits(local[:2], remote[:2]):
            writer.transport.abort()
            return
        task = asyncio.current_task()
        assert task is not None
        self._clients.add(task)
        stream = Stream(reader, writer, "the debugger", MAX_MESSAGE)
        try:
            await _Client(stream, self._load).run()
        except asyncio.CancelledError:
            pass  # by `serve`: asyncio would report it as unhandled
        finally:
            self._clients.discard(task)
            self._used = self._used or stream.received > 0


class _Client:
    """One debugger: its requests are answered in their order; that it leaves, or wants no answer, is heard at once."""

    def __init__(self, stream: Stream, load: Callable[[], DeadSession]) -> None:
        self._stream = stream
        self._load = load
        self._session: DeadSession | None = None
        self._asked: asyncio.Queue[tuple[int, Message]] = asyncio.Queue(_MAX_ASKED)
        self._received = 0  # requests
        self._unwanted = 0  # expressions among so many first requests are not to be evaluated any more
        self._seq: int | None = None  # of the request that is being answered
        self._cancelled: set[int] = set()  # numbers of requests that wait for their answer, and need none
        self._call: Call[Any] | None = None  # the last one
        self._asking: Call[Message] | None = None  # the last one that a person may want an end of
        self._left = False

    async def run(self) -> None:
        answering = asyncio.ensure_future(self._answer_all())
        receiving = asyncio.ensure_future(self._receive())
        try:
            await asyncio.wait({answering, receiving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._left = True  # before Python 3.12, asyncio may lose a cancellation
            for task in (answering, receiving):
                task.cancel()
            await asyncio.gather(answering, receiving, return_exceptions=True)
            await self._stream.close()
            self._close()

    def _close(self) -> None:
        """End what is still being computed, and let go of the files then."""
        session, call = self._session, self._call
        if call is not None:
            call.interrupt()
            call.future.add_done_callback(lambda _: session.close() if session is not None else None)
        elif session is not None:
            session.close()

    async def _receive(self) -> None:
        try:
            while (frames := await self._stream.receive()) is not None:
                for frame in frames:
                    message = frame.message
                    if message.get("type") != "request":
                        continue
                    command = message.get("command")
                    if command == "disconnect":
                        self._stream.respond(message)
                        return
                    if command == "cancel":
                        self._cancel(message)
                    elif command in ("pause", "restart", "terminate") and self._interrupt() and command == "pause":
                        self._stream.respond(message)
                    else:
                        self._received += 1
                        await self._asked.put((self._received, message))
        except DapError as error:
            self._say(str(error))

    def _cancel(self, request: Message) -> None:
        """End the request that is named, or the one that is being answered when none is."""
        arguments = request.get("arguments")
        which = arguments.get("requestId") if isinstance(arguments, dict) else None
        if which is None or which == self._seq:
            self._interrupt()
        elif isinstance(which, int) and len(self._cancelled) < _MAX_ASKED:
            self._cancelled.add(which)
        self._stream.respond(request)

    def _interrupt(self) -> bool:
        """End what is being computed for a person, and what waits for that; whether anything was."""
        self._unwanted = self._received
        if self._asking is None or self._asking.future.done():
            return False
        self._asking.interrupt()
        return True

    async def _answer_all(self) -> None:
        while not self._left:
            number, request = await self._asked.get()
            seq = request.get("seq")
            self._seq = seq if isinstance(seq, int) else None
            unwanted = number <= self._unwanted and request.get("command") == "evaluate"
            try:
                if unwanted or self._seq in self._cancelled:
                    raise DapError(_INTERRUPTED)
                await self._answer(request)
            except RaytrainDebugError as error:
                self._stream.respond(request, error=f"{error}\n{error.remedy}".strip())
            except Exception as error:
                # Whatever a strange file or value brings about is told, and the next request is served.
                self._stream.respond(request, error=f"{type(error).__name__}: {error}")
            await self._stream.flush()

    async def _answer(self, request: Message) -> None:
        command, arguments = request.get("command"), request.get("arguments") or {}
        if not isinstance(command, str) or not isinstance(arguments, dict):
            raise DapError("a request has a command and an object of arguments")
        if command == "initialize":
            self._stream.respond(request, CAPABILITIES)
        elif command in ("attach", "launch"):
            await self._open(request)
            self._stream.event("initialized")
        elif command == "configurationDone":
            self._stream.respond(request)
            self._show()
        elif command == "restart":
            await self._open(request)
            self._show()
        elif command == "terminate":
            self._stream.respond(request)
            self._stream.event("terminated")
        elif self._session is None and command == "threads":
            self._stream.respond(request, {"threads": []})
        elif self._session is None:
            raise DapError(f"{command!r} comes after `attach`")
        else:
            await self._ask(self._session, request, command, arguments)

    async def _open(self, request: Message) -> None:
        """Look at the run, anew: it may be another one that is the newest now."""
        try:
            session = await self._through(Call(self._load, _THREAD))
        except RaytrainDebugError:
            self._stream.event("terminated")
            raise
        if self._session is not None:
            session.follow(self._session)
            self._session.close()
        self._session = session
        self._stream.respond(request)

    async def _ask(self, session: DeadSession, request: Message, command: str, arguments: Message) -> None:
        self._asking = Call(lambda: session.answer(command, arguments), _THREAD)
        try:
            body = await self._through(self._asking)
        finally:
            if session.printed:
                self._stream.event("output", {"category": "stdout", "output": session.printed})
                session.printed = ""
        self._stream.respond(request, body)

    def _show(self) -> None:
        """Say how the job ended, and where its ranks stand."""
        if self._session is None:
            return
        job = self._session.job
        for line in (job.verdict.sentence, *job.notes):
            self._say(line)
        stops = self._session.stops()
        for body in stops:
            self._stream.event("stopped", body)
        if not stops:
            self._say("no rank left anything to look at")
            self._stream.event("terminated")

    def _say(self, text: str) -> None:
        self._stream.event("output", {"category": "console", "output": text + "\n"})

    async def _through(self, call: Call[T]) -> T:
        """What the call comes to. Its thread ends with the process: asyncio's own would be waited for."""
        self._call = call
        try:
            return await asyncio.wrap_future(call.future)
        except Interrupted:
            raise DapError(_INTERRUPTED) from None
