"""What one dead rank has to show a debugger: locals, last report, context, checkpoint; as trees, and as names."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

from raytrain_debug.postmortem import tree
from raytrain_debug.postmortem.dead_job import DeadFrame
from raytrain_debug.postmortem.opened import Kept, NoCheckpoint, OpenCheckpoint, OpenFiles
from raytrain_debug.postmortem.recorded import of_exception, valued
from raytrain_debug.postmortem.source_text import SourceTexts
from raytrain_debug.postmortem.tree import Node
from raytrain_debug.run.reader import Rank
from raytrain_debug.run.records import Described, to_dict

_EXCEPTION = "__exception__"

Opener = Callable[[], list[Node]]


class DeadRank:
    """A rank, its values had on demand."""

    def __init__(self, rank: Rank, files: OpenFiles) -> None:
        self.rank = rank
        self.sources = SourceTexts(rank)
        self._files = files
        core = rank.core
        self._tensors = Kept(rank.paths.directory / core.tensors if core is not None and core.tensors else None, files)

    @cached_property
    def checkpoint(self) -> OpenCheckpoint | NoCheckpoint:
        """The last reported checkpoint's snapshot, or why there is none."""
        record = self.rank.last_checkpoint
        if record is None:
            return NoCheckpoint("no checkpoint was reported")
        directory = self.rank.snapshot
        if directory is not None:
            return OpenCheckpoint(directory, self._files)
        return NoCheckpoint(f"no snapshot (kept: {record.kept}); the script had it at {record.source}")

    @cached_property
    def report(self) -> dict[str, Any]:
        """The last report as plain values; empty when none was made."""
        return to_dict(self.rank.last_report) if self.rank.last_report is not None else {}

    def locals(self, frame: DeadFrame) -> list[Node]:
        """The variables of a frame, the exception that came out of it among them."""
        can_be_named = self._variables(frame)
        nodes = [
            tree.of_described(name, value, self._tensors, name if name in can_be_named else "")
            for name, value in _locals(frame).items()
        ]
        record = frame.record
        return [*nodes, tree.note(record.note)] if record is not None and record.note else nodes

    def scopes(self, frame: DeadFrame) -> dict[str, Opener]:
        """What is the same in all frames of the rank, by name; `frame` is where its expressions are to be good."""
        names = {name: f"__{name}__" if name in self._variables(frame) else name for name in self._ours()}
        return {
            "Last report": lambda: self._last_report(names["metrics"], names["report"]),
            "Context": lambda: self._context(names["context"]),
            "Checkpoint": lambda: self._checkpoint(names["checkpoint"]),
        }

    def names(self, frame: DeadFrame) -> Mapping[str, Callable[[], Any]]:
        """What an expression in `frame` may name: locals, variables of their module, and what is ours.

        Ours are had as `__checkpoint__` too, where the frame has a variable of that name.
        """
        ours = self._ours()
        found = {f"__{name}__": value for name, value in ours.items()}
        found.update(ours)
        found.update({name: self._valuer(value) for name, value in self._variables(frame).items()})
        return found

    def _ours(self) -> dict[str, Callable[[], Any]]:
        return {
            "rank": lambda: self.rank.rank,
            "report": lambda: self.report,
            "metrics": lambda: self.report.get("metrics", {}),
            "context": lambda: self.report.get("context", {}),
            "checkpoint": lambda: self.checkpoint,
        }

    def _variables(self, frame: DeadFrame) -> dict[str, Described]:
        """Variables of the frame and its module. One that would hide what is ours counts only if it has a value."""
        variables = dict(frame.globals.locals) if frame.globals is not None else {}
        variables.update(_locals(frame))
        hiding = set(self._ours())
        return {name: value for name, value in variables.items() if name not in hiding or not _is_lost(value)}

    def _valuer(self, value: Described) -> Callable[[], Any]:
        return lambda: valued(value, self._tensors)

    def _last_report(self, metrics: str, name: str) -> list[Node]:
        report = self.rank.last_report
        if report is None:
            return [tree.note("no report was made")]
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(report.time))
        nodes = [tree.of_value("metrics", report.metrics, metrics), Node("time", when, expression=f"{name}['time']")]
        others = ("index", "attempt", "interval", "where", "process")
        return nodes + [tree.of_value(key, self.report[key], f"{name}[{key!r}]") for key in others]

    def _context(self, name: str) -> list[Node]:
        context = self.report.get("context", {})
        nodes = [tree.of_value(key, value, f"{name}[{key!r}]") for key, value in context.items()]
        return nodes or [tree.note("no report was made, and a context is recorded with each")]

    def _checkpoint(self, name: str) -> list[Node]:
        checkpoint = self.checkpoint
        if isinstance(checkpoint, NoCheckpoint):
            return [tree.note(checkpoint.why)]
        node = tree.of_value("checkpoint", checkpoint, name)
        return (node.children() if node.children is not None else []) or [tree.note("it has no files")]


def _locals(frame: DeadFrame) -> dict[str, Described]:
    found = dict(frame.record.locals) if frame.record is not None else {}
    if frame.raised is not None:
        found[_EXCEPTION] = of_exception(frame.raised)
    return found


def _is_lost(value: Described) -> bool:
    """Whether nothing but a description is left, as of Ray's own Checkpoint and context objects."""
    return value.kind in ("object", "other")
