"""Checkpoints of several sides (ranks, reports or runs) matched file by file and tensor by tensor.

Every tensor is read once for its digest. Only those whose digests differ are held against each other, a pair at a time.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from raytrain_debug.errors import CheckpointError
from raytrain_debug.postmortem.checkpoints import open_file
from raytrain_debug.postmortem.contents import Contents
from raytrain_debug.postmortem.differences import EXACT, Difference, Tolerance, difference, digest
from raytrain_debug.postmortem.snapshots import DESCRIPTION, PART, Snapshot
from raytrain_debug.postmortem.tensors import TensorStatistics, counting_threads, statistics
from raytrain_debug.run import codec

T = TypeVar("T")

_BLOCK = 1 << 20


@dataclass(frozen=True)
class ValueGroup:
    """Sides that have the same value."""

    sides: tuple[int, ...]
    value: Any


@dataclass(frozen=True)
class ValueComparison:
    """A metric, or a plain value of a checkpoint file: the most common value first, and the sides without it.

    `within` says that the values differ by no more than the tolerance.
    """

    name: str
    groups: tuple[ValueGroup, ...]
    absent: tuple[int, ...] = ()
    file: str = ""
    within: bool = False

    @property
    def agrees(self) -> bool:
        """Whether all sides have the value, and the same."""
        return not self.absent and (len(self.groups) == 1 or self.within)


@dataclass(frozen=True)
class TensorGroup:
    """Sides on which a tensor is the same. `difference` is that from the first group, None where shapes differ.

    `statistics` are given where the tensor differs between sides.
    """

    sides: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: str
    statistics: TensorStatistics | None = None
    difference: Difference | None = None


@dataclass(frozen=True)
class TensorComparison:
    """A tensor on all sides: the largest group of equal ones first (of several the one with the lowest side)."""

    file: str
    name: str
    groups: tuple[TensorGroup, ...]
    absent: tuple[int, ...] = ()

    @property
    def equal(self) -> bool:
        """Whether all sides have it, with the same bits."""
        return not self.absent and len(self.groups) == 1

    @property
    def agrees(self) -> bool:
        """Whether all sides have it, with the same values but for the tolerance."""
        first, *others = self.groups
        return not self.absent and all(
            group.difference is not None and not group.difference.beyond and group.dtype == first.dtype
            for group in others
        )


@dataclass(frozen=True)
class FileComparison:
    """A file that not all sides have, or that no reader opens: groups of sides on which it is the same, byte by byte.

    The largest group comes first. Where a reader opens it, what is in it is compared, and `groups` has all in one.
    """

    path: str
    groups: tuple[tuple[int, ...], ...]
    absent: tuple[int, ...] = ()

    @property
    def agrees(self) -> bool:
        """Whether it is the same everywhere."""
        return not self.absent and len(self.groups) == 1


@dataclass(frozen=True)
class Unreadable:
    """What could not be compared on a side, and why."""

    side: int
    file: str
    reason: str
    remedy: str = ""


@dataclass(frozen=True)
class Matched:
    """All that checkpoints hold, compared."""

    tensors: tuple[TensorComparison, ...] = ()
    values: tuple[ValueComparison, ...] = ()
    files: tuple[FileComparison, ...] = ()
    unreadable: tuple[Unreadable, ...] = ()


def match(snapshots: Mapping[int, Snapshot], unsafe: bool = False, tolerance: Tolerance = EXACT) -> Matched:
    """Compare checkpoints, by side. `unsafe` runs code from pickles that safe loading refuses.

    A file that stands for all sides, as of a checkpoint that they hold parts of, cannot differ and is left out.
    """
    matching = _Matching(snapshots, unsafe, tolerance)
    found = matching.found
    with counting_threads() as threads, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's remarks on formats in beta are for those who write them
        for path in sorted(set().union(*found.values())):
            present = [side for side, paths in found.items() if path in paths]
            # The parts of a torch.distributed.checkpoint are read through its description.
            described = path.endswith(PART) and _beside(path, DESCRIPTION) in found[present[0]]
            one = len(snapshots) > 1 and len({found[side].get(path) for side in snapshots}) == 1
            if not described and not one:
                matching.file(path, present, threads)
    return Matched(tuple(matching.tensors), tuple(matching.values), tuple(matching.files), tuple(matching.unreadable))


def match_values(
    values: Mapping[int, Mapping[str, Any]], tolerance: Tolerance = EXACT, file: str = ""
) -> Iterator[ValueComparison]:
    """Compare plain values by name, on all sides."""
    for name in dict.fromkeys(name for each in values.values() for name in each):
        here = {side: each[name] for side, each in values.items() if name in each}
        groups = tuple(ValueGroup(sides, here[sides[0]]) for sides in _groups(here, _key))
        within = len(groups) > 1 and all(_near(groups[0].value, group.value, tolerance) for group in groups[1:])
        yield ValueComparison(name, groups, tuple(sorted(set(values) - set(here))), file, within)


class _Matching:
    """One comparison under way."""

    def __init__(self, snapshots: Mapping[int, Snapshot], unsafe: bool, tolerance: Tolerance) -> None:
        self.tensors: list[TensorComparison] = []
        self.values: list[ValueComparison] = []
        self.files: list[FileComparison] = []
        self.unreadable: list[Unreadable] = []
        self.found = {
            side: {name: place for name, (place, _) in each.files().items()} for side, each in snapshots.items()
        }
        self._snapshots = snapshots
        self._unsafe = unsafe
        self._tolerance = tolerance

    def file(self, path: str, present: Sequence[int], threads: Executor) -> None:
        """Compare the file `path` of the sides that have it: what is in it, or, where no reader opens it, its bytes."""
        absent = tuple(sorted(set(self._snapshots) - set(present)))
        if len(present) == 1:
            self.files.append(FileComparison(path, (tuple(present),), absent))
            return
        with ExitStack() as stack:
            opened = self._open(path, present, stack)
            if len(opened) < len(present):
                groups = self._equal_files(path, present, threads)
                self.files.append(FileComparison(path, tuple(groups), absent))
                return
            if absent:
                self.files.append(FileComparison(path, (tuple(present),), absent))
            self._contents(path, opened, threads)

    def _open(self, path: str, present: Sequence[int], stack: ExitStack) -> dict[int, Contents]:
        opened = {}
        for side in present:
            try:
                folders = self._snapshots[side].folders(path)
                contents = stack.enter_context(open_file(self.found[side][path], self._unsafe, folders))
            except CheckpointError as error:
                self.unreadable.append(Unreadable(side, path, str(error), error.remedy))
            except Exception as error:
                self.unreadable.append(Unreadable(side, path, f"cannot be read: {type(error).__name__}: {error}"))
            else:
                if contents is not None:
                    opened[side] = contents
        return opened

    def _equal_files(self, path: str, present: Sequence[int], threads: Executor) -> list[tuple[int, ...]]:
        found = dict(zip(present, threads.map(lambda side: self._file_digest(side, path), present), strict=True))
        return _groups(found, lambda each: each)

    def _file_digest(self, side: int, path: str) -> bytes:
        found = hashlib.blake2b(digest_size=16)
        try:
            with open(self.found[side][path], "rb") as file:
                while block := file.read(_BLOCK):
                    found.update(block)
        except OSError as error:
            self.unreadable.append(Unreadable(side, path, f"cannot be read: {error.strerror or error}"))
            return os.fsencode(f"{side}")
        return found.digest()

    def _contents(self, path: str, opened: Mapping[int, Contents], threads: Executor) -> None:
        self.values += match_values({side: each.leaves for side, each in opened.items()}, self._tolerance, path)
        digests = _Digests({side: self.found[side][path] for side in opened}, opened)
        for name in dict.fromkeys(name for contents in opened.values() for name in contents.names):
            here = [side for side, contents in opened.items() if name in digests.names[side]]
            found: dict[int, bytes] = {}
            for side, result in zip(here, threads.map(digests.tried, here, [name] * len(here)), strict=True):
                if isinstance(result, CheckpointError):
                    self.unreadable.append(Unreadable(side, path, f"{name}: {result}", result.remedy))
                else:
                    found[side] = result
            if found:
                absent = tuple(sorted(set(opened) - set(found)))  # where it is, but unreadable, it does not agree
                groups = self._tensor_groups(name, _groups(found, lambda each: each), opened, threads)
                self.tensors.append(TensorComparison(path, name, tuple(groups), absent))

    def _tensor_groups(
        self, name: str, groups: Iterable[tuple[int, ...]], opened: Mapping[int, Contents], threads: Executor
    ) -> Iterator[TensorGroup]:
        """The groups of a tensor, with statistics and differences where there are several.

        Those whose bits differ but not their values (0 and -0) join.
        """
        first, *others = groups
        contents = opened[first[0]]
        reference = contents.load(name)
        apart: list[TensorGroup] = []
        for sides in others:
            its = opened[sides[0]]
            other = its.load(name)
            found = None
            if other.shape == reference.shape:
                with contextlib.suppress(CheckpointError):
                    found = difference(reference, other, self._tolerance, (contents.release, its.release))
            if found is not None and not found.differing and other.dtype == reference.dtype:
                first = tuple(sorted((*first, *sides)))
                continue
            told = statistics(other, its.release, threads)
            apart.append(TensorGroup(sides, tuple(other.shape), told.dtype, told, found))
        told_first = statistics(reference, contents.release, threads) if apart else None
        yield TensorGroup(first, tuple(reference.shape), str(reference.dtype).removeprefix("torch."), told_first)
        yield from apart


class _Digests:
    """Digests of the tensors of one file on all sides; memory that two names or two sides share is read once."""

    def __init__(self, paths: Mapping[int, Path], opened: Mapping[int, Contents]) -> None:
        self.names = {side: frozenset(contents.names) for side, contents in opened.items()}
        self._opened = opened
        self._files = {side: _identity(paths[side], side) for side in opened}
        self._known: dict[tuple[Hashable, str], bytes] = {}

    def tried(self, side: int, name: str) -> bytes | CheckpointError:
        """The digest, or why there is none."""
        contents = self._opened[side]
        key = self._files[side], contents.twins.get(name, name)
        if key not in self._known:
            try:
                self._known[key] = digest(contents.load(name), contents.release)
            except CheckpointError as error:
                return error
            except (RuntimeError, TypeError, ValueError) as error:
                return CheckpointError(f"cannot be compared: {(str(error).splitlines() or [''])[0][:200]}")
        return self._known[key]


def _identity(path: Path, side: int) -> Hashable:
    """Equal for paths that are one file (hard links). A description stands for the files beside it: equal to none."""
    status = path.stat()
    return (status.st_dev, status.st_ino) if path.name != ".metadata" else side


def _groups(values: Mapping[int, T], key: Callable[[T], Hashable]) -> list[tuple[int, ...]]:
    """Sides with equal values, the largest group first, of equally large ones that with the lowest side."""
    groups: dict[Hashable, list[int]] = {}
    for side, value in sorted(values.items()):
        groups.setdefault(key(value), []).append(side)
    return sorted(map(tuple, groups.values()), key=lambda sides: (-len(sides), sides))


def _key(value: Any) -> Hashable:
    """Equal for values that count as equal: 1 and 1.0, NaN and NaN, but not 1 and True."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return ("number", value if value == value else "nan")
    return codec.dumps(value)


def _near(first: Any, second: Any, tolerance: Tolerance) -> bool:
    numbers = [each for each in (first, second) if isinstance(each, (int, float)) and not isinstance(each, bool)]
    if len(numbers) < 2 or tolerance == EXACT:
        return False
    return bool(abs(second - first) <= tolerance.absolute + tolerance.relative * abs(first))


def _beside(path: str, name: str) -> str:
    folder, slash, _ = path.rpartition("/")
    return f"{folder}{slash}{name}"
