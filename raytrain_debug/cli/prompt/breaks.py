"""Commands on breakpoints, and how a place is named: `LINE`, `FILE:LINE` or `FUNCTION`, then `, CONDITION`."""

from __future__ import annotations

import ast
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace

from raytrain_debug.across.hang import ranks_in_words
from raytrain_debug.cli.prompt.source import first_line_of
from raytrain_debug.cli.prompt.view import CommandError, View, without_startup
from raytrain_debug.dap.breakpoints import Breakpoint
from raytrain_debug.dap.model import Frame
from raytrain_debug.errors import DapError, RankEnded
from raytrain_debug.run.words import counted


@dataclass(frozen=True)
class Place:
    """Where to stop: a line of a file, or (path None) every function of that name."""

    path: str | None
    line: int = 0
    function: str = ""


@dataclass(frozen=True)
class Table:
    """A rank's breakpoints, their places as the prompt writes them."""

    rows: tuple[Breakpoint, ...]


def break_(view: View, argument: str) -> str | Table:
    """Set a breakpoint at PLACE, or list all breakpoints.

    PLACE is LINE, FILE:LINE or FUNCTION. With CONDITION, an expression, it stops only where that is true;
    `__rank__` in it is the rank's number.
    """
    return _set(view, argument, temporary=False) if argument else table(view)


def temporary_break(view: View, argument: str) -> str | Table:
    """Set a breakpoint that is gone once it was hit."""
    return _set(view, argument, temporary=True) if argument else table(view)


def clear(view: View, argument: str) -> str:
    """Remove breakpoints: those named, or all."""
    if not argument:
        removed = view.session.clear_breakpoints()
    elif ":" in argument:
        path, line = _file_and_line(view, argument)
        numbers = [each.number for each in view.session.breakpoints if (each.path, each.line) == (path, line)]
        if not numbers:
            raise CommandError(f"There are no breakpoints at {path}:{line}")
        removed = view.session.clear_breakpoints(numbers)
    else:
        removed = view.session.clear_breakpoints([_number(view, word) for word in argument.split()])
    return "\n".join(f"Deleted breakpoint {each.number} at {_shown(view, each).place}" for each in removed)


def table(view: View) -> Table:
    """All breakpoints of the rank."""
    return Table(tuple(_shown(view, each) for each in view.session.breakpoints))


def format_table(tables: Mapping[int, Table]) -> str:
    """The ranks' breakpoints as pdb lists them, and of several ranks on which each is."""
    found: dict[Breakpoint, dict[int, int]] = {}
    for rank, each in tables.items():
        for row in each.rows:
            # What a rank's adapter calls it, and its hits, are no difference.
            found.setdefault(replace(row, id=None, hits=0), {})[rank] = row.hits
    if not found:
        return ""
    rows = [
        _row(row, hits, several=len(tables) > 1)
        for row, hits in sorted(found.items(), key=lambda item: (item[0].number, min(item[1])))
    ]
    return "\n".join(["Num Type         Disp Enb   Where", *rows])


def find_place(view: View, text: str) -> Place:
    """What `text` names; raises CommandError when there is no such file, line or function."""
    if ":" in text:
        return Place(*_file_and_line(view, text))
    if text.isdecimal():
        return _line(view, view.frame.path, int(text))
    return _function(view, text)


def _set(view: View, argument: str, temporary: bool) -> str:
    text, comma, condition = argument.partition(",")
    condition = condition.strip()
    if comma:
        try:
            compile(condition, "<condition>", "eval")
        except (SyntaxError, ValueError) as error:
            raise CommandError(f"Invalid condition {condition!r}: {error}") from None
    place = find_place(view, text.strip())
    if place.path is None:
        made = view.session.set_function_breakpoint(place.function, condition or None, temporary)
        doubt = " (none is known yet)"
    else:
        made = view.session.set_breakpoint(place.path, place.line, condition or None, temporary)
        doubt = f" ({made.message})" if made.message and not made.verified else ""
    return f"Breakpoint {made.number} at {_shown(view, made).place}{doubt}"


def _shown(view: View, breakpoint: Breakpoint) -> Breakpoint:
    return breakpoint if breakpoint.path is None else replace(breakpoint, path=view.shown(breakpoint.path))


def _row(breakpoint: Breakpoint, hits: Mapping[int, int], several: bool) -> str:
    """The lines of a breakpoint; `hits` by the ranks that have it."""
    kind = "del " if breakpoint.temporary else "keep"
    row = f"{breakpoint.number:<4}breakpoint   {kind} yes   at {breakpoint.place}"
    if several:
        row += f" on {ranks_in_words(list(hits))}"
    if breakpoint.condition:
        row += f"\n\tstop only if {breakpoint.condition}"
    for count in sorted(set(hits.values()) - {0}):
        row += f"\n\tbreakpoint already hit {counted(count, 'time')}"
        if several:
            row += f" by {ranks_in_words([rank for rank in hits if hits[rank] == count])}"
    if breakpoint.message and not breakpoint.verified:
        row += f"\n\t{breakpoint.message}"
    return row


def _number(view: View, word: str) -> int:
    if not word.isdecimal():
        raise CommandError(f"Non-numeric breakpoint number {word}")
    if view.session.breakpoints.get(int(word)) is None:
        raise CommandError(f"No breakpoint numbered {word}")
    return int(word)


def _file_and_line(view: View, text: str) -> tuple[str, int]:
    name, _, line = text.rpartition(":")
    if not line.strip().isdecimal():
        raise CommandError(f"Bad lineno: {line.strip()}")
    place = _line(view, _find_file(view, name.strip()), int(line))
    assert place.path is not None
    return place.path, place.line


def _line(view: View, path: str, line: int) -> Place:
    lines = view.sources.file(path)
    if lines is not None:
        if not 1 <= line <= len(lines):
            raise CommandError("End of file")
        text = lines[line - 1].strip()
        if not text or text.startswith("#"):
            raise CommandError("Blank or comment")
    return Place(path, line)


def _find_file(view: View, name: str) -> str:
    """The file that `name` means: beside the rank's script, the prompt, or a file on the stack."""
    if os.path.isabs(name):
        return os.path.normpath(name)  # the rank knows whether it is there, which may be on another machine
    known = [frame.path for frame in view.frames] if view.stopped() is not None else []
    for directory in dict.fromkeys([view.cwd, os.getcwd(), *map(os.path.dirname, known)]):
        for candidate in (os.path.join(directory, name), os.path.join(directory, name + ".py")):
            if os.path.isfile(candidate):
                return os.path.normpath(candidate)
    for path in known:
        if path.endswith((os.sep + name, os.sep + name + ".py")):
            return path
    raise CommandError(f"{name!r} not found from sys.path")


def _function(view: View, name: str) -> Place:
    """A function as a frame knows it, else as its file defines it, else any of that name that will ever run.

    After the frame that is looked at the ones around it are asked: the innermost may be a library's that waits.
    """
    stands = view.stopped() is not None
    frames = view.frames[view.index :] if stands else without_startup(view.session.stack())
    for frame in frames:
        if stands and (place := _evaluated(view, name, frame)) is not None:
            return place
        line = first_line_of(view.sources.lines(frame), name)
        if line is not None:
            return Place(frame.path, line)
    if name.isidentifier():
        return Place(None, function=name)
    raise CommandError(f"The specified object {name!r} is not a function or was not found along sys.path.")


def _evaluated(view: View, name: str, frame: Frame) -> Place | None:
    code = "getattr(f, '__func__', f).__code__"
    numbers = f"[n for _, n in __import__('dis').findlinestarts({code}) if n]"
    try:
        found = view.session.evaluate(
            f"(lambda f: ({code}.co_filename, {code}.co_firstlineno, {numbers}))(__import__('inspect').unwrap({name}))",
            frame,
            "watch",
        )
        path, first, lines = ast.literal_eval(found.value)
        return Place(path, next((line for line in lines if line > first), first))
    except RankEnded:
        raise
    except (DapError, ValueError, SyntaxError, TypeError):
        return None
