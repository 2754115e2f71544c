"""The stacks of many ranks merged: ranks that stand at the same place in one group, and all groups in one tree."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from raytrain_debug.errors import ControlError
from raytrain_debug.run.ranks import format_ranks


@dataclass(frozen=True)
class Frame:
    """A frame; `library` when it is not in the user's own code."""

    file: str
    line: int
    function: str
    library: bool = False


@dataclass(frozen=True)
class Stack:
    """One thread of one rank; `frames` outermost first. `peers` when only other ranks can end its wait."""

    rank: int
    frames: tuple[Frame, ...]
    waiting_in: str | None = None
    peers: bool = False
    thread: str = "MainThread"
    training: bool = True

    @property
    def place(self) -> Frame | None:
        """The innermost frame of the user's own code, or the innermost of all."""
        own = next((frame for frame in reversed(self.frames) if not frame.library), None)
        return own or (self.frames[-1] if self.frames else None)


@dataclass(frozen=True)
class RankStacks:
    """What a rank answered. `state` is "running", "waiting" (for a debugger) or "paused" (by one).

    `mark` and `work` tell whether its training thread moves (see `across.movement`). `pending` are the collectives
    under way as (group, name, sequence number, seconds); `started` counts those begun, by group.
    """

    rank: int
    state: str
    stacks: tuple[Stack, ...]
    mark: int = 0
    work: tuple[float, ...] = ()
    pending: tuple[tuple[str, str, int, float], ...] = ()
    started: dict[str, int] = field(default_factory=dict)

    @property
    def training(self) -> Stack:
        """The stack of the training thread."""
        return self.stacks[0]


@dataclass(frozen=True)
class Sample:
    """All ranks at one moment; `silent` says in words why a rank that was asked gave no answer."""

    ranks: dict[int, RankStacks]
    silent: dict[int, str]


@dataclass(frozen=True)
class Group:
    """Ranks whose thread of one name stands at the same place."""

    ranks: tuple[int, ...]
    waiting_in: str | None
    frames: tuple[Frame, ...]
    thread: str = "MainThread"
    training: bool = True
    peers: bool = False


@dataclass
class Node:
    """A branch of the merged tree: frames that all its ranks share, then where they part."""

    ranks: tuple[int, ...]
    frames: list[Frame]
    branches: list[Node]
    group: Group | None = None  # the ranks that go no deeper than this


class Parser:
    """Reads answers of the operation `stacks`; equal frames of all of them become one object."""

    def __init__(self) -> None:
        self._frames: dict[tuple[str, int, str, int], Frame] = {}

    def read(self, rank: int, answer: dict[str, Any]) -> RankStacks:
        """The answer of a rank; raises ControlError when it does not look like one."""
        try:
            stacks = tuple(self._stack(rank, thread) for thread in answer["threads"])
            return RankStacks(
                rank=rank,
                state=str(answer["state"]),
                stacks=stacks or (Stack(rank, ()),),
                mark=int(answer["threads"][0]["mark"]),
                work=tuple(float(each) for each in answer.get("work") or ()),
                pending=tuple(
                    (str(group), str(name), int(seq), float(age)) for group, name, seq, age in answer["pending"]
                ),
                started={str(group): int(count) for group, count in answer["started"].items()},
            )
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise ControlError(f"its answer makes no sense: {type(error).__name__}: {error}") from None

    def _stack(self, rank: int, thread: dict[str, Any]) -> Stack:
        label = thread["waiting_in"]
        return Stack(
            rank,
            tuple([self._frame(*frame) for frame in thread["frames"]]),
            None if label is None else str(label),
            bool(thread.get("peers")),
            str(thread["name"]),
            bool(thread["training"]),
        )

    def _frame(self, file: str, line: int, function: str, origin: int) -> Frame:
        key = (file, line, function, origin)
        frame = self._frames.get(key)
        if frame is None:
            frame = self._frames[key] = Frame(str(file), int(line), str(function), library=origin < _USER)
        return frame


_HALTS = {"breakpoint": "stands in a debugger", "start": "waits for a debugger before its first line"}
_USER = 3  # shim.callsite.USER: what the answers say of a frame in the user's own code


def read_sample(answers: dict[int, dict[str, Any] | ControlError]) -> Sample:
    """What `ask_all` returned for the operation `stacks`."""
    parser = Parser()
    ranks: dict[int, RankStacks] = {}
    silent: dict[int, str] = {}
    for rank, answer in sorted(answers.items()):
        try:
            if isinstance(answer, ControlError):
                raise answer
            ranks[rank] = parser.read(rank, answer)
        except ControlError as error:
            silent[rank] = str(error)
    return Sample(ranks, silent)


def fold(stacks: Iterable[Stack], library: bool = False) -> list[Group]:
    """Groups of ranks, the largest first, training threads before others; library frames only on request.

    A stack with no frame of the user's own keeps all of its frames: they are all there is to say.
    """
    found: dict[tuple[Any, ...], list[Stack]] = {}
    for stack in stacks:
        found.setdefault((not stack.training, stack.thread, stack.waiting_in, _shown(stack, library)), []).append(stack)
    groups = [
        Group(
            tuple(sorted(stack.rank for stack in members)),
            label,
            frames,
            thread,
            not other,
            members[0].peers,
        )
        for (other, thread, label, frames), members in found.items()
    ]
    return sorted(groups, key=lambda group: (not group.training, group.thread, -len(group.ranks), group.ranks))


def merge(groups: Sequence[Group]) -> list[Node]:
    """One tree of the groups for each outermost frame: what ranks have in common once, then where they part."""
    roots: list[Node] = []
    level: list[tuple[list[Node], int, list[Group]]] = [(roots, 0, list(groups))]
    while level:
        into, depth, members = level.pop()
        parts: dict[Frame | None, list[Group]] = {}
        for group in members:
            # Groups that end here differ in what they wait in: each is a branch of its own.
            if len(group.frames) > depth:
                parts.setdefault(group.frames[depth], []).append(group)
            else:
                into.append(Node(group.ranks, [], [], group))
        for part in parts.values():
            deep = _shared(part, depth)
            node = Node(_union(part), list(part[0].frames[depth:deep]), [])
            into.append(node)
            if len(part) == 1:
                node.group = part[0]
            else:
                level.append((node.branches, deep, part))
    _sort(roots)
    return roots


def to_json(sample: Sample, library: bool = False, threads: bool = False) -> dict[str, Any]:
    """What `stacks --json` prints; its `tree` is that of the training threads, merged."""
    groups = fold(stacks_of(sample, threads), library)
    errors: dict[str, list[int]] = {}
    for rank, why in sample.silent.items():
        errors.setdefault(why, []).append(rank)
    return {
        "groups": [
            {
                "ranks": list(group.ranks),
                "waiting_in": group.waiting_in,
                "frames": _frames_json(group.frames),
                **({"thread": group.thread} if threads else {}),
            }
            for group in groups
        ],
        "tree": _tree_json(merge([group for group in groups if group.training])),
        "errors": [{"ranks": ranks, "error": why} for why, ranks in errors.items()],
    }


def _frames_json(frames: Iterable[Frame]) -> list[dict[str, Any]]:
    return [{"file": each.file, "line": each.line, "function": each.function} for each in frames]


def _tree_json(roots: Sequence[Node]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    todo = [(found, roots)]
    while todo:
        into, nodes = todo.pop()
        for node in nodes:
            waits = node.group.waiting_in if node.group is not None else None
            branch: dict[str, Any] = {
                "ranks": list(node.ranks),
                "frames": _frames_json(node.frames),
                "waits": None if waits is None else wait_in_words(waits),
                "branches": [],
            }
            into.append(branch)
            todo.append((branch["branches"], node.branches))
    return found


def stacks_of(sample: Sample, threads: bool = False) -> list[Stack]:
    """Every rank's training thread, or (`threads`) all of their threads."""
    return [stack for rank in sample.ranks.values() for stack in (rank.stacks if threads else rank.stacks[:1])]


def wait_in_words(label: str) -> str:
    """`waits in all_reduce`, for ranks that wait for a debugger something clearer."""
    return _HALTS.get(label, f"waits in {label}")


def short_ranks(ranks: Sequence[int], width: int = 24) -> str:
    """`0,2-3`; when that is longer than `width`, its beginning and how many they are."""
    text = format_ranks(ranks)
    if len(text) <= width:
        return text
    count = f"… ({len(ranks)})"
    kept = text[: max(1, width - len(count))]
    return (kept[: kept.rfind(",") + 1] or kept) + count


def _shown(stack: Stack, library: bool) -> tuple[Frame, ...]:
    if library:
        return stack.frames
    return tuple([frame for frame in stack.frames if not frame.library]) or stack.frames


def _shared(groups: Sequence[Group], depth: int) -> int:
    """How deep all groups, alike up to `depth`, are alike."""
    first = groups[0].frames
    deep = min(len(group.frames) for group in groups)
    for at in range(depth, deep):
        if any(group.frames[at] is not first[at] and group.frames[at] != first[at] for group in groups):
            return at
    return deep


def _union(groups: Sequence[Group]) -> tuple[int, ...]:
    if len(groups) == 1:
        return groups[0].ranks
    return tuple(sorted({rank for group in groups for rank in group.ranks}))


def _sort(nodes: list[Node]) -> None:
    """Large branches first, at every level."""
    todo = [nodes]
    while todo:
        level = todo.pop()
        level.sort(key=lambda node: (-len(node.ranks), node.ranks))
        todo += [node.branches for node in level if node.branches]
