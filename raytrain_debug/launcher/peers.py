"""Who is at the other end: the owner of a local TCP connection, and the process that holds a port.

Both without privilege. Sources: sock_diag(7), which looks one connection up; where a kernel or sandbox has no such
thing proc(5), /proc/net/tcp and /proc/net/tcp6, which list all of them: addresses there are 32-bit words in host order,
ports hexadecimal.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import pwd
import socket
import struct
from dataclasses import dataclass

_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, _NLMSG_ERROR = 4, 20, 1, 2
_ANY = 0xFFFFFFFF

_LISTENING = "0A"
_LOOKS = 3  # the kernel's table is read piecemeal: a connection made or ended meanwhile may hide another for one look


Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Endpoint = tuple[Address, int]


@dataclass(frozen=True)
class Peer:
    """The process side of a connection: its user id, and the inode of its socket (0 when no process has it open)."""

    uid: int
    inode: int


def find_peer(local: tuple[str, int], remote: tuple[str, int]) -> Peer | None:
    """The peer of our connection (`local` our address, `remote` the peer's); None when it is not on this machine.

    This machine means this network namespace: what comes from another one is another machine's.
    """
    theirs, ours = (_ip(remote[0]), remote[1]), (_ip(local[0]), local[1])
    try:
        return _ask_kernel(theirs, ours)
    except OSError:
        return _look_in_tables(theirs, ours)


def is_ours(peer: Peer | None) -> bool:
    """True for a socket that a process of this user, or of root, has open."""
    return peer is not None and peer.inode != 0 and peer.uid in (os.geteuid(), 0)


def is_loopback(address: str) -> bool:
    """True for an address that only this machine reaches."""
    try:
        ip = _ip(address)
    except ValueError:
        return False
    return ip.is_loopback


def user_name(uid: int) -> str:
    """`alice`, or the number of a user without a name."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def describe_process(pid: int) -> str:
    """`python train.py (pid 123)`."""
    import psutil

    try:
        process = psutil.Process(pid)
        command = " ".join(process.cmdline()) or process.name()
    except psutil.Error:
        return f"pid {pid}"
    # On one line, and nothing that a terminal would take for an order: it may be anybody's process.
    command = " ".join("".join(each if each.isprintable() else " " for each in command).split())
    return f"{command if len(command) <= 120 else command[:119] + '…'} (pid {pid})"


def describe_port_holder(port: int) -> str:
    """Who listens on TCP `port` of this machine, in words, as far as this user may see."""
    holders = _listeners(port)
    for inode in holders:
        pid = _process_with_socket(inode)
        if pid is not None:
            return describe_process(pid)
    for uid in holders.values():
        return f"a process of user {user_name(uid)}"
    return "a process that has just let go of it"


def _listeners(port: int) -> dict[int, int]:
    """Inode to user id of the sockets that listen on `port`."""
    found = {}
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in _read(table).splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTENING and fields[1].endswith(f":{port:04X}"):
                found[int(fields[9])] = int(fields[7])
    return found


def _process_with_socket(inode: int) -> int | None:
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            descriptors = os.listdir(f"/proc/{name}/fd")
        except OSError:
            continue  # another user's, or gone
        if any(_target(f"/proc/{name}/fd/{each}") == f"socket:[{inode}]" for each in descriptors):
            return int(name)
    return None


def _target(link: str) -> str:
    try:
        return os.readlink(link)
    except OSError:
        return ""


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii") as file:
            return file.read()
    except OSError:
        return ""


def _ask_kernel(theirs: Endpoint, ours: Endpoint) -> Peer | None:
    """The socket from `theirs` to `ours`; None when there is none. Raises OSError when it cannot be asked."""
    family = socket.AF_INET6 if theirs[0].version == 6 else socket.AF_INET
    ports = struct.pack("!HH", theirs[1], ours[1])
    addresses = b"".join(each[0].packed.ljust(16, b"\0") for each in (theirs, ours))
    request = struct.pack("=BBBxI", family, socket.IPPROTO_TCP, 0, _ANY) + ports + addresses
    request += struct.pack("=III", 0, _ANY, _ANY)  # any interface, no cookie
    header = struct.pack("=IHHII", 16 + len(request), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as asking:
        asking.settimeout(1)
        asking.sendto(header + request, (0, 0))
        answer = asking.recv(4096)
    if struct.unpack_from("=H", answer, 4)[0] == _NLMSG_ERROR:
        number = -struct.unpack_from("=i", answer, 16)[0]
        if number == errno.ENOENT:
            return None
        raise OSError(number, os.strerror(number))
    # After both headers and the socket's id: expires, rqueue, wqueue, uid, inode.
    uid, inode = struct.unpack_from("=II", answer, 16 + 4 + 48 + 12)
    return Peer(uid, inode)


def _look_in_tables(theirs: Endpoint, ours: Endpoint) -> Peer | None:
    wanted = list(zip(_entries(*theirs), _entries(*ours), strict=True))
    for _ in range(_LOOKS):
        for (table, entry), (_, own) in wanted:
            text = _read(table)
            at = text.find(f" {entry} {own} ")
            if at >= 0:
                fields = text[at : text.find("\n", at)].split()
                return Peer(uid=int(fields[6]), inode=int(fields[8]))
    return None


def _entries(ip: Address, port: int) -> list[tuple[str, str]]:
    """The tables an address may stand in, with how it does: a socket of either family may speak IPv4."""
    if ip.version == 6:
        return [("/proc/net/tcp6", _entry(ip.packed, port))]
    mapped = bytes(10) + b"\xff\xff" + ip.packed
    return [("/proc/net/tcp", _entry(ip.packed, port)), ("/proc/net/tcp6", _entry(mapped, port))]


def _entry(packed: bytes, port: int) -> str:
    return "".join(f"{word:08X}" for word in struct.unpack(f"={len(packed) // 4}I", packed)) + f":{port:04X}"


def _ip(address: str) -> Address:
    """The address without its zone, an IPv4-mapped one as IPv4."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    return getattr(ip, "ipv4_mapped", None) or ip
