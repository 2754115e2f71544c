"""One connection of a debugger to a rank's port, from its first byte to its last.

Debug Adapter Protocol layer: a relay between a client (VS Code, `attach`) and pydevd in the rank, which passes messages
on unchanged. It answers `initialize` itself (the debugger in the rank stays asleep until `attach`), holds `attach`
back until the rank is ready, lets go of the rank before it answers `disconnect`, and ends the session when the rank
ends. Two tasks: one reads the client, all the time, so that its leaving is never missed; one waits for the rank and
then reads it.

Belongs to the launcher's event loop thread.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from raytrain_debug.across.ask import silence
from raytrain_debug.dap import framing
from raytrain_debug.dap.asking import ASK, ASKABLE
from raytrain_debug.dap.model import SILENCE
from raytrain_debug.dap.stream import Stream
from raytrain_debug.errors import DapError
from raytrain_debug.launcher import control
from raytrain_debug.launcher.capabilities import CAPABILITIES
from raytrain_debug.launcher.job import RankState
from raytrain_debug.launcher.silence import watch
from raytrain_debug.run import codec

if TYPE_CHECKING:
    from raytrain_debug.launcher.gateway import Gateway

MAX_FIRST = 64 * 1024  # bytes a client may send before it is the one client of its rank
MAX_HELD = 512 * 1024  # bytes a client may send while its rank is not there
END_NEWS = 2.0  # seconds for the kernel to tell how a rank ended once its debugger's stream has closed
LAST_WORDS = 0.5  # seconds for a rank's stream to end once the rank has: a child of it may hold the other end open
RELEASE = 5.0  # seconds in which a rank that lives takes its tracing off
MAX_ASK = 600.0  # seconds for a rank to answer a question
GOODBYE = 30.0  # seconds for a client to answer `terminated` with `disconnect`

_GOES_ON = frozenset({"continue", "next", "stepIn", "stepOut", "goto"})

# What a client says of itself: pydevd adapts to it.
_INITIALIZE = {
    "adapterID": "debugpy",
    "linesStartAt1": True,
    "columnsStartAt1": True,
    "pathFormat": "path",
    "supportsVariableType": True,
}


class Refused(Exception):
    """The client has been told why; the connection ends."""


class DebugSession:
    """A client of one rank. `client` is its name, once it has given one."""

    def __init__(self, gateway: Gateway, rank: RankState, stream: Stream, needs_token: bool) -> None:
        self.rank = rank
        self.client = "a debugger"
        self._gateway = gateway
        self._stream = stream
        self._needs_token = needs_token
        self._initialized = False
        self._attach: asyncio.Future[framing.Frame] = asyncio.get_running_loop().create_future()
        self._held: list[framing.Frame] = []  # what the client sent while the rank was not there
        self._debugger: Stream | None = None  # pydevd in the rank
        self._dropped: set[int] = set()  # requests of ours whose answers the client must not see
        self._left = False  # the client has asked to go, or has gone
        self._ended = False  # the client has been told that the rank has ended
        self._terminated = False  # the client has been sent `terminated`
        self._news = asyncio.Event()  # the job knows something new of the rank
        self._watch: asyncio.Task[None] | None = None  # whether the rank says anything, until its session begins

    async def run(self) -> None:
        """Serve the client until it or the rank has gone; raises nothing but CancelledError."""
        self._gateway.job.listeners.append(self._hear)
        tasks = [asyncio.create_task(self._serve_client()), asyncio.create_task(self._serve_rank())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for each in done:
                each.result()
        except Refused as refusal:
            self._gateway.note(str(refusal))
        except DapError as error:
            if self._attach.done():
                self._gateway.note(f"rank {self.rank.rank}: the session with {self.client} has ended: {error}")
        except Exception as error:
            self._gateway.note(f"rank {self.rank.rank}: the session with {self.client} failed: {error!r}")
        finally:
            self._gateway.job.listeners.remove(self._hear)
            tasks += [self._watch] if self._watch is not None else []
            for each in tasks:
                each.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._gateway.released(self, asked_to=self._left)
            await self._close()

    def abort(self) -> None:
        """Drop the connection."""
        self._stream.abort()

    def rank_ended(self, moved: bool = False) -> None:
        """Tell the client why its rank is gone, and let another have the rank's next attempt.

        `moved` when that attempt is another node's.
        """
        if self._ended:
            return
        self._ended = True
        rank, job = self.rank, self._gateway.job
        lives = rank.exit is None and rank.control is not None
        why = f"the debugger in rank {rank.rank} has gone; the rank goes on" if lives else job.how_it_ended(rank)
        if moved:
            why = f"rank {rank.rank} is on another node now: python -m raytrain_debug status shows where"
        # VS Code makes a notification of what is important: that is a rank's own failure, not each end it causes.
        is_news = lives or rank.exit is None or (rank.exit.exit_code != 0 and not rank.exit.caused)
        self._stream.event("output", {"category": "important" if is_news else "console", "output": why + "\n"})
        if rank.exit is not None and rank.exit.exit_code is not None:
            self._stream.event("exited", {"exitCode": rank.exit.exit_code})
        restarts = job.will_restart(rank) and not moved
        self._terminate({"restart": {"attempt": rank.attempt + 1}} if restarts else {})
        self._gateway.released(self, asked_to=False)

    # The client's side.

    async def _serve_client(self) -> None:
        while (frames := await self._stream.receive()) is not None:
            for frame in frames:
                if not await self._take(frame):
                    return
            if not self._attach.done() and self._stream.received > MAX_FIRST:
                raise DapError("too much before the session has begun")
            if sum(len(frame.raw) for frame in self._held) > MAX_HELD:
                raise DapError("too much before the rank was there")
            await self._stream.flush()
            if self._debugger is not None:
                await self._debugger.flush()
        self._left = not self._ended
        await self._let_go()

    async def _take(self, frame: framing.Frame) -> bool:
        """One message of the client; False when it is the last."""
        message, command = frame.message, _command(frame.message)
        if command in ("disconnect", "terminate"):
            return await self._part(message)
        if self._ended:
            self._stream.respond(message, error=f"rank {self.rank.rank} has ended", is_news=False)
        elif self._debugger is not None:
            self._to_rank(frame)
        elif self._attach.done():
            self._held.append(frame)
        elif not self._initialized:
            if command != "initialize" or message.get("type") != "request":
                self._refuse(message, "the first request must be initialize")
            arguments = _arguments(message)
            self.client = _name(arguments.get("clientName") or arguments.get("clientID"))
            self._initialized = True
            self._stream.respond(message, CAPABILITIES)
        elif command == ASK:
            await self._ask(message)
        elif command in ("attach", "launch"):
            self._check_token(message)
            holder = self._gateway.claim(self)
            if holder is not None:
                self._refuse(
                    message,
                    f"rank {self.rank.rank} is already being debugged by {holder.client}; "
                    "a rank takes one debugger at a time: detach that one first (q, or Shift+F5)",
                )
            self._attach.set_result(frame)
        else:
            self._refuse(message, "attach must come first")
        return True

    async def _part(self, request: dict[str, Any]) -> bool:
        """The client wants to go, or the job to end; False when the connection is to end now."""
        command = _command(request)
        if self._ended or not self._attach.done():
            self._stream.respond(request)
            return False
        self._left = True
        if command == "terminate" or _arguments(request).get("terminateDebuggee"):
            # The person asked to end what they debug: one rank alone cannot end, the job can.
            self._stream.respond(request)
            self._terminate({})
            self._gateway.stop_job(f"{self.client} asked to end the job")
            return command == "terminate"
        await self._let_go()
        self._gateway.released(self, asked_to=True)
        self._stream.respond(request)
        return False

    async def _let_go(self) -> None:
        """Have the rank take its tracing off, so that it is at full speed, or another's, once the client is told."""
        debugger, self._debugger = self._debugger, None
        if debugger is None:
            return
        await debugger.close()
        if self.rank.control is not None:
            await control.ask(self.rank.control, {"op": "release"}, RELEASE)

    async def _ask(self, message: dict[str, Any]) -> None:
        """Pass a question on to the rank, for somebody who cannot reach its control channel and need not attach."""
        self._check_token(message)
        arguments = _arguments(message)
        question, seconds = arguments.get("question"), arguments.get("timeout")
        if not isinstance(question, dict) or question.get("op") not in ASKABLE:
            self._refuse(message, f"{ASK} needs a question: {' or '.join(ASKABLE)}")
        if not isinstance(seconds, (int, float)) or not 0 < seconds <= MAX_ASK:
            self._refuse(message, f"{ASK} needs a timeout of at most {MAX_ASK:g} seconds")
        path = self.rank.control
        answer = await control.ask(path, question, seconds) if path is not None else None
        if answer is None:
            silent = silence(self.rank.pid_here, seconds)
            self._stream.respond(message, error=silent if path else self._gateway.job.how_it_ended(self.rank))
        else:
            self._stream.respond(message, codec.plain(answer))  # DAP's JSON has no NaN

    def _check_token(self, attach: dict[str, Any]) -> None:
        token = self._gateway.token
        if not self._needs_token or token is None:
            return
        given = _arguments(attach).get("raytrainDebugToken")
        if not hmac.compare_digest(_bytes(given if isinstance(given, str) else ""), _bytes(token)):
            self._refuse(
                attach,
                'this gateway wants a token: set "raytrainDebugToken" in the attach configuration, or '
                "RAYTRAIN_DEBUG_TOKEN for the attach command, to the one that launch was given",
            )

    # The rank's side.

    async def _serve_rank(self) -> None:
        attach = await self._attach
        debugger = None
        while debugger is None:
            if self.rank.control is None and not self._is_over():
                text = f"waiting for rank {self.rank.rank} to start\n"
                self._stream.event("output", {"category": "console", "output": text, SILENCE: ""})
                await self._stream.flush()
            await self._until(lambda: self.rank.control is not None or self._is_over())
            if self.rank.control is None:
                self._refuse(attach.message, self._gateway.job.how_it_ended(self.rank))
            debugger = await self._connect(attach)
        await self._relay(debugger)
        if not self._left:
            self.rank_ended()
            await self._stream.flush()
        await asyncio.sleep(GOODBYE)

    async def _connect(self, attach: framing.Frame) -> Stream | None:
        """The stream to the debugger in the rank, `attach` on its way to it; None when the rank has just ended."""
        path, pid = str(self.rank.control), self.rank.pid
        stop_on_entry = bool(_arguments(attach.message).get("raytrainDebugStopOnEntry"))
        taken = asyncio.Event()
        self._watch = asyncio.create_task(watch(self.rank.pid_here, taken, self._tell_silence))
        try:
            request = {"op": "debug", "client": self.client, "stop_on_entry": stop_on_entry}
            answer, connection = await control.open_with(path, request, taken.set)
            taken.set()
        except OSError as error:
            self._watch.cancel()
            if await self._ends_within(END_NEWS, pid):
                return None
            self._refuse(attach.message, f"rank {self.rank.rank} does not answer: {error.strerror or error}")
        debugger = self._debugger = Stream(*connection, name=f"rank {self.rank.rank}")
        if not answer.get("ok"):
            self._refuse(attach.message, str(answer.get("error", "the rank did not let a debugger in")))
        self._dropped.add(debugger.request("initialize", _INITIALIZE))
        for frame in [attach, *self._held]:
            self._to_rank(frame)
        self._held.clear()
        return debugger

    async def _relay(self, debugger: Stream) -> None:
        """Pass on what the rank says until it, or the rank, has ended."""
        pid = self.rank.pid
        reading = asyncio.ensure_future(self._from_rank(debugger))
        ending = asyncio.ensure_future(self._until(lambda: self._is_gone(pid)))
        try:
            await asyncio.wait({reading, ending}, return_when=asyncio.FIRST_COMPLETED)
            if reading.done():
                reading.result()
                await asyncio.wait({ending}, timeout=END_NEWS)
            else:
                await asyncio.wait({reading}, timeout=LAST_WORDS)
        finally:
            reading.cancel()
            ending.cancel()
            if self._watch is not None:
                self._watch.cancel()
            await asyncio.gather(reading, ending, return_exceptions=True)

    async def _from_rank(self, debugger: Stream) -> None:
        while (frames := await debugger.receive()) is not None:
            for frame in frames:
                self._to_client(frame)
            await self._stream.flush()

    def _to_client(self, frame: framing.Frame) -> None:
        message = frame.message
        if message.get("type") == "response" and message.get("request_seq") in self._dropped:
            self._dropped.discard(message["request_seq"])
            return
        event = message.get("event")
        if event in ("terminated", "exited"):
            return  # the kernel tells us how a rank ended; pydevd can only say that its stream is over
        if event in ("stopped", "continued"):
            self._set_paused(event == "stopped")
        if event == "initialized" and self._watch is not None:
            self._watch.cancel()
        self._stream.send(frame.raw)

    def _to_rank(self, frame: framing.Frame) -> None:
        assert self._debugger is not None
        if _command(frame.message) in _GOES_ON:
            self._set_paused(False)
        self._debugger.send(frame.raw)

    def _set_paused(self, paused: bool) -> None:
        if self.rank.paused != paused and not self._left:
            self.rank.paused = paused
            self._gateway.job.changed(self.rank)

    # What the job knows of the rank.

    def _is_over(self) -> bool:
        return self.rank.exit is not None and not self._gateway.job.will_restart(self.rank)

    def _is_gone(self, pid: int | None) -> bool:
        """True when the process `pid` is the rank no more."""
        return self.rank.exit is not None or self.rank.pid != pid

    async def _ends_within(self, seconds: float, pid: int | None) -> bool:
        try:
            await asyncio.wait_for(self._until(lambda: self._is_gone(pid)), seconds)
        except asyncio.TimeoutError:
            return False
        return True

    async def _until(self, condition: Callable[[], bool]) -> None:
        """Wait until `condition()` holds, looking whenever the job says that the rank has changed."""
        while not condition():
            self._news.clear()
            await self._news.wait()

    def _hear(self, rank: RankState) -> None:
        if rank is self.rank:
            self._news.set()

    # Words of ours.

    def _refuse(self, request: dict[str, Any], why: str) -> NoReturn:
        self._stream.respond(request, error=why)
        self._terminate({})
        raise Refused(f"refused {self.client} on rank {self.rank.rank}: {why}")

    def _tell_silence(self, why: str) -> None:
        """Tell why the rank says nothing, or (empty) that it does now."""
        rank = f"rank {self.rank.rank}"
        text = f"{rank} gives {why}; still waiting" if why else f"{rank} answers now"
        self._stream.event("output", {"category": "console", "output": text + "\n", SILENCE: why})

    def _terminate(self, body: dict[str, Any]) -> None:
        if not self._terminated:
            self._terminated = True
            self._stream.event("terminated", body)

    async def _close(self) -> None:
        streams = [each for each in (self._debugger, self._stream) if each is not None]
        await asyncio.gather(*(each.close() for each in streams), return_exceptions=True)


def _command(request: dict[str, Any]) -> str:
    """The command of a request, whatever a client may have put there."""
    command = request.get("command")
    return command if isinstance(command, str) else ""


def _arguments(request: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a request, whatever a client may have put there."""
    arguments = request.get("arguments")
    return arguments if isinstance(arguments, dict) else {}


def _name(given: Any) -> str:
    """What a client calls itself, fit for a terminal."""
    text = "".join(each for each in given if each.isprintable())[:80].strip() if isinstance(given, str) else ""
    return text or "a debugger"


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
