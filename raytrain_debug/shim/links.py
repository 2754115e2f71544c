"""Snapshots without copying: hard links to files that the script is about to delete, guarded until it has.

A checkpoint made in a `tempfile.TemporaryDirectory` is deleted soon after it was reported, so a hard link keeps it for
nothing, where a copy costs a quarter of the time of the `torch.save` that wrote it. But until it is deleted the script
may still write into the same inode. A read lease (fcntl(2), F_SETLEASE) closes that gap: the kernel refuses it when
anybody has the file open for writing, and from then on makes a writer wait until the holder has given it up. The
holder must answer while the script's thread waits inside `open`, maybe with Python's interpreter lock held (torch.save
opens files from C++ so); therefore it is a process of its own, `keeper.py`, which lives until the script has deleted
the files, or a few seconds.

Small checkpoints are copied, which is cheaper than a process. So is whatever cannot be leased or linked: another file
system, files of another user, file systems without leases. That is correct at any time, only slower.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from raytrain_debug.shim import keeper, pydevd_signs
from raytrain_debug.shim.keeper import Linked

MIN_FILE = 1024 * 1024
MIN_TOTAL = 32 * 1024 * 1024
_MAX_FILES = 128  # open files are a scarce resource of the rank
_SLOWEST_COPY = 200_000_000  # bytes a second at which a keeper can surely copy a file before its lease is broken


@dataclass(frozen=True)
class Candidate:
    """A file to link: where the script has it, and its name in the snapshot."""

    path: str
    name: str
    size: int


def will_be_deleted(directory: str) -> bool:
    """Whether `directory` lies in a `tempfile.TemporaryDirectory` of this process that still awaits its clean-up."""
    # There is no public list of them. Where the private one is missing the answer is False: snapshots are then copied.
    registry = getattr(weakref.finalize, "_registry", {})
    real = os.path.realpath(directory)
    for finalizer in list(registry):
        found = finalizer.peek()
        if found is None or not isinstance(found[0], tempfile.TemporaryDirectory) or not found[3].get("delete", True):
            continue
        root = os.path.realpath(os.fsdecode(found[0].name))
        if real == root or real.startswith(os.path.join(root, "")):
            return True
    return False


class Links:
    """What was linked into a snapshot: `sizes` in bytes by name. Call `watch` once the snapshot has its final name."""

    def __init__(
        self, final: str, process: subprocess.Popen[bytes] | None = None, files: Sequence[Linked] = ()
    ) -> None:
        self.sizes = {file.name: file.size for file in files}
        self._final = final
        self._process = process
        self._files = files

    def watch(self, on_loss: Callable[[BaseException], None]) -> None:
        """Reap the keeper when it ends, in a thread of its own, and do its work should it have been killed.

        `on_loss(error)` is called from that thread when the snapshot had to be removed.
        """
        if self._process is not None:
            thread = threading.Thread(target=self._wait, args=(on_loss,), name="raytrain_debug keeper", daemon=True)
            pydevd_signs.hide(thread)
            thread.start()

    def _wait(self, on_loss: Callable[[BaseException], None]) -> None:
        assert self._process is not None
        if self._process.wait() == 0:
            return
        try:
            keeper.settle(self._final, self._files)
        except (OSError, keeper.Changed) as error:
            on_loss(error)


def link(candidates: Sequence[Candidate], building: str, final: str, errors: str) -> Links:
    """Link the files that can be linked into the snapshot directory `building`, soon to be renamed `final`.

    The others are the caller's to copy. The subdirectories of `building` must exist. Raises OSError.
    """
    limit = keeper.lease_break_seconds() * _SLOWEST_COPY
    wanted = [each for each in candidates if MIN_FILE <= each.size <= limit][:_MAX_FILES]
    if sum(each.size for each in wanted) < MIN_TOTAL or not hasattr(fcntl, "F_SETLEASE") or not sys.executable:
        return Links(final)
    opened: dict[int, Candidate] = {}
    directory = os.open(building, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        device = os.fstat(directory).st_dev
        for each in wanted:
            descriptor = _open(each.path, device)
            if descriptor is not None:
                opened[descriptor] = each
        return _guarded_links(opened, directory, final, errors) if opened else Links(final)
    finally:
        for descriptor in (directory, *opened):
            os.close(descriptor)


def _guarded_links(opened: dict[int, Candidate], directory: int, final: str, errors: str) -> Links:
    ours, its = socket.socketpair()
    linked: dict[int, Linked] = {}
    with ours:
        with its:
            process = _start_keeper([directory, *opened], its.fileno())
        for descriptor, each in opened.items():
            file = _lease_and_link(descriptor, each.name, directory, process.pid)
            if file is not None:
                linked[descriptor] = file
        order = {
            "snapshot": final,
            "directory": directory,
            "errors": errors,
            "owner": os.getpid(),
            "files": [[descriptor, file.name, file.size, file.mtime_ns] for descriptor, file in linked.items()],
        }
        try:
            ours.sendall(json.dumps(order).encode(), socket.MSG_NOSIGNAL)
        except OSError:
            pass  # the keeper was killed: `Links.watch` deals with that
    return Links(final, process, list(linked.values()))


def _open(path: str, device: int) -> int | None:
    """A descriptor of a file that may be linked: ours, regular, in one place only, on the snapshot's file system."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    status = os.fstat(descriptor)
    if (
        stat.S_ISREG(status.st_mode)
        and status.st_uid == os.geteuid()
        and status.st_nlink == 1
        and status.st_dev == device
    ):
        return descriptor
    os.close(descriptor)
    return None


def _start_keeper(descriptors: list[int], orders: int) -> subprocess.Popen[bytes]:
    """A keeper with these descriptors under the same numbers; SIGIO is blocked in it from its first instant."""
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGIO})
    try:
        with pydevd_signs.unseen_children():
            return subprocess.Popen(
                [sys.executable, "-I", "-S", keeper.__file__],
                stdin=orders,
                stdout=subprocess.DEVNULL,  # a reader of the rank's output must not wait for the keeper
                stderr=subprocess.DEVNULL,
                pass_fds=descriptors,
                start_new_session=True,  # Ctrl-C in the terminal is for the job
                cwd="/",
            )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def _lease_and_link(descriptor: int, name: str, directory: int, keeper_pid: int) -> Linked | None:
    try:
        # The owner first: the signal that tells of a waiting writer would end this process.
        fcntl.fcntl(descriptor, fcntl.F_SETOWN, keeper_pid)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    except OSError:
        return None  # somebody has it open for writing, or the file system knows no leases
    try:
        os.link(f"/proc/self/fd/{descriptor}", name, dst_dir_fd=directory, follow_symlinks=True)
        status = os.fstat(descriptor)
        return Linked(name, status.st_size, status.st_mtime_ns)
    except OSError:
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        return None
