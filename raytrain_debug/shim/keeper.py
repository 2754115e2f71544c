"""Keeps hard-linked snapshot files equal to what was reported while the script can still reach them.

Run as a program of its own (`python -I -S keeper.py`, standard library only) by `links.py`, which explains why. It
holds a read lease on each linked file. The kernel makes whoever opens such a file for writing, or truncates it, wait
until the lease is given up; the keeper first puts a copy in the snapshot's place, then gives it up. A file that the
script has deleted is ours alone and needs no keeping. What the script still has after `GRACE` seconds, or when its
process has ended, is copied too, so a keeper does not stay.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import signal
import stat
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

GRACE = 2.0
_POLL = 0.05
_BLOCK = 4 * 1024 * 1024
_NO_COPY_FILE_RANGE = (errno.EXDEV, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM, errno.EBADF)


class Changed(Exception):
    """A file of a snapshot is no longer what was reported."""


@dataclass(frozen=True)
class Linked:
    """A snapshot file that shares its inode with the script: its name in the snapshot, and its state when reported."""

    name: str
    size: int
    mtime_ns: int

    def unchanged(self, status: os.stat_result) -> bool:
        return (status.st_size, status.st_mtime_ns) == (self.size, self.mtime_ns)


def lease_break_seconds() -> int:
    """How long the kernel lets a lease be defended."""
    try:
        with open("/proc/sys/fs/lease-break-time", "rb") as file:
            return int(file.read())
    except (OSError, ValueError):
        return 45


def copy_contents(source: int, target: int) -> None:
    """Copy the open file `source`, from its start to its end, into the empty open file `target`; raises OSError.

    The kernel does the copying where it can, and shares the blocks on file systems that are able to (btrfs, XFS).
    """
    offset = 0
    try:
        while count := os.copy_file_range(source, target, 1 << 30, offset, offset):
            offset += count
    except AttributeError:
        pass
    except OSError as error:
        if error.errno not in _NO_COPY_FILE_RANGE:
            raise
    # The rest: all where the kernel cannot copy, nothing (one empty read) where it has.
    buffer = memoryview(bytearray(_BLOCK))
    os.lseek(target, offset, os.SEEK_SET)
    while count := os.preadv(source, [buffer], offset):
        offset += count
        written = 0
        while written < count:
            written += os.write(target, buffer[written:count])


def replace_by_copy(source: int, directory: int, name: str) -> None:
    """Put a copy of the open file `source`, mode 0600, in the place of `name` under `directory`; raises OSError."""
    temporary = os.path.join(os.path.dirname(name), f".keep-{os.getpid()}.tmp")
    target = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600, dir_fd=directory)
    try:
        os.fchmod(target, 0o600)
        copy_contents(source, target)
        os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException:
        os.unlink(temporary, dir_fd=directory)
        raise
    finally:
        os.close(target)


def settle(snapshot: str, files: Sequence[Linked]) -> None:
    """Make the files of a snapshot ours alone, without leases, for when a keeper was killed.

    Raises Changed, with the snapshot removed, when one of them has been rewritten before we came.
    """
    try:
        directory = os.open(snapshot, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return  # removed by retention
    try:
        for file in files:
            source = os.open(file.name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory)
            try:
                if os.fstat(source).st_nlink > 1:
                    replace_by_copy(source, directory, file.name)
                if not file.unchanged(os.fstat(source)):
                    raise Changed(file.name)
            finally:
                os.close(source)
    except (OSError, Changed):
        shutil.rmtree(snapshot, ignore_errors=True)
        raise
    finally:
        os.close(directory)


class Keeper:
    """The leases of one snapshot: `files` by the descriptor that holds each lease."""

    def __init__(self, snapshot: str, directory: int, files: dict[int, Linked], owner: int) -> None:
        self.snapshot = snapshot
        self.directory = directory
        self.files = files
        self.owner = owner
        self.limit = lease_break_seconds() - 1

    def run(self) -> None:
        """Return when every file is ours alone; raises Changed or OSError, the snapshot removed, if that failed."""
        deadline = time.monotonic() + GRACE
        checked = time.monotonic()
        try:
            while self.files:
                expired = time.monotonic() > deadline or os.getppid() != self.owner
                for descriptor, file in list(self.files.items()):
                    if self._is_ours_alone(descriptor, file) or (
                        (expired or self._is_wanted(descriptor)) and self._copy(descriptor, file, checked)
                    ):
                        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
                        os.close(descriptor)
                        del self.files[descriptor]
                checked = time.monotonic()
                if self.files:
                    signal.sigtimedwait({signal.SIGIO}, _POLL)
        except (OSError, Changed):
            self._discard()
            raise

    def _is_wanted(self, descriptor: int) -> bool:
        """Whether somebody waits to write to the file; the kernel then reports the lease as on its way out."""
        return fcntl.fcntl(descriptor, fcntl.F_GETLEASE) == fcntl.F_UNLCK

    def _is_ours_alone(self, descriptor: int, file: Linked) -> bool:
        """Whether the script has deleted the file, or the snapshot has been removed and there is nothing to keep."""
        status = os.fstat(descriptor)
        try:
            kept = os.stat(file.name, dir_fd=self.directory, follow_symlinks=False)
        except FileNotFoundError:
            return True
        if status.st_nlink > 1 or self._is_wanted(descriptor):
            return False
        if os.path.samestat(status, kept) and stat.S_IMODE(kept.st_mode) != 0o600:
            os.fchmod(descriptor, 0o600)
        return True

    def _copy(self, descriptor: int, file: Linked, checked: float) -> bool:
        replace_by_copy(descriptor, self.directory, file.name)
        # Past its limit the kernel lets the writer in, whatever we do: then only the file's own state can tell.
        if time.monotonic() - checked > self.limit and not file.unchanged(os.fstat(descriptor)):
            raise Changed(file.name)
        return True

    def _discard(self) -> None:
        """Remove a snapshot that cannot be kept equal to what was reported, before anybody may write to its files."""
        try:
            if os.path.samestat(os.stat(self.snapshot), os.fstat(self.directory)):
                shutil.rmtree(self.snapshot)
        except OSError:
            pass


def main() -> None:
    """Read the order (one JSON object) from stdin, keep, exit 0; on failure exit 1 with the reason in errors.log."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGIO})
    text = sys.stdin.buffer.read()
    if not text:
        return  # the rank died before it had linked anything
    order: dict[str, Any] = json.loads(text)
    files = {descriptor: Linked(name, size, mtime_ns) for descriptor, name, size, mtime_ns in order["files"]}
    try:
        Keeper(order["snapshot"], order["directory"], files, order["owner"]).run()
    except (OSError, Changed) as error:
        message = f"keeping {order['snapshot']}: removed, {type(error).__name__}: {error}\n"
        log = os.open(order["errors"], os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.write(log, message.encode("utf-8", "surrogateescape"))
        sys.exit(1)


if __name__ == "__main__":
    main()
