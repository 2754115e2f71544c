"""What an adapter tells about a rank, as frozen dataclasses made from the protocol's bodies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

SILENCE = "raytrainDebugSilence"
"""What a gateway adds to an `output` event: why the rank does not answer, or "" when it does now."""


@dataclass(frozen=True)
class Thread:
    """A thread of the rank, as the adapter numbers it."""

    id: int
    name: str


@dataclass(frozen=True)
class Frame:
    """A frame of a thread. `path` is "" without a file; `source_reference` is not 0 when the adapter has the text."""

    id: int
    name: str
    path: str
    line: int
    source_reference: int = 0

    @classmethod
    def of(cls, body: dict[str, Any]) -> Frame:
        source = body.get("source") or {}
        # pydevd marks the frame of an exception in its name; the mark is not part of the name.
        name = str(body.get("name") or "").removesuffix(" (Current frame)")
        return cls(
            int(body["id"]),
            name,
            str(source.get("path") or ""),
            int(body.get("line") or 0),
            int(source.get("sourceReference") or 0),
        )


@dataclass(frozen=True)
class Stop:
    """Why a rank stands still: `reason` is the protocol's word ("breakpoint", "step", "pause", "exception", ...).

    `text` is an exception's type and `description` its message; `breakpoints` the adapter's ids of those hit.
    """

    reason: str
    thread_id: int
    text: str = ""
    description: str = ""
    breakpoints: tuple[int, ...] = ()

    @classmethod
    def of(cls, body: dict[str, Any]) -> Stop:
        return cls(
            str(body.get("reason") or ""),
            int(body.get("threadId") or 0),
            _exception_type(str(body.get("text") or "")),
            str(body.get("description") or ""),
            tuple(body.get("hitBreakpointIds") or ()),
        )


@dataclass(frozen=True)
class Variable:
    """A value as the adapter shows it; `reference` is not 0 when it has children to ask for."""

    name: str
    value: str
    type: str = ""
    reference: int = 0

    @classmethod
    def of(cls, name: str, value: Any, body: dict[str, Any]) -> Variable:
        return cls(name, str(value or ""), str(body.get("type") or ""), int(body.get("variablesReference") or 0))


@dataclass(frozen=True)
class ExceptionInfo:
    """The exception at which a thread stands; `trace` is its traceback as text."""

    type: str
    message: str
    trace: str = ""

    @classmethod
    def of(cls, body: dict[str, Any]) -> ExceptionInfo:
        trace = (body.get("details") or {}).get("stackTrace") or ""
        return cls(_exception_type(str(body.get("exceptionId") or "")), str(body.get("description") or ""), str(trace))


def _exception_type(text: str) -> str:
    """The type alone: pydevd adds a note to it at an uncaught exception."""
    return text.partition(" (note:")[0].strip()


def exception_only(text: str) -> str:
    """The exception's own lines, "Type: message", of a traceback's text; any other text as it is."""
    _, header, rest = text.rpartition("Traceback (most recent call last):\n")
    if not header:
        return text.strip()
    lines = rest.splitlines()
    start = next((number for number, line in enumerate(lines) if line and not line.startswith(" ")), 0)
    return "\n".join(lines[start:]).strip()
