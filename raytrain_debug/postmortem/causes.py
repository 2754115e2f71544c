"""Which failure of an attempt came first: by when each rank raised or died, and by what one failure does to the others.

A rank may raise first and die last: it unwinds, shuts down, and dumps its core, while the ranks whose connection to it
breaks are gone at once. So the moment at which it raised counts, and a death only where nothing was raised.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from raytrain_debug.run.reader import Rank, Run
from raytrain_debug.run.records import CallSite, CoreRecord, ExceptionRecord, ExitRecord, ThreadRecord

_NOTICED = 0.5
"""Seconds by which the launcher may notice a death late; an exception just before it may be its consequence."""

AFTERMATH = 5.0
"""Seconds within which a rank that broke its connections while it unwound has recorded its exception too."""

_STOPPED_CODES = (128 + signal.SIGINT, 128 + signal.SIGTERM, 128 + signal.SIGHUP)
"""With which a script ends that handles such a signal."""

SYSTEM_EXIT = "SystemExit"

_LOST_PEER = re.compile(
    r"connection (?:was )?(?:closed|reset|aborted|refused)|broken pipe|gloo/transport|remote process exited|"
    r"NCCL communicator|ncclRemoteError|ncclSystemError|DistBackendError|DistNetworkError|DistStoreError",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Cause:
    """A rank's failure at `moment` (Unix seconds): its exception, or, without one, the death of its process."""

    rank: int
    moment: float
    exception: ExceptionRecord | None
    end: ExitRecord | None

    @property
    def lost_peer(self) -> bool:
        """Whether its exception is one that a rank gets when another one fails."""
        error = self.exception
        return error is not None and tells_of_a_lost_peer(f"{error.type}: {error.message}")


def first_cause(run: Run, attempt: int) -> Cause | None:
    """The failure of `attempt` that came before all others; None when no rank failed by itself."""
    stopped = run.record.stopped if run.record is not None else None
    causes = [cause for rank in run.ranks if (cause := _cause(rank, attempt, stopped)) is not None]
    if stopped is not None:
        causes = [cause for cause in causes if not cause.lost_peer]
    if all(cause.end is not None and cause.end.caused for cause in causes):
        # Whatever is raised while a job is being stopped is the stop's doing; what was raised long before is not.
        events = [end.time for rank in run.ranks for end in rank.exits if end.attempt == attempt]
        causes = [cause for cause in causes if cause.moment < min(events) - 2 * _NOTICED]
    if not causes:
        return None
    if any(cause.end is not None and cause.moment > cause.end.time + _NOTICED for cause in causes):
        # A core from after its rank's death: a clock was set. The order of deaths needs none.
        return min(causes, key=lambda cause: cause.end.order if cause.end is not None else len(causes))
    return _not_a_consequence(sorted(causes, key=_when))


def tells_of_a_lost_peer(exception: str) -> bool:
    """Whether "Type: message" is what a rank raises when another one has gone."""
    return _LOST_PEER.search(exception) is not None


def core_of(rank: Rank, end: ExitRecord | None) -> CoreRecord | None:
    """The rank's core when it is that of this end, or, with no end, of its newest process."""
    core = rank.core if end is None else rank.core_of(end.attempt)
    pid = end.pid if end is not None else rank.process.pid if rank.process is not None else None
    return core if core is not None and pid in (None, core.pid) else None


def crashed_in(core: CoreRecord | None) -> ThreadRecord | None:
    """The thread that a fatal signal ended; where that runs none of the user's code, the first that does."""
    if core is None or core.reason != "signal":
        return None
    return next((each for each in core.threads if innermost(each) is not None), core.thread)


def innermost(thread: ThreadRecord | None) -> CallSite | None:
    """The thread's last frame in the user's own code."""
    own = [frame for frame in thread.frames if frame.origin == "user"] if thread is not None else []
    return CallSite(own[-1].file, own[-1].line, own[-1].function) if own else None


def raised(rank: Rank, end: ExitRecord | None, stopped: str | None) -> ExceptionRecord | None:
    """The exception that the rank failed with; an interrupt by which it was ended is none. `stopped` as in run.json."""
    core = core_of(rank, end)
    error = core.exception if core is not None else None
    if error is not None and _is_interrupt(error) and (stopped is not None or (end is not None and end.caused)):
        return None
    return error if error is not None and error.type != SYSTEM_EXIT else None


def exit_called(rank: Rank, end: ExitRecord | None) -> ExceptionRecord | None:
    """The SystemExit by which the rank ended itself, with its message and place."""
    core = core_of(rank, end)
    error = core.exception if core is not None else None
    return error if error is not None and error.type == SYSTEM_EXIT else None


def was_stopped(rank: Rank, end: ExitRecord | None, stopped: str | None) -> bool:
    """Whether what stopped the run ended the rank, by an interrupt in its Python code or by what it does at one."""
    if stopped is None:
        return False
    core = core_of(rank, end)
    if core is not None and core.exception is not None and (_is_interrupt(core.exception) or raised(rank, end, None)):
        return _is_interrupt(core.exception)
    return end is not None and end.exit_code in _STOPPED_CODES


def _is_interrupt(error: ExceptionRecord | None) -> bool:
    """Whether it is a KeyboardInterrupt, or was raised from one or while one was handled."""
    if error is None:
        return False
    return error.type == "KeyboardInterrupt" or _is_interrupt(error.cause) or _is_interrupt(error.context)


def _cause(rank: Rank, attempt: int, stopped: str | None) -> Cause | None:
    end = next((each for each in rank.exits if each.attempt == attempt), None)
    if (end is not None and end.exit_code == 0) or was_stopped(rank, end, stopped):
        return None
    core, error = core_of(rank, end), raised(rank, end, stopped)
    if error is None and end is not None and not end.caused:
        error = exit_called(rank, end)
    if core is not None and error is not None and core.attempt == attempt:
        return Cause(rank.rank, core.time, error, end)
    if end is None or end.caused:
        return None
    return Cause(rank.rank, end.time, None, end)


def _when(cause: Cause) -> tuple[float, int]:
    late = 0.0 if cause.exception is not None else _NOTICED
    return cause.moment - late, cause.end.order if cause.end is not None else 0


def _not_a_consequence(causes: Sequence[Cause]) -> Cause:
    """The first of `causes`, which are in order, unless it is a lost connection and another one explains that."""
    first = causes[0]
    if first.lost_peer:
        for cause in causes:
            if not cause.lost_peer and cause.moment <= first.moment + AFTERMATH:
                return cause
    return first
