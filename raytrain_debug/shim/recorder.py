"""Writes one line of reports.jsonl, and keeps a snapshot, for each `ray.train.report` of this rank."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from types import FrameType
from typing import Any

from raytrain_debug.run import codec, layout, reader, writer
from raytrain_debug.run.records import SCHEMA, CallSite, CheckpointRecord
from raytrain_debug.shim import callsite, usage
from raytrain_debug.shim.context import Shards, describe_context
from raytrain_debug.shim.guard import Guard
from raytrain_debug.shim.snapshot import Snapshots

_MAX_ITEMS = 10_000
_MAX_TEXT = 10_000
_MOST_PARTS = 100
_NO_TENSORS = frozenset({bool, float, int, str, type(None)})


@dataclass(frozen=True)
class RecorderConfig:
    """What a recorder needs to know; `rank` is the environment's RANK, whatever Ray's context says."""

    run: layout.RunPaths
    rank: int
    attempt: int
    guard: Guard
    keep_checkpoints: int = 2


class Recorder:
    """The reports of one rank in one attempt. `record` may be called from any thread and never raises an Exception."""

    def __init__(self, paths: layout.RankPaths, guard: Guard, attempt: int, keep_checkpoints: int = 2) -> None:
        self._paths = paths
        self._guard = guard
        self._attempt = attempt
        self._snapshots = Snapshots(paths, keep_checkpoints, guard)
        self._lock = threading.RLock()  # re-entered when a metric's repr reports
        self._next: int | None = None
        self._last_time: float | None = None
        self._context: Any = None
        self._described: dict[str, Any] = {}
        self._shards = Shards()

    def record(
        self,
        metrics: Any,
        checkpoint: Any,
        context: Any,
        frame: FrameType | None,
        shards: Mapping[str, Any] | None = None,
    ) -> None:
        """Keep a report: `checkpoint` is a ray.train.Checkpoint or None, `frame` the innermost of the call to Ray.

        `shards` are the datasets of the rank, by name.
        """
        with self._lock, self._guard("recording a report"):
            now = time.time()
            where = callsite.user_call(frame)
            index = self._take_index()
            kept = self._snapshots.take(checkpoint, index) if checkpoint is not None else None
            described = self._describe(context)
            if shards:
                described = {**described, "dataset_shards": self._shards.describe(shards)}
            self._append(index, now, metrics, kept, described, where)
            if kept is not None:
                self._snapshots.prune()

    def _append(
        self,
        index: int,
        now: float,
        metrics: Any,
        checkpoint: CheckpointRecord | None,
        context: dict[str, Any],
        where: CallSite | None,
    ) -> None:
        process = usage.sample()
        kept = _metrics(metrics)
        tensors = _tensors(metrics, kept)
        line = {
            "schema": SCHEMA,
            "index": index,
            "time": now,
            "interval": None if self._last_time is None else now - self._last_time,
            "attempt": self._attempt,
            "context": context,
            "metrics": kept,
            **({"tensors": tensors} if tensors else {}),
            "checkpoint": None if checkpoint is None else asdict(checkpoint),
            "where": None if where is None else {"file": where.file, "line": where.line, "function": where.function},
            "process": {"rss": process.rss, "cpu_time": process.cpu_time, "gpu_memory": process.gpu_memory},
        }
        self._last_time = now
        writer.append_line(self._paths.reports, codec.dumps(line))

    def _take_index(self) -> int:
        """The number of this report; it counts on over attempts, and counts reports whose writing then fails."""
        if self._next is None:
            if self._paths.directory.parent.is_dir():  # not when the run has been deleted meanwhile
                layout.make_private(self._paths.directory)
            self._next, _ = reader.tail_reports(self._paths, 0)
            self._snapshots.tidy(self._next)
        index = self._next
        self._next += 1
        return index

    def _describe(self, context: Any) -> dict[str, Any]:
        """The context's state; its getters are constant for one context object, so each is asked once."""
        if context is not self._context or not self._described:
            self._described = describe_context(context)
            self._context = context
        return self._described


def make_recorder(config: RecorderConfig) -> Recorder:
    """The recorder of this process."""
    return Recorder(config.run.rank(config.rank), config.guard, config.attempt, config.keep_checkpoints)


def _metrics(metrics: Any) -> dict[str, Any]:
    """The reported metrics within bounds; what is no dict, though Ray lets it pass, under the key "$metrics"."""
    value = codec.plain(metrics, max_items=_MAX_ITEMS, max_text=_MAX_TEXT)
    return value if isinstance(metrics, dict) and isinstance(value, dict) else {"$metrics": value}


def _tensors(metrics: Any, kept: dict[str, Any]) -> list[str]:
    """The names, as they are kept, of metrics that are torch tensors or hold one: what Ray's workers refuse."""
    tensor = getattr(sys.modules.get("torch"), "Tensor", None)
    if tensor is None or not isinstance(metrics, dict) or len(kept) != len(metrics):
        return []
    values = list(dict.values(metrics))
    if _NO_TENSORS.issuperset(map(type, values)):
        return []
    return [name for name, value in zip(kept, values, strict=False) if _holds(value, tensor, 2)]


def _holds(value: Any, wanted: type, levels: int) -> bool:
    kind = type(value)
    if issubclass(kind, wanted):
        return True
    if levels == 0 or kind not in (dict, list, tuple) or len(value) > _MOST_PARTS:
        return False
    parts = list(value.values() if kind is dict else value)
    return any(_holds(part, wanted, levels - 1) for part in parts)
