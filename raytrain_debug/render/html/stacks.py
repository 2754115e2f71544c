"""Where all ranks stood, merged: what their stacks have in common once, then where they part."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from raytrain_debug.across.stacks import Frame, Group, Node, Stack, fold, merge, short_ranks
from raytrain_debug.postmortem.dead_job import last_core
from raytrain_debug.render.html.markup import Markup, tag
from raytrain_debug.render.html.places import place
from raytrain_debug.run.reader import Rank
from raytrain_debug.run.records import HangRecord, ThreadRecord


def of_cores(ranks: Iterable[Rank], cwd: str | None) -> Markup | None:
    """The tree of the threads that died, or were ended, by the cores of `ranks`."""
    stacks = [
        _stack(rank.rank, core.thread)
        for rank in ranks
        if (core := last_core(rank)) is not None and core.thread is not None
    ]
    return _tree(merge(fold(stacks)), cwd) if stacks else None


def of_hang(hang: HangRecord, cwd: str | None) -> Markup:
    """The tree that the launcher saw when nothing moved."""
    groups = [
        Group(group.ranks, group.waiting_in, tuple(Frame(each.file, each.line, each.function) for each in group.frames))
        for group in hang.groups
    ]
    return _tree(merge(groups), cwd)


def _stack(rank: int, thread: ThreadRecord) -> Stack:
    frames = tuple(Frame(each.file, each.line, each.function, each.origin != "user") for each in thread.frames)
    return Stack(rank, frames, thread.waiting_in, thread=thread.name, training=thread.is_main)


def _tree(nodes: Sequence[Node], cwd: str | None) -> Markup:
    return tag("ul", (_node(node, cwd) for node in nodes), class_="stack")


def _node(node: Node, cwd: str | None) -> Markup:
    lines = [
        tag("div", tag("code", frame.function), "  ", place(frame.file, frame.line, cwd), class_=_class(frame))
        for frame in node.frames
    ]
    if node.group is not None and node.group.waiting_in is not None:
        lines.append(tag("div", f"waits in {node.group.waiting_in}", class_="warn-text"))
    elif not lines:
        lines.append(tag("div", "no frames", class_="soft"))
    word = "rank" if len(node.ranks) == 1 else "ranks"
    branches = tag("ul", (_node(branch, cwd) for branch in node.branches)) if node.branches else None
    return tag("li", tag("span", f"{word} {short_ranks(node.ranks, 60)}", class_="ranks"), lines, branches)


def _class(frame: Frame) -> str | None:
    return "library" if frame.library else None
