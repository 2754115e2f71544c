"""Which processes the ranks are, and whether those on this machine live."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True)
class Peer:
    """A rank's process; `started` in clock ticks since boot. Those of one `machine` see each other's pids."""

    pid: int
    started: int
    machine: str


def this_process() -> Peer:
    """This process, for others to look at."""
    pid = os.getpid()
    _, started = _look(pid) or ("", 0)
    return Peer(pid, started, _machine())


def is_alive(peer: Peer) -> bool:
    """Whether that process, on this machine, has not ended; one that nobody has reaped yet has."""
    found = _look(peer.pid)
    return found is not None and found[0] not in "ZX" and found[1] == peer.started


def _look(pid: int) -> tuple[str, int] | None:
    """State and start of a process, from proc(5); None when it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return fields[0].decode(), int(fields[19])
    except (OSError, ValueError, IndexError):
        return None


def _machine() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return f"{file.read().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return f"? {os.getpid()}"
