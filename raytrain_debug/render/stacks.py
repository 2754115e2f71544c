"""Merged stacks of all ranks for a person: what ranks have in common once, then a branch for each place they are at."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.text import Text

from raytrain_debug.across.hang import Ended, Hang, place_in_words, ranks_in_words
from raytrain_debug.across.stacks import (
    Frame,
    Group,
    Node,
    Sample,
    fold,
    merge,
    short_ranks,
    stacks_of,
    wait_in_words,
)
from raytrain_debug.render import text
from raytrain_debug.render.lines import Line, Lines, Piece

_MAX_RANKS = 24  # columns for naming the ranks of a branch
_STILL = 2.0  # seconds in one place after which that is worth a word
_HALTS = {
    "breakpoint": "stands in a debugger",
    "start": "waits for a debugger before its first line",
    "crash": "has crashed here, and is kept for a debugger",
}


@dataclass(frozen=True)
class View:
    """What to show: other threads and library frames too, for how long each rank has stood still (seconds), and which
    have `moved` since the last look."""

    cwd: str = ""
    threads: bool = False
    library: bool = False
    still: Mapping[int, float] = field(default_factory=dict)
    moved: Collection[int] = ()


def render(sample: Sample, view: View, ended: Sequence[Ended] = (), notes: Sequence[str] = ()) -> list[RenderableType]:
    """The tree of training threads, (with `view.threads`) one of each other thread's name, who is missing, `notes`."""
    groups = fold(stacks_of(sample, view.threads), view.library)
    names = dict.fromkeys((not group.training, group.thread) for group in groups)
    parts: list[RenderableType] = []
    for other, name in names:
        if len(names) > 1:
            parts.append(text.plain(f"{'thread' if other else 'training thread'} {name}", "bold"))
        members = [group for group in groups if group.thread == name and group.training != other]
        parts.append(Tree(merge(members), view))
    missing = [text.plain(f"{ranks_in_words([each.rank])} {each.how}", "dim") for each in ended]
    return [*parts, *missing, *_silence(sample.silent), *(text.plain(note, "yellow") for note in notes)]


def render_hang(hang: Hang, cwd: str, ended: Sequence[Ended] = ()) -> list[RenderableType]:
    """A hang for the person at the launcher: the verdict, what explains it, all stacks, and where to look closer."""
    quiet = [group for group in fold(stacks_of(hang.sample)) if not group.peers]
    rank = min(quiet, key=lambda group: len(group.ranks), default=None)
    closer = rank.ranks[0] if rank is not None else min(hang.sample.ranks, default=0)
    return [
        text.plain(f"no rank has moved for {text.duration(hang.seconds)}: {hang.sentence}", "bold"),
        *(text.plain(f"  {note}") for note in hang.notes),
        *render(hang.sample, View(cwd), ended),
        text.plain(f"  look closer: python -m raytrain_debug attach --rank {closer}", "dim"),
    ]


class Tree:
    """The branches of a merged tree, as wide as the terminal is."""

    def __init__(self, roots: Sequence[Node], view: View) -> None:
        self.roots = roots
        self.view = view

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Lines(tree_lines(self.roots, self.view, options.max_width, options.ascii_only))


def tree_lines(roots: Sequence[Node], view: View, width: int = 100, ascii_only: bool = False) -> list[Line]:
    """The lines of a merged tree, in pieces of text with their style."""
    tee, bend, bar = ("|- ", "`- ", "|  ") if ascii_only else ("├─ ", "└─ ", "│  ")
    lines: list[Line] = []
    # Each entry: a node, what stands before its first line and before its others, columns for its ranks.
    todo: list[tuple[Node, str, str, int]] = [
        (node, "", "", _label_width(roots, width)) for node in reversed(list(roots))
    ]
    while todo:
        node, first, rest, columns = todo.pop()
        label = short_ranks(node.ranks, min(_MAX_RANKS, max(width // 3, 5)))
        contents = [_frame(frame, view.cwd, width - len(rest) - columns - 2) for frame in node.frames]
        if node.group is not None:
            contents += _tail(node.group, view)
        for number, content in enumerate(contents or [[]]):
            head = (f"{first}{label.ljust(columns)}  ", "bold") if number == 0 else (f"{rest}{' ' * columns}  ", "")
            lines.append([head, *content])
        below = _label_width(node.branches, width)
        for number, branch in enumerate(reversed(node.branches)):
            last = number == 0
            todo.append((branch, rest + (bend if last else tee), rest + ("   " if last else bar), below))
    return lines


def _label_width(nodes: Sequence[Node], width: int) -> int:
    return max((len(short_ranks(node.ranks, min(_MAX_RANKS, max(width // 3, 5)))) for node in nodes), default=0)


def _frame(frame: Frame, cwd: str, room: int) -> list[Piece]:
    place = place_in_words(frame.file, frame.line, cwd)
    if len(frame.function) + 2 + len(place) > room:
        place = place_in_words(os.path.basename(frame.file), frame.line, "")
    style = "dim" if frame.library else ""
    return [(frame.function, style or "cyan"), ("  ", ""), (place, style)]


def _tail(group: Group, view: View) -> list[list[Piece]]:
    """What the ranks of a group do at its end."""
    lines: list[list[Piece]] = []
    if group.waiting_in is not None:
        lines.append([(wait_in_words(group.waiting_in), "yellow")])
    elif not group.frames:
        lines.append([("runs no Python code", "dim")])
    seconds = min((view.still.get(rank, 0.0) for rank in group.ranks), default=0.0)
    if group.training and any(rank in view.moved for rank in group.ranks):
        lines.append([("moves", "green")])
    elif group.training and seconds >= _STILL:
        lines.append([(f"here for {text.duration(seconds)}", "dim")])
    return lines


def _silence(silent: Mapping[int, str]) -> list[Text]:
    reasons: dict[str, list[int]] = {}
    for rank, why in silent.items():
        reasons.setdefault(why, []).append(rank)
    return [text.plain(f"{ranks_in_words(ranks)}: {why}", "red") for why, ranks in reasons.items()]
