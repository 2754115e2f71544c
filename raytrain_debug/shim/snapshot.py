"""Keeps our own copy of each reported checkpoint directory: byte for byte what was reported, whatever comes later.

A snapshot is built under a temporary name and renamed when it is whole. Files are copied, except that big ones in a
directory about to be deleted are hard-linked (`links.py`). The last K snapshots of the rank are kept.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from raytrain_debug.run import layout
from raytrain_debug.run.records import CheckpointRecord, FileEntry
from raytrain_debug.shim import links
from raytrain_debug.shim.guard import Guard
from raytrain_debug.shim.keeper import copy_contents

_PLACE = "keeping a checkpoint"
_BUILDING = re.compile(r"\.\d+-\d+\.tmp")
_MAX_SKIPPED = 100
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ESTALE)


class Snapshots:
    """The snapshots of one rank, at most `keep` of them; one thread at a time."""

    def __init__(self, paths: layout.RankPaths, keep: int, guard: Guard) -> None:
        self._paths = paths
        self._keep = keep
        self._guard = guard

    def take(self, checkpoint: Any, index: int) -> CheckpointRecord:
        """The record of a reported ray.train.Checkpoint, with a snapshot where possible; never raises an Exception."""
        source = ""
        try:
            kind = getattr(checkpoint.filesystem, "type_name", "local")
            if kind != "local":
                return CheckpointRecord(f"{kind}:{checkpoint.path}", None, kept="remote")
            source = os.path.abspath(checkpoint.path)
            tree = _scan(source, avoid=self._run_root())
            if self._keep <= 0:
                return CheckpointRecord(source, None, tree.files(), "off")
            return self._build(source, tree, index)
        except Exception as error:
            self._guard.note(_PLACE, error)
            reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
            return CheckpointRecord(source, None, kept=f"failed: {reason or type(error).__name__}")

    def prune(self) -> None:
        """Remove all but the newest `keep` snapshots."""
        for index in sorted(self._indices())[: -self._keep or None]:
            shutil.rmtree(self._paths.checkpoints / str(index), ignore_errors=True)

    def tidy(self, next_index: int) -> None:
        """Remove what killed attempts left: half-built snapshots, and ones without a report record."""
        for name in self._names():
            if _BUILDING.fullmatch(name) or (name.isdecimal() and int(name) >= next_index):
                shutil.rmtree(self._paths.checkpoints / name, ignore_errors=True)

    def _build(self, source: str, tree: _Tree, index: int) -> CheckpointRecord:
        if self._paths.directory.is_dir():  # not when the run has been deleted meanwhile
            layout.make_private(self._paths.checkpoints)
        final = str(self._paths.checkpoints.absolute() / str(index))
        building = str(self._paths.checkpoints.absolute() / f".{index}-{os.getpid()}.tmp")
        os.mkdir(building)
        linked = links.Links(final)
        try:
            os.chmod(building, 0o700)
            for name in tree.directories:
                os.mkdir(os.path.join(building, name))
                os.chmod(os.path.join(building, name), 0o700)
            if links.will_be_deleted(source):
                linked = self._link(tree, building, final)
            sizes = _fill(building, tree, linked.sizes)
            os.rename(building, final)
        except BaseException:
            shutil.rmtree(building, ignore_errors=True)
            raise
        finally:
            linked.watch(lambda error: self._guard.note(_PLACE, error))
        files = tuple(FileEntry(name, size) for name, size in sorted(sizes.items()))
        kept = "hard links" if linked.sizes else "copy"
        return CheckpointRecord(source, f"checkpoints/{index}", files, kept, tuple(tree.skipped[:_MAX_SKIPPED]))

    def _link(self, tree: _Tree, building: str, final: str) -> links.Links:
        candidates = [
            links.Candidate(path, name, size)
            for name, (path, size) in tree.contents.items()
            if path.startswith(os.path.join(tree.root, ""))  # not what a symbolic link names elsewhere
        ]
        try:
            return links.link(candidates, building, final, str(self._paths.directory.parent.parent / "errors.log"))
        except OSError as error:
            # Too many open files, no memory for a process: copying needs neither.
            self._guard.note("linking a checkpoint (it is copied)", error)
            return links.Links(final)

    def _run_root(self) -> str:
        """`.raytrain_debug`, which may lie in a reported directory and must not be copied into itself."""
        return os.path.realpath(self._paths.directory.parent.parent.parent.parent)

    def _names(self) -> list[str]:
        try:
            return os.listdir(self._paths.checkpoints)
        except OSError:
            return []

    def _indices(self) -> Iterator[int]:
        return (int(name) for name in self._names() if name.isdecimal())


@dataclass
class _Tree:
    """What a reported directory has: files (name to path and size), symbolic links to recreate (name to target)."""

    root: str
    contents: dict[str, tuple[str, int]] = field(default_factory=dict)
    symlinks: dict[str, str] = field(default_factory=dict)
    directories: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)

    def files(self) -> tuple[FileEntry, ...]:
        return tuple(FileEntry(name, size) for name, (_, size) in sorted(self.contents.items()))

    def skip(self, name: str, reason: str) -> None:
        self.skipped.append(f"{name}: {reason}")


def _scan(source: str, avoid: str) -> _Tree:
    """List a directory, or a single file, without reading file contents; raises OSError when `source` is not there."""
    root = os.path.realpath(source)
    tree = _Tree(root)
    status = os.stat(source)
    if stat.S_ISREG(status.st_mode):
        tree.contents[os.path.basename(source)] = (source, status.st_size)
        return tree
    os.listdir(source)  # the directory itself must be readable; of what is inside, what cannot be is skipped
    _scan_into(tree, root, "", (root,), avoid)
    return tree


def _scan_into(tree: _Tree, directory: str, prefix: str, ancestors: tuple[str, ...], avoid: str) -> None:
    try:
        with os.scandir(directory) as found:
            entries = sorted(found, key=lambda entry: entry.name)
    except OSError as error:
        tree.skip(prefix.rstrip("/"), _reason(error))
        return
    for entry in entries:
        name = prefix + entry.name
        try:
            real = os.path.realpath(entry.path)
            if entry.is_symlink() and (not os.path.exists(real) or real.startswith(os.path.join(tree.root, ""))):
                inside = os.path.exists(real)
                tree.symlinks[name] = os.path.relpath(real, directory) if inside else os.readlink(entry.path)
                continue
            status = os.stat(entry.path)
            if stat.S_ISREG(status.st_mode):
                tree.contents[name] = (real, status.st_size)
            elif not stat.S_ISDIR(status.st_mode):
                tree.skip(name, "not a regular file")
            elif real == avoid:
                tree.skip(name, "the run directory")
            elif real in ancestors:
                tree.skip(name, "a loop of symbolic links")
            else:
                tree.directories.append(name)
                _scan_into(tree, entry.path, name + "/", (*ancestors, real), avoid)
        except OSError as error:
            tree.skip(name, _reason(error))


def _fill(building: str, tree: _Tree, linked: dict[str, int]) -> dict[str, int]:
    """Copy what is not `linked` into `building`; the sizes of all files by name. Raises OSError when it cannot."""
    sizes = dict(linked)
    missing = sum(size for name, (_, size) in tree.contents.items() if name not in linked)
    _require_space(building, missing)
    for name, (path, _) in tree.contents.items():
        if name in linked:
            continue
        try:
            source = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            tree.skip(name, _reason(error))
            continue
        try:
            sizes[name] = _copy(source, os.path.join(building, name))
        finally:
            os.close(source)
    for name, target in tree.symlinks.items():
        os.symlink(target, os.path.join(building, name))
    return sizes


def _copy(source: int, path: str) -> int:
    target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(target, 0o600)
        copy_contents(source, target)
        return os.fstat(target).st_size
    finally:
        os.close(target)


def _require_space(directory: str, size: int) -> None:
    """Raise OSError unless the disk has room for our copy and for another that the script may want to write."""
    status = os.statvfs(directory)
    if status.f_bavail * status.f_frsize < 2 * size:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), directory)


def _reason(error: OSError) -> str:
    return "vanished" if error.errno in _GONE else error.strerror or type(error).__name__
