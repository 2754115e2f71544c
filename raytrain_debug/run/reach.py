"""Where a debugger finds a rank of a live run: this machine's loopback, or another machine's address."""

from __future__ import annotations

import ipaddress
import socket

from raytrain_debug.errors import NotInRun, RunNotFound
from raytrain_debug.run.ranks import format_ranks
from raytrain_debug.run.records import RunRecord


def gateway_of(record: RunRecord, rank: int) -> tuple[str, int]:
    """Host and port of the gateway for `rank`; raises RunNotFound when the run has no such rank that can be reached."""
    launcher = record.launcher
    port = launcher.ports.get(str(rank)) if launcher is not None else None
    if launcher is None or port is None:
        here = format_ranks(int(each) for each in launcher.ports) if launcher is not None else ""
        message, remedy = f"run {record.id} has no rank {rank} here", f"its ranks here are {here}"
        if record.nnodes > 1 and 0 <= rank < record.world_size:
            far = "it is on another node: give launch on every node --host ADDRESS and a --token, or attach there"
            raise RunNotFound(message, f"{far}\n{remedy}")
        raise NotInRun(message, remedy)
    if str(rank) in launcher.hosts:
        return launcher.hosts[str(rank)], port
    if launcher.host == socket.gethostname():
        # A gateway listens on loopback whatever else it listens on.
        return launcher.bind if _is_loopback(launcher.bind) else "127.0.0.1", port
    if launcher.address:
        return launcher.address, port
    raise RunNotFound(
        f"run {record.id} is on {launcher.host}, where debuggers reach it from that machine only",
        "attach there, or give launch --host ADDRESS and a --token",
    )


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False
