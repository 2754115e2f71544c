"""A debug adapter on stdin and stdout, for editors: a job is one session, and each of its ranks a session below it.

`launch` starts a job, `attach` takes up a live one. Either has the editor open the ranks' sessions by the protocol's
own `startDebugging`. `attach` with `connect` is such a session of one rank, and `attach` with `postmortem` that of a
run that has ended: the adapter then only passes messages on, to the gateway or to the post-mortem server.

docs/editors.md has the properties of `launch` and `attach`, and what editors do with them.
"""

from __future__ import annotations

import asyncio
import re
import signal
import sys
from collections.abc import Coroutine
from typing import Any

from raytrain_debug.dap import framing
from raytrain_debug.dap.job_session import FindRun, JobSession
from raytrain_debug.dap.stream import CHUNK, Stream
from raytrain_debug.errors import DapError, RaytrainDebugError, UsageError

CAPABILITIES = {"supportsConfigurationDoneRequest": True, "supportsTerminateRequest": True}
_READY = re.compile(r"post-mortem ready on (\S+):(\d+)")
LAST_BYTES = 2.0  # seconds for the editor to read what is still to be sent

Message = dict[str, Any]


class Adapter:
    """One editor's session. `find_run(name, root)` gives a live run: the one named, or the newest."""

    def __init__(self, stream: Stream, find_run: FindRun) -> None:
        self._stream = stream
        self._find_run = find_run
        self._initialize: framing.Frame | None = None
        self._job: JobSession | None = None
        self._relay: Stream | None = None  # the server that all goes to
        self._server: asyncio.subprocess.Process | None = None  # the post-mortem server, if we started it
        self._starting: asyncio.Future[None] | None = None
        self._passing: asyncio.Future[None] | None = None
        self._over = asyncio.Event()
        self._tasks: set[asyncio.Future[None]] = set()
        self._opening: dict[int, str] = {}  # names of the sessions that the editor was asked to open, by request

    async def run(self) -> None:
        """Serve the editor until it, or the server that its session was passed on to, has gone."""
        tasks = {asyncio.ensure_future(self._serve()), asyncio.ensure_future(self._over.wait())}
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._end()

    def leave(self) -> None:
        """End the session, and the job if this session has started it."""
        self._over.set()

    async def _serve(self) -> None:
        while (frames := await self._stream.receive()) is not None:
            for frame in frames:
                if self._relay is not None:
                    self._relay.send(frame.raw)
                elif not await self._take(frame):
                    return
            await (self._relay or self._stream).flush()

    async def _take(self, frame: framing.Frame) -> bool:
        """Deal with one message; False when it was the last."""
        message = frame.message
        if message.get("type") == "response":
            name = self._opening.pop(message.get("request_seq", -1), "")
            if name and not message.get("success"):
                self._say(
                    f"the editor did not open a session for {name}: {message.get('message') or 'no reason given'}"
                )
            return True
        command = message.get("command")
        arguments = message.get("arguments") or {}
        if command == "initialize":
            self._initialize = frame
            self._stream.respond(message, CAPABILITIES)
        elif command in ("launch", "attach") and self._initialize is not None and self._starting is None:
            self._starting = asyncio.ensure_future(self._start(command, frame, arguments))
        elif command == "disconnect":
            await self._end()
            self._stream.respond(message)
            return False
        elif command == "terminate":
            self._stream.respond(message)
            if self._job is not None:
                await self._job.ask_to_stop()
        elif command == "threads":
            self._stream.respond(message, {"threads": []})
        elif command == "setBreakpoints":
            # Breakpoints are the ranks' business; the answer only has to have as many of them.
            unverified = [{"verified": False} for _ in arguments.get("breakpoints") or []]
            self._stream.respond(message, {"breakpoints": unverified})
        elif command == "evaluate":
            self._do(self._evaluate(message, str(arguments.get("expression") or "")))
        elif command == "raytrainOpen":
            self._answer_open(message, arguments.get("rank"))
        elif command in ("configurationDone", "setExceptionBreakpoints", "setFunctionBreakpoints"):
            self._stream.respond(message)
        else:
            self._stream.respond(message, error=f"the job as a whole has no {command}: choose one of its ranks")
        return True

    async def _start(self, command: str, frame: framing.Frame, arguments: Message) -> None:
        try:
            if command == "attach" and "connect" in arguments:
                await self._pass_on(frame, *_address(arguments["connect"]))
            elif command == "attach" and arguments.get("postmortem"):
                self._server = await _start_postmortem_server(arguments)
                await self._pass_on(frame, *await _wait_ready(self._server))
            else:
                job = self._job = JobSession(self._stream, self._open_rank)
                await (job.launch(arguments) if command == "launch" else job.attach(arguments, self._find_run))
                self._stream.event("initialized")
                self._stream.respond(frame.message)
        except RaytrainDebugError as error:
            self._stream.respond(frame.message, error=f"{error}\n{error.remedy}".strip())
            self._stream.event("terminated")

    async def _evaluate(self, request: Message, expression: str) -> None:
        """Typed in the job's console: the expression's value on all ranks."""
        try:
            if self._job is None:
                raise DapError("the job is not there yet")
            self._stream.respond(request, {"result": await self._job.evaluate(expression), "variablesReference": 0})
        except RaytrainDebugError as error:
            self._stream.respond(request, error=str(error))

    def _answer_open(self, request: Message, rank: Any) -> None:
        """A request of our own: a session for one more rank."""
        try:
            if self._job is None:
                raise DapError("the job is not there yet")
            self._job.open(rank)
            self._stream.respond(request)
        except RaytrainDebugError as error:
            self._stream.respond(request, error=str(error))

    async def _end(self) -> None:
        tasks = [task for task in (self._starting, self._passing, *self._tasks) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._job is not None:
            await self._job.stop()
        if self._relay is not None:
            await self._relay.close()
        if self._server is not None and self._server.returncode is None:
            self._server.terminate()
            await self._server.wait()

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _open_rank(self, configuration: Message) -> None:
        initialize = self._initialize.message.get("arguments") or {} if self._initialize is not None else {}
        name, address = configuration["name"], configuration["connect"]
        if initialize.get("supportsStartDebuggingRequest"):
            request = {"configuration": configuration, "request": "attach"}
            self._opening[self._stream.request("startDebugging", request)] = name
        else:
            self._say(f"{name} is ready for a debugger at {address['host']}:{address['port']}")

    def _say(self, text: str) -> None:
        self._stream.event("output", {"category": "important", "output": text + "\n"})

    # Passing on.

    async def _pass_on(self, attach: framing.Frame, host: str, port: int) -> None:
        """Give the session to the server at `host`:`port`, as if the editor had connected to it; raises DapError."""
        assert self._initialize is not None
        try:
            reader, writer = await asyncio.open_connection(host, port, limit=CHUNK)
        except OSError as error:
            raise DapError(f"nobody answers at {host}:{port}: {error.strerror or error}") from None
        relay = self._relay = Stream(reader, writer, f"{host}:{port}")
        self._passing = asyncio.ensure_future(self._pass_back(relay, self._initialize.message.get("seq")))
        relay.send(self._initialize.raw)
        relay.send(attach.raw)
        await relay.flush()

    async def _pass_back(self, relay: Stream, initialize: Any) -> None:
        try:
            while (frames := await relay.receive()) is not None:
                for frame in frames:
                    message = frame.message
                    if message.get("type") == "response" and message.get("request_seq") == initialize:
                        # The editor has had our answer to `initialize`; what this server can do besides is told now.
                        self._stream.event("capabilities", {"capabilities": message.get("body") or {}})
                    else:
                        self._stream.send(frame.raw)
                await self._stream.flush()
        except DapError as error:
            self._say(str(error))
        self.leave()


def _address(connect: Any) -> tuple[str, int]:
    try:
        return str(connect.get("host") or "127.0.0.1"), int(connect["port"])
    except (AttributeError, KeyError, TypeError, ValueError):
        raise UsageError('"connect" needs a port: {"host": "127.0.0.1", "port": 5678}') from None


async def _start_postmortem_server(arguments: Message) -> asyncio.subprocess.Process:
    run, root = arguments["postmortem"], arguments.get("runRoot")
    command = [str(arguments.get("python") or sys.executable), "-m", "raytrain_debug", "postmortem", "--serve", "0"]
    command += ["--once", *(["--run-root", str(root)] if root else []), *([str(run)] if run is not True else [])]
    try:
        return await asyncio.create_subprocess_exec(
            *command,
            cwd=arguments.get("cwd"),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
    except OSError as error:
        raise DapError(f"cannot start {command[0]}: {error.strerror}") from None


async def _wait_ready(server: asyncio.subprocess.Process) -> tuple[str, int]:
    """Where the post-mortem server listens, once it says so; raises DapError with its complaint when it ends."""
    assert server.stderr is not None
    said = ""
    while line := (await server.stderr.readline()).decode("utf-8", "replace"):
        if ready := _READY.search(line):
            return ready[1], int(ready[2])
        said += line.replace("raytrain_debug: opening the run\n", "")
    raise DapError(said.strip().removeprefix("raytrain_debug: ") or "the post-mortem server ended at once")


async def serve_standard_streams(find_run: FindRun, stdin: Any, stdout: Any) -> None:
    """Serve the editor at the other end of the two pipes until it has gone, or SIGTERM."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=CHUNK)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), stdin)
    transport, protocol = await loop.connect_write_pipe(
        lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()), stdout
    )
    writer = asyncio.StreamWriter(transport, protocol, None, loop)
    adapter = Adapter(Stream(reader, writer, "the editor"), find_run)
    for number in (signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, adapter.leave)
    await adapter.run()
    writer.close()
    try:
        await asyncio.wait_for(writer.wait_closed(), LAST_BYTES)
    except (OSError, asyncio.TimeoutError):
        pass
