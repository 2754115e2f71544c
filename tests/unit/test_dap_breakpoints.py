"""The breakpoint table: what an adapter is told, and what is kept of its answers."""

from __future__ import annotations

from typing import Any

import pytest

from raytrain_debug.dap.breakpoints import Breakpoints
from raytrain_debug.dap.model import Frame, Stop, exception_only
from raytrain_debug.errors import DapError


class Adapter:
    """Takes breakpoints as pydevd does: a file's at a time, numbered anew each time."""

    def __init__(self) -> None:
        self.files: dict[str | None, list[dict[str, Any]]] = {}
        self.last = -1

    def request(self, command: str, arguments: dict[str, Any]) -> dict[str, Any]:
        path = arguments["source"]["path"] if command == "setBreakpoints" else None
        if path == "/refused.py":
            raise DapError("refused")
        self.files[path] = arguments["breakpoints"]
        answers = []
        for each in arguments["breakpoints"]:
            self.last += 1
            answers.append({"id": self.last, "verified": path != "/missing.py", "line": each.get("line", 0)})
        return {"breakpoints": answers}


def test_every_change_tells_the_whole_file_and_nothing_of_others():
    table, adapter = Breakpoints(), Adapter()
    table.add(adapter.request, "/a.py", 3)
    table.add(adapter.request, "/b.py", 5, condition="x > 1")
    adapter.files.clear()
    table.add(adapter.request, "/a.py", 9)
    assert adapter.files == {"/a.py": [{"line": 3}, {"line": 9}]}
    table.remove(adapter.request, [1])
    assert adapter.files == {"/a.py": [{"line": 9}]}
    assert [each.number for each in table] == [2, 3]
    assert table.add(adapter.request, "/a.py", 1).number == 4


def test_a_refused_breakpoint_leaves_no_trace():
    table, adapter = Breakpoints(), Adapter()
    with pytest.raises(DapError):
        table.add(adapter.request, "/refused.py", 3)
    assert list(table) == []
    assert table.add(adapter.request, "/a.py", 3).number == 1


def test_a_new_adapter_is_told_everything_and_that_there_are_no_functions():
    table, old, new = Breakpoints(), Adapter(), Adapter()
    table.add(old.request, "/a.py", 3, temporary=True)
    table.add(old.request, "/b.py", 5)
    table.send_all(new.request)
    assert new.files == {None: [], "/a.py": [{"line": 3}], "/b.py": [{"line": 5}]}


def test_hits_count_by_the_adapter_s_ids_or_else_by_the_place():
    table, adapter = Breakpoints(), Adapter()
    first = table.add(adapter.request, "/a.py", 3)
    second = table.add(adapter.request, None, function="step")
    assert [each.number for each in table.hit([second.id], "/a.py", 3)] == [2]
    assert [each.number for each in table.hit([], "/a.py", 3)] == [1]
    assert table.hit([], "/a.py", 4) == []
    assert [each.hits for each in table] == [1, 1]
    assert table.get(first.number).hits == 1


def test_the_adapter_may_move_or_doubt_a_breakpoint_later():
    table, adapter = Breakpoints(), Adapter()
    made = table.add(adapter.request, "/missing.py", 3)
    assert not made.verified
    table.changed({"id": made.id, "verified": True, "line": 4})
    assert (table.get(1).verified, table.get(1).line) == (True, 4)
    table.changed({"id": 99, "verified": False})
    assert table.get(1).verified


def test_removing_what_is_not_set_removes_nothing():
    table, adapter = Breakpoints(), Adapter()
    table.add(adapter.request, "/a.py", 3)
    with pytest.raises(KeyError):
        table.remove(adapter.request, [1, 7])
    assert [each.number for each in table] == [1]


TRACEBACK = 'Traceback (most recent call last):\n  File "a.py", line 1\n    f()\n'
DURING = "\nDuring handling of the above exception, another exception occurred:\n\n"


@pytest.mark.parametrize(
    ("text", "only"),
    [
        ("ValueError: x", "ValueError: x"),
        (f"{TRACEBACK}ValueError: x\n", "ValueError: x"),
        (f"{TRACEBACK}ValueError: x\n  and more\n", "ValueError: x\n  and more"),
        (f"{TRACEBACK}    x x\n      ^\nSyntaxError: bad\n", "SyntaxError: bad"),
        (f"{TRACEBACK}KeyError: 1\n{DURING}{TRACEBACK}TypeError: 2\n", "TypeError: 2"),
        ("", ""),
    ],
)
def test_only_the_exception_of_a_traceback(text, only):
    assert exception_only(text) == only


def test_pydevd_s_marks_are_no_part_of_names():
    frame = Frame.of({"id": 1, "name": "fit (Current frame)", "line": 3, "source": {"path": "/a.py"}})
    assert frame == Frame(1, "fit", "/a.py", 3, 0)
    stop = Stop.of({"reason": "exception", "threadId": 1, "text": "ValueError       (note: full exception trace ...)"})
    assert stop.text == "ValueError"
