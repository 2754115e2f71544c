"""The breakpoints a debugger has set: a numbered table, told to an adapter a file at a time as DAP wants it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

Request = Callable[[str, dict[str, Any]], dict[str, Any]]


@dataclass(frozen=True)
class Breakpoint:
    """One breakpoint: at `path`:`line`, or (path None) at every function named `function`.

    `verified` and `message` are the adapter's word on it, `id` its name for it, `hits` the stops it caused.
    """

    number: int
    path: str | None = None
    line: int = 0
    function: str = ""
    condition: str | None = None
    temporary: bool = False
    id: int | None = None
    verified: bool = False
    message: str = ""
    hits: int = 0

    @property
    def place(self) -> str:
        return f"{self.path}:{self.line}" if self.path is not None else f"every function {self.function}"


class Breakpoints:
    """The table. It outlives a connection: `send_all` tells a new adapter everything.

    `last` is the number that was given last; who keeps several tables may raise it so that they count alike.
    """

    def __init__(self) -> None:
        self._rows: dict[int, Breakpoint] = {}
        self.last = 0

    def __iter__(self) -> Iterator[Breakpoint]:
        return iter(list(self._rows.values()))

    def get(self, number: int) -> Breakpoint | None:
        return self._rows.get(number)

    def add(
        self,
        request: Request,
        path: str | None,
        line: int = 0,
        *,
        function: str = "",
        condition: str | None = None,
        temporary: bool = False,
    ) -> Breakpoint:
        """Set a breakpoint and return it as the adapter took it; raises DapError, and sets none, when it refuses."""
        number = self.last + 1
        self._rows[number] = Breakpoint(number, path, line, function, condition, temporary)
        try:
            self._send(request, path)
        except BaseException:
            del self._rows[number]
            raise
        self.last = number
        return self._rows[number]

    def remove(self, request: Request, numbers: Iterable[int]) -> list[Breakpoint]:
        """Take those breakpoints away and return what they were; raises KeyError for one that is not set."""
        removed = [self._rows[number] for number in numbers]
        for breakpoint in removed:
            self._rows.pop(breakpoint.number, None)
        for path in dict.fromkeys(breakpoint.path for breakpoint in removed):
            self._send(request, path)
        return removed

    def send_all(self, request: Request, functions: bool = True) -> None:
        """Tell an adapter all breakpoints; `functions` says whether it takes those at functions.

        These are told also when there are none: pydevd keeps the last client's, and forgets only those at lines.
        """
        for path in dict.fromkeys([None, *(breakpoint.path for breakpoint in self)]):
            if path is not None or functions:
                self._send(request, path)

    def changed(self, told: dict[str, Any]) -> None:
        """Take an adapter's later word on one breakpoint (the body of its `breakpoint` event)."""
        for breakpoint in self:
            if breakpoint.id is not None and breakpoint.id == told.get("id"):
                self._rows[breakpoint.number] = _told(breakpoint, told)

    def hit(self, ids: Iterable[int], path: str, line: int) -> list[Breakpoint]:
        """Count a stop at `path`:`line`, caused by the breakpoints that the adapter knows as `ids`; return those.

        An adapter that names none leaves it to the place.
        """
        ids = set(ids)
        hit = [row for row in self if (row.id in ids if ids else (row.path, row.line) == (path, line))]
        for breakpoint in hit:
            self._rows[breakpoint.number] = replace(breakpoint, hits=breakpoint.hits + 1)
        return hit

    def _send(self, request: Request, path: str | None) -> None:
        rows = [row for row in self if row.path == path]
        if path is None:
            wanted = [_wanted(row, name=row.function) for row in rows]
            body = request("setFunctionBreakpoints", {"breakpoints": wanted})
        else:
            wanted = [_wanted(row, line=row.line) for row in rows]
            body = request("setBreakpoints", {"source": {"path": path}, "breakpoints": wanted})
        for row, told in zip(rows, body.get("breakpoints") or [], strict=False):
            self._rows[row.number] = _told(row, told)


def _wanted(breakpoint: Breakpoint, **place: Any) -> dict[str, Any]:
    return {**place, "condition": breakpoint.condition} if breakpoint.condition else place


def _told(breakpoint: Breakpoint, told: dict[str, Any]) -> Breakpoint:
    return replace(
        breakpoint,
        id=told.get("id"),
        verified=bool(told.get("verified")),
        message=str(told.get("message") or ""),
        line=int(told.get("line") or breakpoint.line),
    )
