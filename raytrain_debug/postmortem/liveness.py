"""Whether the processes of a run still live, told by pid and start time, so that a reused pid fools nobody."""

from __future__ import annotations

import socket
from dataclasses import dataclass

import psutil

from raytrain_debug.run.reader import Run

_SAME_START = 2.0  # seconds: the clock that start times are counted from moves a little with NTP


@dataclass(frozen=True)
class Liveness:
    """Which processes of a run live: the launcher, and ranks by number.

    Processes of another host cannot be seen from here; they count as alive until run.json tells the end.
    """

    launcher: bool
    ranks: frozenset[int]

    @property
    def anything(self) -> bool:
        """Whether the run is still at work."""
        return self.launcher or bool(self.ranks)


NOTHING = Liveness(False, frozenset())


def liveness(run: Run) -> Liveness:
    """Look for the run's processes."""
    ended = run.record is not None and run.record.ended is not None
    launcher = run.record.launcher if run.record is not None else None
    if run.record is not None and run.record.tells_its_end:
        return NOTHING  # a test's process lives on
    return Liveness(
        launcher is not None and not ended and _lives(launcher.pid, launcher.create_time, launcher.host),
        frozenset(
            rank.rank
            for rank in run.ranks
            if rank.process is not None
            and not any(exit.pid == rank.process.pid for exit in rank.exits)
            and _lives(rank.process.pid, rank.process.create_time, rank.process.host, ended)
        ),
    )


def _lives(pid: int, create_time: float, host: str, ended: bool = False) -> bool:
    if host != socket.gethostname():
        return not ended
    try:
        process = psutil.Process(pid)
        return abs(process.create_time() - create_time) < _SAME_START and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:
        return True
