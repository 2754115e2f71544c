"""What torch's flight recorder tells of this process's collectives; nothing when torch is absent or has none.

On by default in torch 2.6 and later; `TORCH_FR_BUFFER_SIZE=0` switches it off.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from typing import Any

_MAX_PENDING = 16


@dataclass(frozen=True)
class Pending:
    """A collective that has begun here and has not ended; `seq` counts those of its group, `seconds` is its age."""

    group: str
    name: str
    seq: int
    seconds: float


def dump(collectives: bool = False) -> dict[str, Any]:
    """The recorder's state, empty without one: `_dump_fr_trace_json(includeCollectives, onlyActive)`."""
    function = getattr(sys.modules.get("torch._C._distributed_c10d"), "_dump_fr_trace_json", None)
    return {} if function is None else dict(json.loads(function(collectives, False)))


def started() -> dict[str, int]:
    """Group id to how many collectives this process has begun in it."""
    return {group: int(status["last_enqueued_collective"]) for group, status in dump().get("pg_status", {}).items()}


def pending() -> tuple[Pending, ...]:
    """The collectives under way, oldest first."""
    groups = dump().get("pg_status", {}).values()
    if all(each["last_enqueued_collective"] == each["last_completed_collective"] for each in groups):
        return ()
    now = time.time()
    return tuple(
        Pending(
            group=str(entry["process_group"][0]),
            name=plain_name(str(entry["profiling_name"])),
            seq=int(entry["collective_seq_id"]),
            seconds=max(0.0, now - int(entry["time_created_ns"]) / 1e9),
        )
        for entry in dump(collectives=True).get("entries", [])
        if not entry.get("retired")
    )[:_MAX_PENDING]


def plain_name(profiling_name: str) -> str:
    """`all_reduce` for `gloo:all_reduce`; `send 0->1` for `nccl:send 0->1`."""
    return profiling_name.partition(":")[2] or profiling_name
