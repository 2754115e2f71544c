"""What a debugger asks about a dead job, answered: threads, stacks, scopes, variables, expressions, source text.

Requests come one after the other; answers are the protocol's bodies. Nothing here talks to a client.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from raytrain_debug.errors import DapError, RaytrainDebugError
from raytrain_debug.postmortem import tree
from raytrain_debug.postmortem.dead_job import DeadFrame, DeadJob, DeadThread
from raytrain_debug.postmortem.dead_rank import DeadRank
from raytrain_debug.postmortem.evaluate import Evaluator
from raytrain_debug.postmortem.opened import OpenFiles
from raytrain_debug.postmortem.recorded import headline
from raytrain_debug.postmortem.tree import Node
from raytrain_debug.run.records import ExceptionRecord

CAPABILITIES = {
    "supportsConfigurationDoneRequest": True,
    "supportsEvaluateForHovers": True,
    "supportsExceptionInfoRequest": True,
    "supportsDelayedStackTraceLoading": True,
    "supportsCompletionsRequest": True,
    "completionTriggerCharacters": ["."],
    "supportsClipboardContext": True,
    "supportsValueFormattingOptions": True,
    "supportsRestartRequest": True,
    "supportsCancelRequest": True,
    "exceptionBreakpointFilters": [],
}

DEAD = "this job is dead: it cannot"
_REFUSED = {
    "continue": f"{DEAD} go on",
    "next": f"{DEAD} step",
    "stepIn": f"{DEAD} step",
    "stepOut": f"{DEAD} step",
    "stepBack": f"{DEAD} step back; choose an older frame of the stack",
    "reverseContinue": f"{DEAD} run backwards; choose an older frame of the stack",
    "pause": f"{DEAD} be paused, it stands already",
    "goto": f"{DEAD} jump",
    "gotoTargets": f"{DEAD} jump",
    "stepInTargets": f"{DEAD} step",
    "restartFrame": f"{DEAD} run a frame again",
    "setVariable": f"{DEAD} be changed: its variables are as they were recorded",
    "setExpression": f"{DEAD} be changed: its variables are as they were recorded",
    "terminateThreads": f"{DEAD} be ended again",
    "readMemory": "no memory was kept, only values",
    "writeMemory": "no memory was kept, only values",
    "disassemble": "no machine code was kept, only frames",
    "locations": "no places of values were kept",
}
_NO_BREAKPOINT = "the job is dead: nothing runs that could stop here"
_MAX_STOPS = 256
_LONGEST = 1_000_000  # characters of an answer in the console

Message = dict[str, Any]


@dataclass(frozen=True)
class _Place:
    """A frame of a thread, and the rank whose values it sees."""

    thread: DeadThread
    frame: DeadFrame


class DeadSession:
    """One debugger's look at `job`. Not thread-safe; `close` lets go of the files."""

    def __init__(self, job: DeadJob, unsafe: bool = False) -> None:
        """`unsafe` runs code from checkpoints that safe loading refuses."""
        self.job = job
        self.printed = ""  # by the last expression
        self._files = OpenFiles(unsafe)
        self._ranks = {thread.rank.rank: DeadRank(thread.rank, self._files) for thread in job.threads}
        self._threads = dict(enumerate(job.threads, 1))
        self._frames: list[_Place] = []
        self._frame_ids: dict[tuple[int, int], int] = {}
        self._children: list[Callable[[], list[Node]]] = []
        self._bodies: dict[int, list[Message]] = {}  # of references that were opened
        self._sources: list[tuple[int, str]] = []  # rank and file, by reference
        self._given = self._threads_given = 0  # numbers that are of earlier looks
        self._evaluator = Evaluator()
        self._answers: dict[str, Callable[[Message], Message]] = {
            "threads": self._list_threads,
            "stackTrace": self._stack_trace,
            "scopes": self._scopes,
            "variables": self._variables,
            "evaluate": self._evaluate,
            "completions": self._completions,
            "exceptionInfo": self._exception_info,
            "source": self._source,
            "setBreakpoints": self._no_breakpoints,
            "setFunctionBreakpoints": self._no_breakpoints,
            "setDataBreakpoints": self._no_breakpoints,
            "setInstructionBreakpoints": self._no_breakpoints,
            "setExceptionBreakpoints": lambda arguments: {"breakpoints": []},
            "breakpointLocations": lambda arguments: {"breakpoints": []},
            "dataBreakpointInfo": lambda arguments: {"dataId": None, "description": _NO_BREAKPOINT},
            "loadedSources": self._loaded_sources,
            "modules": lambda arguments: {"modules": [], "totalModules": 0},
        }

    def close(self) -> None:
        """Let go of checkpoint files."""
        self._files.close()

    def follow(self, earlier: DeadSession) -> None:
        """Be the next look of a debugger that may still ask for what it saw in `earlier`: no number means two things.

        An editor that looks anew asks for old frames and variables until it has the new ones; it is told nothing.
        """
        self._given = earlier._given + max(len(earlier._frames), len(earlier._children), len(earlier._sources))
        self._threads_given = max(earlier._threads_given, len(earlier._threads))

    def answer(self, command: str, arguments: Message) -> Message:
        """The body of the answer to a request; raises DapError with what to tell the person."""
        if command in _REFUSED:
            raise DapError(_REFUSED[command])
        if command not in self._answers:
            raise DapError(f"a dead job does not know {command!r}")
        try:
            return self._answers[command](arguments)
        except RaytrainDebugError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DapError(f"{command!r} lacks something that it needs: {type(error).__name__}: {error}") from None

    def stops(self) -> list[Message]:
        """Bodies of the `stopped` events that show the job: one for each thread, or where they are too many for each
        exception and for all the rest at once; the thread to look at first comes last.
        """
        each = len(self._threads) <= _MAX_STOPS
        focus: list[Message] = []
        stops: list[Message] = []
        for number, thread in self._threads.items():
            if thread is self.job.focus:
                focus = [_stopped(number, thread, quiet=False, alone=each)]
            elif each or thread.exception is not None:
                stops.append(_stopped(number, thread, quiet=True, alone=True))
        return stops + focus

    # Threads and frames

    def _list_threads(self, arguments: Message) -> Message:
        return {"threads": [{"id": number, "name": thread.name} for number, thread in self._threads.items()]}

    def _thread(self, number: Any) -> DeadThread:
        if number not in self._threads:
            raise DapError(f"there is no thread {number!r}")
        return self._threads[number]

    def _stack_trace(self, arguments: Message) -> Message:
        number = arguments["threadId"]
        if number not in self._threads and number in range(1, self._threads_given + 1):
            return {"stackFrames": [], "totalFrames": 0}
        thread = self._thread(number)
        start, levels = int(arguments.get("startFrame") or 0), int(arguments.get("levels") or 0)
        end = start + levels if levels else len(thread.frames)
        return {
            "stackFrames": [self._frame(number, at) for at in range(start, min(end, len(thread.frames)))],
            "totalFrames": len(thread.frames),
        }

    def _frame(self, number: int, at: int) -> Message:
        thread = self._threads[number]
        place = _Place(thread, thread.frames[at])
        if (number, at) not in self._frame_ids:
            self._frames.append(place)
            self._frame_ids[number, at] = self._given + len(self._frames)
        body: Message = {"id": self._frame_ids[number, at], "name": place.frame.title, "line": 0, "column": 0}
        record = place.frame.record
        if record is None:
            return {**body, "presentationHint": "label"}
        body |= {"line": record.line, "column": 1}
        if record.module:
            body["moduleId"] = record.module
        return {**body, "source": self._source_of(thread.rank.rank, record.file, record.origin == "user")}

    def _source_of(self, rank: int, file: str, is_users: bool) -> Message:
        source: Message = {"name": os.path.basename(file), "path": file}
        if not is_users:
            source["presentationHint"] = "deemphasize"  # editors look at the innermost frame without it first
        kept = self._ranks[rank].sources.kept(file)
        if kept is not None:
            if (rank, file) not in self._sources:
                self._sources.append((rank, file))
            reference = self._given + self._sources.index((rank, file)) + 1
            source |= {"sourceReference": reference, "origin": kept.why}
        return source

    def _source(self, arguments: Message) -> Message:
        number = arguments.get("sourceReference") or (arguments.get("source") or {}).get("sourceReference") or 0
        if self._is_of_earlier(number):
            raise DapError("this text is of an earlier look at the run")
        if self._given < number <= self._given + len(self._sources):
            rank, file = self._sources[number - self._given - 1]
            kept = self._ranks[rank].sources.kept(file)
            if kept is not None:
                return {"content": kept.text, "mimeType": "text/x-python"}
        path = str((arguments.get("source") or {}).get("path") or "")
        try:
            with open(path, encoding="utf-8", errors="replace") as stream:
                return {"content": stream.read()}
        except (OSError, ValueError):
            raise DapError("no text was kept of this source") from None

    def _loaded_sources(self, arguments: Message) -> Message:
        files = {
            (thread.rank.rank, frame.record.file): frame.record.origin == "user"
            for thread in self.job.threads
            for frame in thread.frames
            if frame.record is not None
        }
        return {"sources": [self._source_of(rank, file, own) for (rank, file), own in files.items()]}

    def _exception_info(self, arguments: Message) -> Message:
        thread = self._thread(arguments["threadId"])
        if thread.exception is None:
            raise DapError(f"{thread.name}: no exception ended it")
        error = thread.exception
        description = "\n".join([error.message, *error.notes])
        return {
            "exceptionId": error.type,
            "description": description,
            "breakMode": "unhandled",
            "details": _details(error),
        }

    # Values

    def _is_of_earlier(self, number: Any) -> bool:
        return number in range(1, self._given + 1)

    def _place(self, number: Any) -> _Place:
        if self._is_of_earlier(number):
            raise DapError("this frame is of an earlier look at the run: choose one anew")
        if not isinstance(number, int) or not self._given < number <= self._given + len(self._frames):
            raise DapError(f"there is no frame {number!r}")
        return self._frames[number - self._given - 1]

    def _scopes(self, arguments: Message) -> Message:
        if self._is_of_earlier(arguments["frameId"]):
            return {"scopes": []}
        place = self._place(arguments["frameId"])
        if place.frame.record is None:
            return {"scopes": []}
        rank = self._ranks[place.thread.rank.rank]
        scopes = [{"name": "Locals", "presentationHint": "locals", **self._open(lambda: rank.locals(place.frame))}]
        scopes += [{"name": name, **self._open(children)} for name, children in rank.scopes(place.frame).items()]
        return {"scopes": [{**scope, "expensive": scope["name"] == "Checkpoint"} for scope in scopes]}

    def _open(self, children: Callable[[], list[Node]] | None) -> Message:
        if children is None:
            return {"variablesReference": 0}
        self._children.append(children)
        return {"variablesReference": self._given + len(self._children)}

    def _variables(self, arguments: Message) -> Message:
        reference = arguments["variablesReference"]
        if self._is_of_earlier(reference):
            return {"variables": []}
        if not isinstance(reference, int) or not self._given < reference <= self._given + len(self._children):
            raise DapError(f"there are no variables {reference!r}")
        if reference not in self._bodies:
            children = self._children[reference - self._given - 1]
            self._bodies[reference] = [self._variable(node) for node in children()]
        bodies = self._bodies[reference]
        start, count = int(arguments.get("start") or 0), int(arguments.get("count") or 0)
        return {"variables": bodies[start : start + count if count else None]}

    def _variable(self, node: Node) -> Message:
        body: Message = {"name": node.name, "value": node.text, **self._open(node.children)}
        if node.type:
            body["type"] = node.type
        if node.expression:
            body["evaluateName"] = node.expression
        return {**body, "presentationHint": {"attributes": ["readOnly"]}}

    def _names(self, arguments: Message) -> Mapping[str, Callable[[], Any]]:
        """What an expression may name: of the frame asked about, or of the job's focus."""
        number = arguments.get("frameId")
        if number is None:
            focus = self.job.focus
            place = _Place(focus, focus.frames[0]) if focus is not None and focus.frames else None
        else:
            place = self._place(number)
        return self._ranks[place.thread.rank.rank].names(place.frame) if place is not None else {}

    def _evaluate(self, arguments: Message) -> Message:
        text, context = str(arguments["expression"]), arguments.get("context")
        console = context in (None, "repl")
        result = self._evaluator.evaluate(text, self._names(arguments), statements=console)
        self.printed = result.printed
        if result.statement or (result.value is None and context == "repl"):
            return {"result": "", "variablesReference": 0}
        raw = isinstance(result.value, str) and (arguments.get("format") or {}).get("rawString")
        shown = result.value if raw else tree.bounded_repr(result.value, _LONGEST if console else tree.MAX_TEXT)
        node = tree.of_value(text, result.value, text, shown)
        return {"result": node.text, "type": node.type, **self._open(node.children)}

    def _completions(self, arguments: Message) -> Message:
        lines = str(arguments["text"]).split("\n")
        line = lines[min(int(arguments.get("line") or len(lines)), len(lines)) - 1]
        typed = line[: max(int(arguments["column"]) - 1, 0)]
        words = self._evaluator.complete(typed, self._names(arguments))
        return {"targets": [{"label": word, "type": "variable"} for word in words[:500]]}

    def _no_breakpoints(self, arguments: Message) -> Message:
        wanted = arguments.get("breakpoints") or arguments.get("lines") or []
        return {
            "breakpoints": [
                {"verified": False, "message": _NO_BREAKPOINT, **({"line": each["line"]} if "line" in each else {})}
                if isinstance(each, dict)
                else {"verified": False, "message": _NO_BREAKPOINT, "line": each}
                for each in wanted
            ]
        }


def _stopped(number: int, thread: DeadThread, quiet: bool, alone: bool) -> Message:
    body: Message = {"threadId": number, "preserveFocusHint": quiet, "allThreadsStopped": not alone}
    if thread.exception is not None:
        return {**body, "reason": "exception", "text": thread.exception.type, "description": thread.exception.message}
    return {**body, "reason": "ended", "text": "", "description": thread.reason}


def _details(error: ExceptionRecord) -> Message:
    """The protocol's ExceptionDetails, with what it was caused by inside."""
    inner = [each for each in (error.cause, error.context, *error.members) if each is not None]
    return {
        "typeName": error.type,
        "fullTypeName": error.type,
        "message": headline(error),
        "evaluateName": "__exception__",
        "stackTrace": "\n".join(error.traceback),
        "innerException": [_details(each) for each in inner],
    }
