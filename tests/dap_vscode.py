"""A debug client that plays VS Code 1.100: F5 on what stands in .vscode/launch.json and tasks.json, without a window.

It runs a compound's (or configuration's) preLaunchTask and waits for its problem matcher, connects to all ports at
once, sends what VS Code sends in the order in which it does, asks for threads, stack and locals at each stop, attaches
again when a session ends with `restart`, and on Shift+F5 disconnects without ending what it debugs.

    with VsCode(workspace) as code:
        sessions = code.start_compound("Ray Train: train.py (2 ranks)", breakpoints={script: [7]})
        for session in sessions.values():
            assert session.wait_stopped().line == 7
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from raytrain_debug.dap.client import Client, Event
from raytrain_debug.errors import DapError

RESTART_DELAY = 0.5  # seconds between the end of a session with `restart` and the next attach, as measured

INITIALIZE = {
    "clientID": "vscode",
    "clientName": "Visual Studio Code",
    "adapterID": "debugpy",
    "pathFormat": "path",
    "linesStartAt1": True,
    "columnsStartAt1": True,
    "supportsVariableType": True,
    "supportsVariablePaging": True,
    "supportsRunInTerminalRequest": True,
    "locale": "en",
    "supportsProgressReporting": True,
    "supportsInvalidatedEvent": True,
    "supportsMemoryReferences": True,
    "supportsArgsCanBeInterpretedByShell": True,
    "supportsMemoryEvent": True,
    "supportsStartDebuggingRequest": True,
    "supportsANSIStyling": True,
}

Lines = list[int | dict[str, Any]]


class TaskFailed(Exception):
    """The preLaunchTask ended, or said nothing that its problem matcher waits for: VS Code shows a dialog."""


@dataclass(frozen=True)
class Stopped:
    """What the editor shows of a stop: the reason, and the top frame."""

    reason: str
    thread_id: int
    file: str
    line: int
    function: str
    frames: tuple[dict[str, Any], ...]
    locals: dict[str, str]
    text: str = ""


class VsCode:
    """A window with `workspace` open. Leaving the context stops its sessions and kills its tasks."""

    def __init__(self, workspace: str | os.PathLike[str], env: dict[str, str] | None = None) -> None:
        self.workspace = Path(workspace)
        self.env = {**os.environ, **(env or {})}
        self.tasks: list[Task] = []
        self.sessions: dict[str, DebugSession] = {}
        self._stop_all = False

    def __enter__(self) -> VsCode:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def launch_json(self) -> dict[str, Any]:
        return self._read("launch.json")

    @property
    def tasks_json(self) -> dict[str, Any]:
        return self._read("tasks.json")

    def start_compound(
        self, name: str, breakpoints: dict[str | os.PathLike[str], Lines] | None = None, timeout: float = 60.0
    ) -> dict[str, DebugSession]:
        """F5 on the compound `name`; its sessions by name. `breakpoints` are lines, or dicts with `line`, `condition`.

        Raises TaskFailed as VS Code shows a dialog, DapError for a session that cannot start ("connect ECONNREFUSED").
        """
        compound = _named(self.launch_json["compounds"], "name", name)
        configurations = [
            _named(self.launch_json["configurations"], "name", each) for each in compound["configurations"]
        ]
        self._stop_all = bool(compound.get("stopAll"))
        if "preLaunchTask" in compound:
            self._run_task(compound["preLaunchTask"], timeout)
        return self._start(configurations, breakpoints or {}, timeout)

    def start(
        self, name: str, breakpoints: dict[str | os.PathLike[str], Lines] | None = None, timeout: float = 60.0
    ) -> DebugSession:
        """F5 on the one configuration `name`."""
        configuration = _named(self.launch_json["configurations"], "name", name)
        self._stop_all = False
        return self._start([configuration], breakpoints or {}, timeout)[name]

    def stop(self) -> None:
        """Shift+F5 with `stopAll`: every session that lives is disconnected; the tasks go on."""
        for session in self.sessions.values():
            session.disconnect()

    def user_stopped(self, session: DebugSession) -> None:
        """The person has stopped one session: with `stopAll` that stops its siblings too."""
        if self._stop_all:
            self.stop()
        else:
            session.disconnect()

    def close(self) -> None:
        """Close the window."""
        self.stop()
        for task in self.tasks:
            task.kill()

    def _start(
        self, configurations: list[dict[str, Any]], breakpoints: dict[str | os.PathLike[str], Lines], timeout: float
    ) -> dict[str, DebugSession]:
        files = {os.fspath(file): lines for file, lines in breakpoints.items()}
        sessions = [DebugSession(self, self._substituted(each), files) for each in configurations]
        self.sessions.update({each.name: each for each in sessions})
        for each in configurations:
            if "preLaunchTask" in each:
                self._run_task(each["preLaunchTask"], timeout)
        with ThreadPoolExecutor(len(sessions)) as pool:
            # All at once: none of them waits for another, and none tries again.
            for _ in pool.map(lambda session: session.start(timeout), sessions):
                pass
        return {each.name: each for each in sessions}

    def _run_task(self, label: str, timeout: float) -> None:
        task = Task(self._substituted(_named(self.tasks_json["tasks"], "label", label)), self.workspace, self.env)
        self.tasks.append(task)
        task.wait_ready(timeout)

    def _read(self, name: str) -> dict[str, Any]:
        from raytrain_debug.editor import jsonc

        path = self.workspace / ".vscode" / name
        value: dict[str, Any] = jsonc.parse(path.read_bytes().decode("utf-8"), str(path)).value
        return value

    def _substituted(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {key: self._substituted(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self._substituted(item) for item in value]
        if not isinstance(value, str):
            return value
        return re.sub(r"\$\{([^}]*)\}", lambda match: self._variable(match[1]), value)

    def _variable(self, name: str) -> str:
        if name.startswith("env:"):
            return self.env.get(name[4:], "")
        values = {
            "workspaceFolder": os.fspath(self.workspace),
            "workspaceFolderBasename": self.workspace.name,
            "userHome": os.path.expanduser("~"),
            "pathSeparator": os.sep,
            "/": os.sep,
            "command:python.interpreterPath": sys.executable,
        }
        return values[name]


class Task:
    """A task of tasks.json, started in a process group of its own as a terminal of VS Code does."""

    def __init__(self, definition: dict[str, Any], workspace: Path, env: dict[str, str]) -> None:
        self.definition = definition
        options = definition.get("options") or {}
        command: str | list[str] = [definition["command"], *definition.get("args", [])]
        if definition.get("type") == "shell":
            command = " ".join(command)
        self.output = ""
        self._changed = threading.Condition()
        self.process = subprocess.Popen(
            command,
            shell=definition.get("type") == "shell",
            cwd=options.get("cwd", workspace),
            env={**env, **options.get("env", {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._ended = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait_ready(self, timeout: float) -> None:
        """Wait as VS Code does before it starts the sessions; raises TaskFailed."""
        matcher = self.definition.get("problemMatcher")
        background = matcher.get("background") if isinstance(matcher, dict) else None
        if self.definition.get("isBackground"):
            if not background:
                return  # nothing to wait for
            pattern = re.compile(background["endsPattern"])
            with self._changed:
                self._changed.wait_for(lambda: self._ended or self._matches(pattern), timeout)
                if self._matches(pattern):
                    return
                # One that has ended is no obstacle to VS Code, unless its problem matcher has found a problem.
                problem = re.compile(matcher["pattern"]["regexp"]) if "pattern" in matcher else None
                if self._ended and (problem is None or not self._matches(problem)):
                    return
            raise TaskFailed(f"{self.definition['label']} is not ready ({self.process.poll()}):\n{self.output}")
        if self.process.wait(timeout) != 0:
            raise TaskFailed(f"{self.definition['label']} exited with {self.process.returncode}:\n{self.output}")

    def wait(self, timeout: float = 30.0) -> int:
        """Wait for the task to end by itself; its exit code."""
        code = self.process.wait(timeout)
        self._reader.join(timeout)
        return code

    def kill(self) -> None:
        """End the task with everything that it started."""
        for number, patience in ((signal.SIGTERM, 10.0), (signal.SIGKILL, 5.0)):
            try:
                os.killpg(self.process.pid, number)
            except ProcessLookupError:
                break
            try:
                self.process.wait(patience)
            except subprocess.TimeoutExpired:
                continue
        self.process.wait(5.0)

    def _matches(self, pattern: re.Pattern[str]) -> bool:
        return any(pattern.search(line) for line in self.output.splitlines())

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._changed:
                self.output += line.decode(errors="replace")
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()


class DebugSession:
    """One debug session of the window."""

    def __init__(self, window: VsCode, configuration: dict[str, Any], breakpoints: dict[str, Lines]) -> None:
        self.name: str = configuration["name"]
        self.configuration = configuration
        self.breakpoints = breakpoints
        self.capabilities: dict[str, Any] = {}
        self.set_breakpoints: list[dict[str, Any]] = []  # what the adapter said of each
        self.output: list[tuple[str, str]] = []  # the Debug Console: category and text
        self.events: list[Event] = []
        self.attaches = 0
        self.error: DapError | None = None  # of an attach that happened by itself
        self._window = window
        self._changed = threading.Condition()
        self._client: Client | None = None
        self._initialized = False
        self._stop: dict[str, Any] | None = None
        self._ended = False

    @property
    def ended(self) -> bool:
        """True once the session is gone from the Call Stack view."""
        return self._ended

    @property
    def console(self) -> str:
        """The text of the Debug Console."""
        return "".join(text for _, text in self.output)

    def start(self, timeout: float = 60.0, restart: Any = None) -> None:
        """Connect and attach."""
        connect = self.configuration["connect"]
        client = Client.connect(connect["host"], int(connect["port"]))
        with self._changed:
            self._client, self._initialized, self._stop, self._ended = client, False, None, False
        client.start(lambda event: self._take(client, event), lambda reason: self._gone(client))
        try:
            self._attach(client, timeout, restart)
        except DapError:
            client.close()
            raise

    def wait_stopped(self, timeout: float = 30.0) -> Stopped:
        """Wait until the session stands, and read what the editor shows then."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._stop is not None or self._ended or self.error, timeout):
                raise AssertionError(f"{self.name} did not stop within {timeout:g} s; console:\n{self.console}")
            stop = self._stop
        if stop is None:
            raise AssertionError(f"{self.name} ended ({self.error}); console:\n{self.console}")
        thread_id = int(stop["threadId"])
        self.request("threads")
        frames = self._stack(thread_id)
        scopes = self.request("scopes", {"frameId": frames[0]["id"]})["scopes"]
        variables = self.request("variables", {"variablesReference": scopes[0]["variablesReference"]})["variables"]
        top = frames[0]
        return Stopped(
            stop["reason"],
            thread_id,
            top["source"]["path"],
            top["line"],
            top["name"],
            tuple(frames),
            {each["name"]: each["value"] for each in variables},
            stop.get("text") or "",
        )

    def evaluate(self, expression: str, frame: int = 0, context: str = "repl") -> str:
        """Type into the Debug Console (or, context "hover" or "watch", look at) with frame number `frame` selected."""
        arguments: dict[str, Any] = {"expression": expression, "context": context}
        with self._changed:
            stop = self._stop
        if stop is not None:
            arguments["frameId"] = self._stack(int(stop["threadId"]))[frame]["id"]
        return str(self.request("evaluate", arguments)["result"])

    def continue_(self) -> None:
        """F5 while stopped."""
        self.step("continue")

    def step(self, command: str = "next") -> None:
        """F10 ("next"), F11 ("stepIn") or Shift+F11 ("stepOut")."""
        with self._changed:
            assert self._stop is not None, f"{self.name} is not stopped"
            thread_id, self._stop = self._stop["threadId"], None
        self.request(command, {"threadId": thread_id})

    def pause(self) -> None:
        """F6: pauses the first thread, as VS Code does with a session selected."""
        self.request("pause", {"threadId": self.request("threads")["threads"][0]["id"]})

    def stop(self) -> None:
        """Shift+F5 on this session; with `stopAll` its siblings are stopped too."""
        self._window.user_stopped(self)

    def disconnect(self, restart: bool = False) -> None:
        """What stopping an attached session sends. Does nothing when the session is gone."""
        client = self._client
        if client is None:
            return
        try:
            client.request("disconnect", {"restart": restart}, 5.0)
        except DapError:
            pass
        client.close()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def wait_ended(self, timeout: float = 30.0) -> None:
        """Wait until the session is over by itself."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._ended, timeout):
                raise AssertionError(f"{self.name} did not end within {timeout:g} s; console:\n{self.console}")

    def wait_attached_again(self, times: int = 2, timeout: float = 60.0) -> None:
        """Wait until the session has been attached `times` times in all."""
        with self._changed:
            if not self._changed.wait_for(lambda: self.attaches >= times or self.error, timeout) or self.error:
                raise AssertionError(f"{self.name} did not attach again: {self.error}; console:\n{self.console}")

    def request(self, command: str, arguments: dict[str, Any] | None = None, timeout: float = 30.0) -> dict[str, Any]:
        """Any other request; raises DapError."""
        assert self._client is not None, f"{self.name} has not been started"
        return self._client.request(command, arguments, timeout)

    def _attach(self, client: Client, timeout: float, restart: Any) -> None:
        end = time.monotonic() + timeout
        self.capabilities = client.request("initialize", INITIALIZE, timeout)
        arguments = {**self.configuration, "__sessionId": f"{self.name}"}
        if restart is not None:
            arguments["__restart"] = restart
        attached = client.send("attach", arguments)
        attached.add_done_callback(lambda _: self._notify())
        with self._changed:
            self._changed.wait_for(lambda: self._initialized or attached.done(), timeout)
        if not self._initialized:
            attached.result(0.0 if attached.done() else max(0.0, end - time.monotonic()))  # raises why
        self.set_breakpoints = []
        for file, lines in self.breakpoints.items():
            wanted = [{"line": each} if isinstance(each, int) else each for each in lines]
            body = client.request(
                "setBreakpoints",
                {
                    "source": {"name": os.path.basename(file), "path": file},
                    "lines": [each["line"] for each in wanted],
                    "breakpoints": wanted,
                    "sourceModified": False,
                },
            )
            self.set_breakpoints += body["breakpoints"]
        if self.capabilities.get("supportsFunctionBreakpoints"):
            client.request("setFunctionBreakpoints", {"breakpoints": []})
        filters = self.capabilities.get("exceptionBreakpointFilters") or []
        # Those that the adapter offers as default are ticked until the person unticks them.
        client.request("setExceptionBreakpoints", {"filters": [each["filter"] for each in filters if each["default"]]})
        if self.capabilities.get("supportsConfigurationDoneRequest"):
            client.request("configurationDone")
        client.request("threads")
        attached.result(max(0.0, end - time.monotonic()))
        with self._changed:
            self.attaches += 1
            self._changed.notify_all()

    def _stack(self, thread_id: int) -> list[dict[str, Any]]:
        # The top frame first, so that the editor can open it; then the rest.
        top = self.request("stackTrace", {"threadId": thread_id, "startFrame": 0, "levels": 1})["stackFrames"]
        rest = self.request("stackTrace", {"threadId": thread_id, "startFrame": 1, "levels": 19})["stackFrames"]
        return [*top, *rest]

    def _take(self, client: Client, event: Event) -> None:
        name, body = event["event"], event["body"]
        with self._changed:
            if client is not self._client:
                return
            self.events.append(event)
            if name == "initialized":
                self._initialized = True
            elif name == "output":
                self.output.append((body.get("category", "console"), body.get("output", "")))
            elif name == "stopped":
                self._stop = body
            elif name == "continued":
                self._stop = None
            self._changed.notify_all()
        if name == "terminated":
            # Not here: this is the thread that must receive the answer to what is now sent.
            threading.Thread(target=self._terminated, args=(body.get("restart"),), daemon=True).start()

    def _terminated(self, restart: Any) -> None:
        if not restart:
            self.disconnect()
            return
        client = self._client
        assert client is not None
        try:
            client.request("disconnect", {"restart": True}, 5.0)
        except DapError:
            pass
        client.close()
        time.sleep(RESTART_DELAY)
        try:
            self.start(restart=restart)
        except DapError as error:
            with self._changed:
                self.error, self._ended = error, True
                self._changed.notify_all()

    def _gone(self, client: Client) -> None:
        with self._changed:
            # A connection that ends without `terminated` ends the session as well; with `restart` it comes back.
            restarts = any(each["event"] == "terminated" and each["body"].get("restart") for each in self.events[-3:])
            if client is self._client and not restarts:
                self._ended = True
            self._changed.notify_all()

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()


def _named(entries: list[dict[str, Any]], key: str, name: str) -> dict[str, Any]:
    found = [entry for entry in entries if entry.get(key) == name]
    if not found:
        raise KeyError(f"{name!r} is not there: {[entry.get(key) for entry in entries]}")
    return found[0]
