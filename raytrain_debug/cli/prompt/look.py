"""Commands that look: the stack, source lines, values, threads."""

from __future__ import annotations

import os

from raytrain_debug.cli.prompt.breaks import Table, table
from raytrain_debug.cli.prompt.source import function_at
from raytrain_debug.cli.prompt.view import CommandError, View, without_startup
from raytrain_debug.dap.model import Frame
from raytrain_debug.errors import DapError, RankEnded

_AROUND = 5  # lines that `l` shows before the current one; eleven in all, as pdb does


def where(view: View, argument: str) -> str:
    """Print the stack, newest frame last.

    `>` marks the frame that is looked at. Of a running rank it is a sample.
    """
    if view.stopped() is None:
        frames = without_startup(view.session.stack())
        text = "\n".join(view.where(frame, "  ") for frame in reversed(frames))
        return f"{text}\n({view.name} is running: this is where it was a moment ago)"
    frame = view.frame
    return "\n".join(view.where(each, "> " if each is frame else "  ") for each in reversed(view.frames))


def up(view: View, argument: str) -> str:
    """Look at an older frame, COUNT (1) levels up."""
    return _move(view, _count(argument), "Oldest frame")


def down(view: View, argument: str) -> str:
    """Look at a newer frame, COUNT (1) levels down."""
    return _move(view, -_count(argument), "Newest frame")


def list_(view: View, argument: str) -> str:
    """List source lines around the current one.

    Again, it goes on where the last listing ended; `l .` starts over at the current line.
    `l FIRST` lists 11 lines around FIRST, `l FIRST, LAST` that range; a LAST below FIRST is a count.
    """
    frame, lines = view.frame, _lines(view, view.frame)
    if not argument and view.listed is not None and view.listed[0] == frame.path:
        first = view.listed[1] + 1
        last = first + 2 * _AROUND
    elif argument in ("", "."):
        first = max(1, frame.line - _AROUND)
        last = first + 2 * _AROUND
    else:
        first, last = _range(argument)
    if first > len(lines):
        return "[EOF]"
    view.listed = frame.path, min(last, len(lines))
    return _listing(view, lines, first, last) + ("\n[EOF]" if last >= len(lines) and not argument else "")


def long_list(view: View, argument: str) -> str:
    """List the whole function, or the whole file at module level."""
    frame, lines = view.frame, _lines(view, view.frame)
    function = None if frame.name == "<module>" else function_at(lines, frame.line)
    first, last = (function.first, function.last) if function else (1, len(lines))
    view.listed = frame.path, last
    return _listing(view, lines, first, last)


def print_(view: View, argument: str) -> str:
    """Print the value of EXPRESSION."""
    return view.value(argument)


def pretty_print(view: View, argument: str) -> str:
    """Print the value of EXPRESSION, laid out over lines."""
    return view.value(argument, "pprint")


def what_is(view: View, argument: str) -> str:
    """Print the type of EXPRESSION, or its name if it is one."""
    return view.value(
        "(lambda v, i: 'Function ' + v.__qualname__ if i.isfunction(v) else 'Method ' + v.__qualname__"
        " if i.ismethod(v) else 'Class %s.%s' % (v.__module__, v.__qualname__) if i.isclass(v) else type(v))"
        f"((\n{argument}\n), __import__('inspect'))"
        if argument
        else "",
        "str",
    )


def arguments(view: View, argument: str) -> str:
    """Print the arguments of the function and their values now."""
    frame = view.frame
    function = None if frame.name == "<module>" else function_at(_lines(view, frame), frame.line)
    return "\n".join(f"{name} = {_value_or_error(view, name)}" for name in (function.arguments if function else ()))


def execute(view: View, statement: str) -> str:
    """Execute STATEMENT in the frame.

    An expression's value is printed. The `!` is needed only where a command has the name of a variable.
    """
    if not statement:
        raise CommandError("a statement is missing")
    try:
        compile(statement, "<stdin>", "eval")
    except (SyntaxError, ValueError):
        # A statement, or a mistake that the rank's own Python is to explain.
        view.session.evaluate(statement, view.frame)
        return ""
    return view.value(statement, "display")


def info(view: View, argument: str) -> str | Table:
    """List threads, or breakpoints."""
    if argument and "threads".startswith(argument):
        return threads(view, "")
    if argument and "breakpoints".startswith(argument):
        return table(view)
    raise CommandError("info threads, or info breakpoints; the variable is !info")


def threads(view: View, argument: str) -> str:
    """List the rank's threads; `>` marks the one looked at."""
    current = view.thread_id if view.stopped() is not None else None
    return "\n".join(
        f"{'> ' if thread.id == current else '  '}{thread.id}  {thread.name}" for thread in view.session.threads()
    )


def thread(view: View, argument: str) -> str:
    """Look at thread NUMBER, as `threads` lists them."""
    if not argument.isdecimal():
        return threads(view, "")
    if int(argument) not in [each.id for each in view.session.threads()]:
        raise CommandError(f"no thread {argument}")
    if not view.session.suspended(int(argument)):
        raise CommandError(f"thread {argument} is running")
    view.look_at_thread(int(argument))
    return view.where()


def _move(view: View, by: int, end: str) -> str:
    last = len(view.frames) - 1
    if view.index + by in range(last + 1) or by == 0:
        target = view.index + by
    elif view.index == (last if by > 0 else 0):
        raise CommandError(end)
    else:
        target = last if by > 0 else 0
    view.index, view.listed = target, None
    return view.where()


def _count(argument: str) -> int:
    if not argument:
        return 1
    try:
        return int(argument)
    except ValueError:
        raise CommandError(f"Invalid frame count ({argument})") from None


def _range(argument: str) -> tuple[int, int]:
    first_text, comma, last_text = argument.partition(",")
    try:
        first = int(first_text)
        if not comma:
            return max(1, first - _AROUND), first + _AROUND
        last = int(last_text)
    except ValueError:
        raise CommandError(f"Error in argument: {argument!r}") from None
    first = max(1, first)
    return first, last if last >= first else first + last


def _lines(view: View, frame: Frame) -> list[str]:
    lines = view.sources.lines(frame)
    if not lines:
        raise CommandError(f"no source for {frame.path or 'this frame'}")
    return lines


def _listing(view: View, lines: list[str], first: int, last: int) -> str:
    frame = view.frame
    stops = {each.line for each in view.session.breakpoints if each.path == os.path.abspath(frame.path)}
    rows = []
    for number in range(first, min(last, len(lines)) + 1):
        marks = ("B" if number in stops else " ") + ("->" if number == frame.line else "")
        rows.append(f"{number:>3} {marks}\t{lines[number - 1]}".rstrip())
    return "\n".join(rows)


def _value_or_error(view: View, name: str) -> str:
    try:
        return view.value(name)
    except RankEnded:
        raise
    except DapError as error:
        return f"*** {error}"
