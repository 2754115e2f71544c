"""A kept checkpoint, together with the parts of it that other ranks reported.

With torch.distributed.checkpoint every rank may report a directory that has its own parts only, and one of them the
`.metadata` that describes all. Ray merges what the ranks bring with a report; so do we, when we read.
"""

from __future__ import annotations

import filecmp
import mmap
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from raytrain_debug.run.layout import RankPaths
from raytrain_debug.run.reader import newest_first
from raytrain_debug.run.records import ReportRecord

DESCRIPTION, PART = ".metadata", ".distcp"


@dataclass(frozen=True)
class Snapshot:
    """A rank's snapshot, and those of other ranks that hold other parts of the same checkpoint."""

    directory: Path
    others: tuple[Path, ...] = ()

    def files(self) -> dict[str, tuple[Path, int]]:
        """Where each regular file is, and its size in bytes, by its path with `/`; the rank's own go first."""
        found: dict[str, tuple[Path, int]] = {}
        for directory in (self.directory, *self.others):
            for path, size in _files(directory):
                found.setdefault(path.relative_to(directory).as_posix(), (path, size))
        return found

    def folders(self, name: str) -> tuple[Path, ...]:
        """The folders in which files that belong to the file `name` may lie."""
        return tuple((directory / name).parent for directory in (self.directory, *self.others))


def whole(directory: Path) -> Snapshot:
    """The checkpoint in `directory`, which may be no snapshot of ours at all, with its parts of other ranks."""
    own = _distributed(directory)
    if not own:
        return Snapshot(directory)
    held = {directory: own} | {other: _distributed(other) for other in _of_the_same_report(directory)}
    together = [directory]
    for each in together:  # which grows on the way
        together += [other for other in held if other not in together and _belong(each, other, held)]
    return Snapshot(directory, tuple(together[1:]))


def undescribed(names: Iterable[str]) -> Iterator[str]:
    """Those of a checkpoint's files that are parts and have no description beside them."""
    every = set(names)
    for name in sorted(every):
        if name.endswith(PART) and str(PurePosixPath(name).with_name(DESCRIPTION)) not in every:
            yield name


def _distributed(directory: Path) -> dict[str, set[str]]:
    """Names of the parts and descriptions of torch.distributed.checkpoint, by the folder that they are in."""
    found: dict[str, set[str]] = {}
    for path, _ in _files(directory):
        if path.name == DESCRIPTION or path.suffix == PART:
            found.setdefault(path.parent.relative_to(directory).as_posix(), set()).add(path.name)
    return found


def _belong(one: Path, other: Path, held: dict[Path, dict[str, set[str]]]) -> bool:
    common = held[one].keys() & held[other].keys()
    return any(
        _describes(first / folder, held[first][folder], second / folder, held[second][folder])
        for folder in common
        for first, second in ((one, other), (other, one))
    )


def _describes(folder: Path, names: set[str], other: Path, its: set[str]) -> bool:
    """Whether `other` has parts that `folder` lacks and the description in `folder` names.

    A folder with another description is a checkpoint of its own: the same name is another part there.
    """
    lacking = its - names - {DESCRIPTION}
    if DESCRIPTION not in names or not lacking:
        return False
    description = folder / DESCRIPTION
    try:
        if DESCRIPTION in its and not filecmp.cmp(description, other / DESCRIPTION, shallow=False):
            return False
        with open(description, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
            return any(text.find(os.fsencode(name)) >= 0 for name in lacking)
    except (OSError, ValueError):  # gone, or empty
        return False


def _of_the_same_report(snapshot: Path) -> Iterator[Path]:
    """What other ranks of the run keep of the report that `snapshot` came with; nothing where it is in no run."""
    if len(snapshot.parts) < 4:
        return
    own, ranks = RankPaths(snapshot.parents[1]), snapshot.parents[2]
    report = _report(own, snapshot.name)
    if own.checkpoints != snapshot.parent or ranks.name != "ranks" or report is None:
        return
    try:
        numbers = sorted(int(each.name) for each in ranks.iterdir() if each.name.isdecimal())
    except OSError:
        return
    for number in numbers:
        rank = RankPaths(ranks / str(number))
        other = rank.checkpoints / snapshot.name
        if rank != own and other.is_dir():
            its = _report(rank, snapshot.name)
            if its is not None and (its.index, its.attempt) == (report.index, report.attempt):
                yield other


def _report(rank: RankPaths, name: str) -> ReportRecord | None:
    """The newest report with the snapshot of that name."""
    for report in newest_first(rank, only_checkpoints=True):
        if report.checkpoint is not None and PurePosixPath(report.checkpoint.snapshot or "").name == name:
            return report
    return None


def _files(directory: Path) -> Iterator[tuple[Path, int]]:
    for folder, _, names in os.walk(directory):
        for name in names:
            path = Path(folder, name)
            try:
                status = path.stat()
            except OSError:
                continue
            if stat.S_ISREG(status.st_mode):
                yield path, status.st_size
