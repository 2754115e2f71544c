"""The gateway's listening sockets: all bound before the job starts, or an error that names who holds one."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterable

from raytrain_debug.errors import PortTaken, UsageError
from raytrain_debug.launcher import peers

DEFAULT_BASE_PORT = 5678
FIRST_FREE_PORT = 25678  # a job that picks its ports leaves 5678 to one that has to be found there

_LOOPBACK = ("127.0.0.1", "::1")
_WILDCARDS = {"0.0.0.0": ("0.0.0.0", "::1"), "::": ("::", "0.0.0.0"), "*": ("::", "0.0.0.0")}

Bound = dict[int, list[socket.socket]]
"""The listening sockets of each rank; all of a rank's have the same port."""


class _Taken(Exception):
    """Somebody else has the port."""

    def __init__(self, port: int) -> None:
        self.port = port


def is_loopback(host: str) -> bool:
    """True for `localhost` and loopback addresses."""
    return host == "localhost" or peers.is_loopback(host)


def is_wildcard(host: str) -> bool:
    """True for a host that stands for all addresses of this machine."""
    return host in _WILDCARDS


def loopback_of(host: str) -> str:
    """The address at which this machine itself reaches what listens on `host`."""
    return host if peers.is_loopback(host) else _LOOPBACK[0]


def bind_ports(host: str, base_port: int, ranks: Iterable[int]) -> Bound:
    """Listening sockets of each rank on `base_port + rank`, on `host` and always on loopback, IPv4 and IPv6.

    Raises PortTaken, and then holds none; UsageError for ports that do not exist or a host that is not ours.
    """
    try:
        return _bind_all(host, base_port, ranks)
    except _Taken as taken:
        raise PortTaken(
            f"port {taken.port} is taken by {peers.describe_port_holder(taken.port)}",
            "end that process, or choose other ports with --base-port PORT or --base-port auto",
        ) from None


def bind_free_ports(host: str, ranks: Iterable[int]) -> tuple[int, Bound]:
    """A base port whose ports are all free, from 25678 on, and their sockets; raises PortTaken when none of many is."""
    wanted = list(ranks)
    first, last = min(wanted, default=0), max(wanted, default=0)
    for base_port in range(FIRST_FREE_PORT - first, 65000 - last, last - first + 1):
        try:
            return base_port, _bind_all(host, base_port, wanted)
        except _Taken:
            continue
    raise PortTaken(f"no {len(wanted)} free ports in a row were found", "name the first with --base-port PORT")


def check(host: str, base_port: int | None, world_size: int) -> None:
    """Raise UsageError for what `bind_ports` would refuse later, when a job on several nodes is about to run."""
    if base_port is not None and not 0 < base_port <= 65536 - world_size:
        raise UsageError(f"{world_size} ranks have no ports from {base_port} on", "choose another with --base-port")
    close_all(bind_free_ports(host, [0])[1])


def close_all(bound: Bound) -> None:
    """Let go of all ports."""
    for sockets in bound.values():
        for each in sockets:
            each.close()


def _bind_all(host: str, base_port: int, ranks: Iterable[int]) -> Bound:
    addresses = _addresses(host)
    bound: Bound = {}
    try:
        for rank in ranks:
            if not 0 < base_port + rank < 65536:
                raise UsageError(f"rank {rank} would need port {base_port + rank}", "choose another with --base-port")
            bound[rank] = []
            for address in addresses:
                _bind(address, base_port + rank, bound[rank])
    except BaseException:
        close_all(bound)
        raise
    return bound


def _addresses(host: str) -> list[str]:
    """What to listen on for `host`, the address that cannot be done without first."""
    if host in _WILDCARDS:
        return list(_WILDCARDS[host])
    if host in ("localhost", *_LOOPBACK):
        return sorted(_LOOPBACK, key=lambda each: each != host)
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise UsageError(f"--host {host}: {error.strerror or error}", "name an address of this machine") from None
    # A loopback address of its own (127.0.0.2) is a wish to keep 127.0.0.1 free.
    more = () if is_loopback(host) else _LOOPBACK
    return list(dict.fromkeys([*(str(each[4][0]) for each in found), *more]))


def _bind(address: str, port: int, sockets: list[socket.socket]) -> None:
    """Add a listening socket to `sockets`; an IPv6 address that the machine lacks is left out if there are others."""
    try:
        sockets.append(_listen(address, port))
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise _Taken(port) from None
        if ":" in address and sockets:
            return
        # asyncio's and Python's own texts repeat the address; the kernel's word for the number does not.
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise UsageError(f"cannot listen on {address} port {port}: {reason}", "see --host and --base-port") from None


def _listen(address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind((address, port))
        listener.listen(128)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener
