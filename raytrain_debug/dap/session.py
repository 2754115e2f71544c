"""A debugger session on one rank: attach, stop, look, step and leave, as plain calls on top of the DAP client.

It works with pydevd speaking the protocol from inside the rank, which is what the gateway relays, and with any other
adapter that takes `attach`. One thread drives a session; a second one may ask for completions meanwhile.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from raytrain_debug.dap.breakpoints import Breakpoint, Breakpoints
from raytrain_debug.dap.client import Client, Event
from raytrain_debug.dap.model import SILENCE, ExceptionInfo, Frame, Stop, Thread, Variable, exception_only
from raytrain_debug.errors import DapError, RankEnded

TRAINING_THREAD = "MainThread"
RAY_TRAINING_THREAD = "TrainingThread("
_LAST_WORDS = 2.0  # seconds
_SPEAKS = 2.0  # seconds for an adapter to answer `initialize`, for which a gateway needs no rank

_INITIALIZE = {
    "clientID": "raytrain_debug",
    "clientName": "raytrain_debug",
    "adapterID": "debugpy",
    "pathFormat": "path",
    "linesStartAt1": True,
    "columnsStartAt1": True,
    "supportsVariableType": True,
    "locale": "en",
}
_STOP_AT_BAD_CONDITIONS: dict[str, Any] = {"skipSuspendOnBreakpointException": [], "skipPrintBreakpointException": []}
_ATTACH = {"type": "debugpy", "request": "attach", "justMyCode": False, "subProcess": False}


class Session:
    """The debugger's side of one rank."""

    def __init__(self, host: str, port: int, name: str = "the rank") -> None:
        """A session with the adapter at `host`:`port`, not attached yet; `name` is for messages ("rank 1").

        `on_output(category, text)` gets what the adapter says; `on_change()` is called when the rank stops, goes on
        or ends. Both run in the client's reader thread.
        """
        self.host, self.port, self.name = host, port, name
        self.breakpoints = Breakpoints()
        self.on_output: Callable[[str, str], None] = lambda category, text: None
        self.on_change: Callable[[], None] = lambda: None
        self._changed = threading.Condition()
        self._client: Client | None = None
        self._initialized = False
        self._training: Thread | None = None
        self._stop: Stop | None = None
        self._half: Stop | None = None  # paused, but the training thread has yet to come out of native code
        self._settled: Stop | None = None
        self._asked_to_stop = False  # and has not yet
        self._ended: str | None = None
        self._restart = False
        self._silent: tuple[str, float] | None = None  # why the rank does not answer yet, and since when that is known

    # State

    @property
    def stop(self) -> Stop | None:
        """Where the rank stands still, or None while it, or its training thread alone, runs."""
        return self._stop

    @property
    def ended(self) -> str | None:
        """Why the session is over, or None."""
        return self._ended

    @property
    def restarting(self) -> bool:
        """True when the session is over because the rank starts anew: `attach` again reaches its new attempt."""
        return self._restart

    def wait_for_stop(self, timeout: float | None = None) -> Stop | None:
        """Wait until the rank stands still, at most `timeout` seconds (None: for ever); None when it still runs then.

        A paused rank stands when its training thread does; other threads may stop long before. Removes temporary
        breakpoints that were hit. Raises RankEnded when the rank goes away instead.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            self._changed.wait_for(lambda: self._stop or self._half or self._ended is not None, timeout)
        half = self._half
        if half is not None and self.suspended(half.thread_id, deadline) and half is self._half:
            self._stop, self._half = half, None
        stop, ended = self._stop, self._ended
        if ended is not None:
            raise RankEnded(ended)
        if stop is not None and stop is not self._settled:
            self._settled = stop
            self._count_hits(stop)
        return stop

    # Coming and going

    def attach(
        self,
        arguments: dict[str, Any] | None = None,
        timeout: float | None = None,
        patience: float | None = None,
    ) -> None:
        """Connect and attach, with the breakpoints of this session; `arguments` are added to the `attach` request.

        Waits `timeout` seconds (None: for ever), for a gateway keeps its client waiting until the rank is there; for
        a rank that is there and is said not to answer, `patience` seconds from then on.
        Raises DapError in the adapter's own words when it refuses: another client holds the rank, say.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        if self._client is not None:
            # A rank takes one client: the last one must have gone, not just be about to.
            self.disconnect(_LAST_WORDS, wait_closed=True)
        self._forget()
        client = self._client = Client.connect(self.host, self.port)
        client.start(lambda event: self._take(client, event), lambda reason: self._gone(client, reason))
        try:
            opened = client.send("initialize", _INITIALIZE)
            opened.add_done_callback(lambda _: self._tell())
            if not self._comes(opened.done, _SPEAKS):
                why = f"no answer within {_SPEAKS:g} s: what serves {self.host}:{self.port} is stopped or busy"
                self._hear_silence(why)
                self.on_output("console", f"{self.name} gives {why}; still waiting")
                self._wait_for(opened.done, deadline, patience)
                self._hear_silence("")
            capabilities = opened.result()
            # An adapter may answer `attach` only after `configurationDone`, so its answer is not waited for here.
            attached = client.send("attach", {**_ATTACH, **(arguments or {})})
            attached.add_done_callback(lambda _: self._tell())
            self._wait_for(lambda: self._initialized or _failed(attached), deadline, patience)
            if _failed(attached):
                attached.result()
            # As pdb does, stop where the condition of a breakpoint raises; debugpy's own way is to pass by in silence.
            client.send("setDebuggerProperty", _STOP_AT_BAD_CONDITIONS)
            self.breakpoints.send_all(client.request, bool(capabilities.get("supportsFunctionBreakpoints")))
            client.request("setExceptionBreakpoints", {"filters": ["uncaught"]})
            client.request("configurationDone")
            attached.result(_left(deadline))
            self._training = self._find_training_thread()
        except BaseException:
            client.close()
            raise

    def _comes(self, done: Callable[[], bool], timeout: float) -> bool:
        with self._changed:
            return self._changed.wait_for(done, timeout)

    def _wait_for(self, done: Callable[[], bool], deadline: float | None, patience: float | None) -> None:
        """Wait for a part of `attach`; DapError when the deadline has come, or the rank was silent for too long."""
        with self._changed:
            while not done():
                silent = self._silent if patience is not None else None
                given_up = silent[1] + patience if silent is not None and patience is not None else None
                if _left(deadline) == 0.0:
                    raise DapError(f"{self.name} did not answer in time")
                if silent is not None and _left(given_up) == 0.0:
                    break
                self._changed.wait(
                    min((each for each in (_left(deadline), _left(given_up)) if each is not None), default=None)
                )
            else:
                return
        # In words, so that the gateway has let go of it when this returns: the rank is to be another client's.
        self.disconnect(_LAST_WORDS, wait_closed=True)
        raise DapError(f"{self.name} gives {silent[0]}")

    def _hear_silence(self, why: str) -> None:
        self._silent = (why, time.monotonic()) if why else None
        self._tell()

    def _find_training_thread(self) -> Thread | None:
        """None at the very end of a short script: its threads are over, or it is gone, which is told soon."""
        try:
            return self.training_thread()
        except DapError:
            return None

    def disconnect(self, timeout: float = 5.0, wait_closed: bool = False) -> None:
        """Detach: the rank goes on at full speed. Never raises, also when the rank is gone already."""
        client = self._client
        if client is None:
            return
        try:
            client.request("disconnect", {"restart": False, "terminateDebuggee": False}, timeout)
            if wait_closed:
                client.wait_closed(timeout)
        except DapError:
            pass  # gone is what was wanted
        client.close()

    # Motion

    def pause(self, thread_id: int | None = None) -> None:
        """Ask the training thread to stop; it does when it next runs a line of Python."""
        thread_id = thread_id or self.training_thread().id
        self._asked_to_stop = True
        self.request("pause", {"threadId": thread_id})

    def resume(self, command: str = "continue", thread_id: int | None = None) -> None:
        """Go on: "continue", "next" (over calls), "stepIn" or "stepOut", of that thread or (None) the one that stopped.

        All threads run meanwhile. To "continue" a rank that runs is no error: if it was asked to stop and has not
        yet, it need not any more.
        """
        if command == "continue" and self._stop is None and self._half is None:
            if self._asked_to_stop and self._client is not None:
                self._asked_to_stop = False
                # pydevd answers when a thread that stood has gone on; here none stands, so no answer is waited for.
                self._client.send(command, {"threadId": self.training_thread().id})
            return
        stop = self._half if command == "continue" and self._stop is None else self._stopped()
        assert stop is not None
        self._move(command, {"threadId": thread_id or stop.thread_id})

    def jump(self, path: str, line: int) -> None:
        """Make `path`:`line` the next line to run in the innermost frame; raises DapError when that cannot be."""
        thread_id = self._stopped().thread_id
        targets = self.request("gotoTargets", {"source": {"path": path}, "line": line}).get("targets") or []
        if not targets:
            raise DapError(f"cannot jump to {path}:{line}")
        self._move("goto", {"threadId": thread_id, "targetId": targets[0]["id"]})

    def _move(self, command: str, arguments: dict[str, Any]) -> None:
        # Forgotten before the request: the next stop may be told before its answer.
        stop, half, self._stop, self._half = self._stop, self._half, None, None
        self._asked_to_stop = False
        try:
            self.request(command, arguments)
        except RankEnded:
            raise
        except DapError:
            self._stop, self._half = self._stop or stop, self._half or half
            raise

    # Looking

    def threads(self) -> list[Thread]:
        return [Thread(int(row["id"]), str(row["name"])) for row in self.request("threads").get("threads") or []]

    def training_thread(self) -> Thread:
        """The thread that trains: the main thread, but for Ray's workers."""
        threads = self.threads()
        if not threads:
            raise DapError(f"{self.name} has no threads")
        named = [thread for thread in threads if thread.name.startswith(RAY_TRAINING_THREAD)]
        named += [thread for thread in threads if thread.name == TRAINING_THREAD]
        return named[0] if named else min(threads, key=lambda thread: thread.id)

    def stack(self, thread_id: int | None = None) -> list[Frame]:
        """The frames of a thread, innermost first: of the one that stands still, or (running) of the training thread.

        A running thread's frames are a sample: nothing can be evaluated in them.
        """
        if thread_id is None:
            thread_id = self._stop.thread_id if self._stop is not None else self.training_thread().id
        body = self.request("stackTrace", {"threadId": thread_id})
        return [Frame.of(row) for row in body.get("stackFrames") or []]

    def scopes(self, frame: Frame) -> list[Variable]:
        """The scopes of a frame ("Locals", "Globals"), to be asked for with `variables`."""
        body = self.request("scopes", {"frameId": frame.id})
        return [Variable(row["name"], "", "", row["variablesReference"]) for row in body.get("scopes") or []]

    def variables(self, reference: int) -> list[Variable]:
        """The variables behind a reference of a scope or of another variable."""
        body = self.request("variables", {"variablesReference": reference})
        return [Variable.of(row["name"], row.get("value"), row) for row in body.get("variables") or []]

    def evaluate(
        self, expression: str, frame: Frame | None = None, context: str = "repl", timeout: float | None = None
    ) -> Variable:
        """Evaluate an expression, or execute a statement, in a frame of a thread that stands still.

        A string's value comes as its text, without quotes; a statement's value is "". What it prints goes to
        `on_output`. Raises DapError with "Type: message" when it raises.
        """
        arguments: dict[str, Any] = {"expression": expression, "context": context, "format": {"rawString": True}}
        if frame is not None:
            arguments["frameId"] = frame.id
        try:
            body = self.request("evaluate", arguments, timeout)
        except RankEnded:
            raise
        except DapError as error:
            raise DapError(exception_only(str(error))) from None
        return Variable.of(expression, body.get("result"), body)

    def cancel(self) -> None:
        """Have the adapter end what it evaluates, if it can; nothing is waited for. Raises DapError."""
        if self._client is not None:
            self._client.send("cancel")

    def exception_info(self) -> ExceptionInfo:
        """The exception at which the rank stands; raises DapError when it stands at none."""
        return ExceptionInfo.of(self.request("exceptionInfo", {"threadId": self._stopped().thread_id}))

    def source(self, frame: Frame) -> str:
        """The text that the adapter holds for a frame's source; raises DapError when it holds none."""
        arguments = {"source": {"path": frame.path, "sourceReference": frame.source_reference}}
        body = self.request("source", {**arguments, "sourceReference": frame.source_reference})
        return str(body.get("content") or "")

    def completions(self, text: str, column: int, frame: Frame | None = None) -> list[str]:
        """What could stand at `column` (0-based, the cursor) of `text`, as whole words."""
        arguments: dict[str, Any] = {"text": text, "column": column + 1}
        if frame is not None:
            arguments["frameId"] = frame.id
        body = self.request("completions", arguments, 5.0)
        return [str(row.get("text") or row["label"]) for row in body.get("targets") or []]

    # Breakpoints

    def set_breakpoint(self, path: str, line: int, condition: str | None = None, temporary: bool = False) -> Breakpoint:
        """Stop at `path`:`line`. The breakpoint returned has the line that the adapter chose, and its doubts."""
        return self.breakpoints.add(self.request, path, line, condition=condition, temporary=temporary)

    def set_function_breakpoint(self, name: str, condition: str | None = None, temporary: bool = False) -> Breakpoint:
        """Stop in every function called `name`."""
        return self.breakpoints.add(self.request, None, function=name, condition=condition, temporary=temporary)

    def clear_breakpoints(self, numbers: Sequence[int] | None = None) -> list[Breakpoint]:
        """Remove those breakpoints, or (None) all; returns them. Raises KeyError for a number that is not set."""
        if numbers is None:
            numbers = [breakpoint.number for breakpoint in self.breakpoints]
        return self.breakpoints.remove(self.request, numbers)

    # Inside

    def request(
        self, command: str, arguments: dict[str, Any] | None = None, timeout: float | None = 30.0
    ) -> dict[str, Any]:
        """Any other request; as `Client.request`."""
        if self._ended is not None:
            raise RankEnded(self._ended)
        if self._client is None:
            raise DapError(f"not attached to {self.name}")
        return self._client.request(command, arguments, timeout)

    def _stopped(self) -> Stop:
        stop = self._stop
        if stop is None:
            raise DapError(f"{self.name} is running")
        return stop

    def _count_hits(self, stop: Stop) -> None:
        if not stop.reason.endswith("breakpoint") or not any(self.breakpoints):
            return
        path, line = "", 0
        if not stop.breakpoints and (frames := self.stack(stop.thread_id)):
            path, line = frames[0].path, frames[0].line
        hit = self.breakpoints.hit(stop.breakpoints, path, line)
        if spent := [breakpoint.number for breakpoint in hit if breakpoint.temporary]:
            self.clear_breakpoints(spent)

    def suspended(self, thread_id: int, deadline: float | None = 0.0) -> bool:
        """Whether a thread stands still, waiting for it to until the monotonic clock shows `deadline`."""
        while True:
            # Only frames of threads that stand still can be evaluated in; nothing else in the protocol tells.
            frames = self.stack(thread_id)
            try:
                if frames:
                    self.evaluate("0", frames[0], "watch")
                    return True
            except RankEnded:
                raise
            except DapError:
                pass
            if deadline is not None and time.monotonic() >= deadline:
                return False
            time.sleep(0.02)

    def _forget(self) -> None:
        self._initialized = self._restart = self._asked_to_stop = False
        self._stop = self._half = self._ended = self._silent = None

    def _tell(self) -> None:
        with self._changed:
            self._changed.notify_all()
        self.on_change()

    def _take(self, client: Client, event: Event) -> None:
        """One event of the adapter; runs in the client's reader thread."""
        name, body = event.get("event"), event["body"]
        if client is not self._client:
            return  # a late word of the connection before this one
        if name == "output":
            if SILENCE in body:
                self._hear_silence(str(body[SILENCE]))
            if body.get("category") != "telemetry":
                self.on_output(str(body.get("category") or "console"), str(body.get("output") or ""))
        elif name == "breakpoint":
            self.breakpoints.changed(body.get("breakpoint") or {})
        elif name == "initialized":
            self._initialized = True
            self._tell()
        elif name == "stopped":
            stop, training = Stop.of(body), self._training
            self._asked_to_stop = False
            if stop.reason == "pause" and training is not None and stop.thread_id != training.id:
                # A pause stops all threads and is told of whichever was first: the user asked for the training thread.
                self._half = replace(stop, thread_id=training.id)
            else:
                self._stop, self._half = stop, None
            self._tell()
        elif name == "continued":
            self._stop = self._half = None
            self._tell()
        elif name == "terminated":
            self._restart = bool(body.get("restart"))
            if self._restart or client.notice:
                self._gone(client, client.notice or "the rank starts anew")
            else:
                # The rank's own word, sent while it still ends; who knows how it ended speaks up a little later.
                threading.Timer(_LAST_WORDS, self._gone, (client, "the rank ended")).start()

    def _gone(self, client: Client, reason: str) -> None:
        if client is self._client and self._ended is None:
            self._ended = reason
            client.abandon(reason)
            self._tell()


def _failed(answer: Future[dict[str, Any]]) -> bool:
    return answer.done() and answer.exception() is not None


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - time.monotonic())
