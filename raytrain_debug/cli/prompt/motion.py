"""Commands that let the rank go on: each says how to start, and after each step of its way how to go further."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from raytrain_debug.cli.prompt.view import CommandError, View


@dataclass(frozen=True)
class Go:
    """A rank is to go on. `start` sets it in motion.

    `further` is asked after each stop that only ended a step: it sets the rank in motion again and returns True, or
    returns False where the way ends. `waits` is False when a script that asks for nothing more need not see the stop.
    """

    start: Callable[[], None]
    further: Callable[[], bool] = lambda: False
    waits: bool = True


def continue_(view: View, argument: str) -> Go:
    """Go on until a breakpoint is hit."""
    return Go(view.session.resume, waits=False)


def step(view: View, argument: str) -> Go:
    """Run until the next line, in a called function too."""
    return _one(view, "stepIn")


def next_(view: View, argument: str) -> Go:
    """Run until the next line of this function."""
    if view.index == 0:
        return _one(view, "next")
    depth, line = _depth(view), view.frame.line

    def further() -> bool:
        if len(view.frames) > depth:
            return _again(view, "stepOut")
        # A return ends in the middle of the line that called.
        return len(view.frames) == depth and view.frames[0].line == line and _again(view, "next")

    return Go(_starts(view, "stepOut"), further)


def return_(view: View, argument: str) -> Go:
    """Go on until this function has returned."""
    depth = _depth(view)

    def further() -> bool:
        return len(view.frames) >= depth and _again(view, "stepOut")

    return Go(_starts(view, "stepOut"), further)


def until(view: View, argument: str) -> Go:
    """Go on until a later line than this one is reached.

    With LINE, until that or a later one is. Stops as well where this function has returned.
    """
    line = view.frame.line + 1
    if argument:
        try:
            line = int(argument)
        except ValueError:
            raise CommandError(f"Error in argument: {argument!r}") from None
        if line <= view.frame.line:
            raise CommandError('"until" line number is smaller than current line number')
    depth = _depth(view)

    def further() -> bool:
        if len(view.frames) > depth:
            return _again(view, "stepOut")
        return len(view.frames) == depth and view.frames[0].line < line and _again(view, "next")

    return Go(_starts(view, "stepOut" if view.index else "next"), further)


def jump(view: View, argument: str) -> Go:
    """Make LINE the next one to run, skipping those between.

    Only in the innermost frame, and only where Python can: not into a loop or out of a `finally`.
    """
    if not argument.isdecimal():
        raise CommandError("the 'jump' command needs a line number")
    if view.index:
        raise CommandError("You can only jump within the bottom frame")
    frame = view.frame
    return Go(lambda: view.session.jump(frame.path, int(argument)))


def _one(view: View, command: str) -> Go:
    return Go(_starts(view, command))


def _starts(view: View, command: str) -> Callable[[], None]:
    """The first step, of the thread that is looked at; CommandError while the rank runs."""
    thread_id = view.thread_id
    return lambda: view.session.resume(command, thread_id)


def _depth(view: View) -> int:
    """How many frames there are from the outermost to the one that is looked at."""
    return len(view.frames) - view.index


def _again(view: View, command: str) -> bool:
    view.session.resume(command)
    return True
