"""The command `focus`: which of several ranks the prompt's commands go to, by number or by where they stand."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from raytrain_debug.cli.prompt.view import CommandError, View, without_startup
from raytrain_debug.dap.model import Frame
from raytrain_debug.errors import UsageError
from raytrain_debug.run.ranks import format_ranks, parse_ranks


@dataclass(frozen=True)
class Focus:
    """Commands are to go to the ranks that `argument` names; to the same as before when it is empty."""

    argument: str


def focus(view: View, argument: str) -> Focus:
    """Direct commands to RANKS, or to those that are at PLACE.

    RANKS is 0,2-3 or all; PLACE is FILE:LINE or FUNCTION, anywhere on the stack. Alone it shows where all ranks are.
    """
    return Focus(argument)


def choose(argument: str, before: Sequence[int], frames: Mapping[int, Sequence[Frame]]) -> tuple[int, ...]:
    """The ranks that `argument` names, of those whose frames are given; CommandError when it names none of them."""
    word, _, place = argument.partition(" ")
    if word == "where":
        chosen = tuple(rank for rank in frames if _stands_at(frames[rank], place.strip()))
        if not chosen:
            raise CommandError(f"no rank is at {place.strip() or 'a place that is not named'}")
        return chosen
    if not argument:
        return tuple(before)
    try:
        wanted = parse_ranks(argument)
    except UsageError as error:
        raise CommandError(f"{error}: {error.remedy}") from None
    if wanted is None:
        return tuple(frames)
    if absent := set(wanted) - set(frames):
        raise CommandError(f"not attached to {format_ranks(absent)}; attached: {format_ranks(frames)}")
    return wanted


def place(view: View, frames: Sequence[Frame]) -> str:
    """Where a rank is, in one line."""
    if view.stopped() is None:
        return "running"
    frame = next(iter(without_startup(list(frames))), None)
    return view.where(frame).partition("\n")[0].removeprefix("> ") if frame is not None else "in no Python code"


def overview(focused: Sequence[int], places: Mapping[int, str]) -> str:
    """A line for the ranks at each place, those in focus first and marked."""
    found: dict[tuple[bool, str], list[int]] = {}
    for rank, text in places.items():
        found.setdefault((rank not in focused, text), []).append(rank)
    rows = sorted(found.items(), key=lambda item: (item[0][0], len(item[1]), item[1]))
    width = max((len(format_ranks(ranks)) for _, ranks in rows), default=0)
    return "\n".join(
        f"{'  ' if outside else '> '}{format_ranks(ranks):<{width}}  {text}" for (outside, text), ranks in rows
    )


def _stands_at(frames: Sequence[Frame], text: str) -> bool:
    name, colon, line = text.rpartition(":")
    if not colon:
        return any(text and frame.name.rpartition(".")[2] == text.rpartition(".")[2] for frame in frames)
    if not name.strip() or not line.strip().isdecimal():
        raise CommandError(f"{text!r} is no place: write FILE:LINE or FUNCTION")
    return any(frame.line == int(line) and _is_file(frame.path, name.strip()) for frame in frames)


def _is_file(path: str, name: str) -> bool:
    return any(path == each or path.endswith(os.sep + each) for each in (name, name + ".py"))
