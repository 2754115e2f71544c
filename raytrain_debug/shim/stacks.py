"""The operation `stacks` of the control channel: what every thread of this rank does, without stopping any.

Answer: `{"state", "where", "started", "pending", "work", "threads": [{"name", "training", "waiting_in", "peers",
"mark", "frames"}]}`, the training thread first. A frame is `[file, line, function, origin]`, outermost first. `mark` is
equal in two answers when the thread stands at the same place; `work` is CPU seconds and context switches of the
training thread, which grow while it works.
"""

from __future__ import annotations

import os
import sys
import threading
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from raytrain_debug.shim import flight_recorder
from raytrain_debug.shim.frames import (
    Position,
    has_crashed,
    is_ours,
    is_suspended,
    positions,
    training_thread,
    waits_for_client,
)
from raytrain_debug.shim.waits import BREAKPOINT, CRASH, START, Wait, find_wait

if TYPE_CHECKING:
    from raytrain_debug.shim.rank import Rank

_TICKS = os.sysconf("SC_CLK_TCK")


def answer(rank: Rank, request: dict[str, Any]) -> dict[str, Any]:
    """Serve a request; `{"threads": true}` asks for all threads, not the training thread alone."""
    training = training_thread()
    pending = flight_recorder.pending()
    state = state_of(training)
    halt = CRASH if has_crashed(training.ident or 0) else BREAKPOINT if state == "paused" or rank.where else START
    threads = [_thread(training, pending, state, halt)]
    if request.get("threads"):
        known = {thread.ident: thread for thread in threading.enumerate()}
        for ident in sys._current_frames():
            thread = known.get(ident)
            if ident != training.ident and not is_ours(thread):
                threads.append(_other(ident, thread))
    return {
        "state": state,
        "started": flight_recorder.started(),
        "pending": [[each.group, each.name, each.seq, each.seconds] for each in pending],
        "work": _work(training),
        "threads": threads,
    }


def state_of(thread: threading.Thread) -> str:
    """ "paused" by a debugger, "waiting" for one, or "running"."""
    return "paused" if is_suspended(thread) else "waiting" if waits_for_client(thread.ident or 0) else "running"


def _thread(
    thread: threading.Thread, pending: Sequence[flight_recorder.Pending], state: str, halt: str
) -> dict[str, Any]:
    found = positions(thread.ident or 0)
    wait = find_wait(found, pending) if state == "running" else Wait(halt, False, len(found) - 1)
    marks: list[Any] = [(each.file, each.function, each.lasti) for each in found[: wait.index + 1 if wait else None]]
    marks += [(each.group, each.seq) for each in pending]
    return {
        "name": thread.name,
        "training": True,
        "waiting_in": wait.label if wait else None,
        "peers": wait.peers if wait else False,
        "mark": zlib.crc32(repr(marks).encode()),
        "frames": _frames(found),
    }


def _other(ident: int, thread: threading.Thread | None) -> dict[str, Any]:
    found = positions(ident)
    wait = find_wait(found)
    return {
        "name": thread.name if thread is not None else "not started by Python",
        "training": False,
        "waiting_in": wait.label if wait else None,
        "frames": _frames(found),
    }


def _frames(found: Sequence[Position]) -> list[list[Any]]:
    return [[each.file, each.line, each.function, each.origin] for each in found]


def _work(thread: threading.Thread) -> list[float]:
    """CPU seconds that the thread has used and times it went to sleep, from proc(5); empty where there is none."""
    try:
        directory = f"/proc/self/task/{thread.native_id}"
        with open(f"{directory}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        with open(f"{directory}/status", "rb") as file:
            switches = next(int(line.split()[1]) for line in file if line.startswith(b"voluntary_ctxt_switches"))
        return [(int(fields[11]) + int(fields[12])) / _TICKS, switches]
    except (OSError, StopIteration, ValueError, IndexError):
        return []
