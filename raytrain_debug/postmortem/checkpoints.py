"""Summaries of checkpoint directories: each file by name, size and format, each tensor by its statistics.

A reader is a module with `accepts(path, head) -> bool` and `opened(path, unsafe) -> context manager of Contents`;
the first that accepts a file reads it, and what none accepts is told by name and size.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raytrain_debug.errors import CheckpointError, UnsafeCheckpoint
from raytrain_debug.postmortem.kinds import kind_of
from raytrain_debug.postmortem.snapshots import DESCRIPTION, Snapshot, undescribed, whole
from raytrain_debug.run.records import FileEntry

if TYPE_CHECKING:  # torch takes seconds to import, and not every summary opens files
    from raytrain_debug.postmortem.contents import Contents
    from raytrain_debug.postmortem.tensors import TensorStatistics

    _Accepts = Callable[[Path, bytes], bool]
    _Opened = Callable[[Path, bool], AbstractContextManager[Contents]]

_HEAD = 4096
_UNDESCRIBED = "is a part of a checkpoint, and no .metadata that is kept of this report describes it"


@dataclass(frozen=True)
class Fault:
    """Why a file or tensor could not be read, in words; `remedy` what to type.

    `refused` says that safe loading refuses a pickle that may well be whole; `globals` are the names it wanted.
    """

    reason: str
    remedy: str = ""
    globals: tuple[str, ...] = ()
    refused: bool = False


@dataclass(frozen=True)
class TensorSummary:
    """A tensor of a file; `same_as` names the tensor before it that it shares all its memory with (tied weights)."""

    name: str
    statistics: TensorStatistics
    same_as: str | None = None


@dataclass(frozen=True)
class FileSummary:
    """A file of a checkpoint: `path` relative to it, `size` in bytes, `format` what it is, None when nothing tells.

    `values` counts what the file holds besides tensors, `scalars` has some of them.
    """

    path: str
    size: int
    format: str | None = None
    tensors: tuple[TensorSummary, ...] = ()
    values: int = 0
    scalars: Mapping[str, Any] = field(default_factory=dict)
    faults: tuple[Fault, ...] = ()


@contextmanager
def open_file(path: Path, unsafe: bool = False, folders: Sequence[Path] = ()) -> Iterator[Contents | None]:
    """The contents of one checkpoint file, or None when no reader knows its format.

    What a description names is looked for beside it, then in `folders` (see `Snapshot.folders`).
    Raises CheckpointError, and UnsafeCheckpoint when only `unsafe=True`, which runs code from the file, would do.
    """
    head = _head(path)
    opened = next((opened for accepts, opened in _readers(path, folders) if accepts(path, head)), None)
    if opened is None:
        yield None
    else:
        with opened(path, unsafe) as contents:
            yield contents


def _head(path: Path) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(_HEAD)
    except OSError as error:
        raise CheckpointError(f"cannot be read: {error.strerror or error}") from None


def summarise(
    directory: Path | Snapshot,
    expected: Iterable[FileEntry] = (),
    tensors: bool = True,
    unsafe: bool = False,
    known: MutableMapping[Path, FileSummary] | None = None,
) -> tuple[FileSummary, ...]:
    """Every file below `directory`, by name; those of `expected` that are gone or shorter say so.

    Of a checkpoint in parts, the files that other ranks hold are among them. `known` keeps what was found in it, for
    the next rank. `tensors` False opens no file. `unsafe` runs code from pickles that safe loading refuses. Never
    raises for what lies in a file: its `faults` tell.
    """
    recorded = {entry.path: entry.size for entry in expected}
    snapshot = directory if isinstance(directory, Snapshot) else whole(directory)
    found = snapshot.files()
    summaries = (
        _summarise_files(snapshot, found, unsafe, known if known is not None else {})
        if tensors
        else (FileSummary(name, size) for name, (_, size) in found.items())
    )
    files = {summary.path: summary for summary in summaries}
    for path in undescribed(files):
        files[path] = replace(files[path], faults=(*files[path].faults, Fault(_UNDESCRIBED)))
    for path, size in recorded.items():
        if path not in files:
            files[path] = FileSummary(path, size, faults=(Fault("was reported, but is not in the snapshot"),))
        elif files[path].size != size:
            changed = Fault(f"had {size} bytes when it was reported and has {files[path].size} now")
            files[path] = replace(files[path], faults=(changed, *files[path].faults))
    return tuple(files[path] for path in sorted(files))


def _readers(path: Path, folders: Sequence[Path]) -> Iterator[tuple[_Accepts, _Opened]]:
    from raytrain_debug.postmortem import (
        hdf5_files,
        index_files,
        lightgbm_files,
        orbax_files,
        safetensors_files,
        torch_files,
        xgboost_files,
    )

    yield from (
        (each.accepts, each.opened)
        for each in (
            safetensors_files,
            index_files,
            xgboost_files,
            lightgbm_files,
            hdf5_files,
            orbax_files,
            torch_files,
        )
    )
    if path.name == DESCRIPTION:  # the only files for which the half second of its imports is worth it
        from raytrain_debug.postmortem import distributed_files

        yield distributed_files.accepts, partial(distributed_files.opened, folders=folders)


def _summarise_files(
    snapshot: Snapshot, found: Mapping[str, tuple[Path, int]], unsafe: bool, known: MutableMapping[Path, FileSummary]
) -> Iterator[FileSummary]:
    from raytrain_debug.postmortem.tensors import counting_threads

    with counting_threads() as threads, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's remarks on formats in beta are for those who write them
        for name, (path, size) in sorted(found.items()):
            summary = known.get(path) or _summarise_file(path, name, size, unsafe, threads, snapshot.folders(name))
            if snapshot.others and not summary.faults:
                known[path] = summary
            yield summary


def _summarise_file(
    path: Path, name: str, size: int, unsafe: bool, threads: Executor, folders: Sequence[Path]
) -> FileSummary:
    try:
        with open_file(path, unsafe, folders) as contents:
            if contents is None:
                return FileSummary(name, size, kind_of(path, _head(path)))
            found, faults = _summarise_tensors(contents, threads)
            faults = tuple(dict.fromkeys((*map(Fault, contents.faults), *faults)))
            return FileSummary(name, size, contents.format, found, contents.values, contents.scalars, faults)
    except CheckpointError as error:
        refused = isinstance(error, UnsafeCheckpoint)
        wanted = error.globals if isinstance(error, UnsafeCheckpoint) else ()
        return FileSummary(name, size, faults=(Fault(str(error), error.remedy, wanted, refused),))
    except Exception as error:
        # Readers tell what they know to go wrong; whatever else a strange file brings about ends with this file.
        return FileSummary(name, size, faults=(Fault(f"cannot be read: {type(error).__name__}: {error}"),))


def _summarise_tensors(contents: Contents, threads: Executor) -> tuple[tuple[TensorSummary, ...], tuple[Fault, ...]]:
    done: dict[str, TensorSummary] = {}
    faults: list[Fault] = []
    for name in contents.names:
        twin = done.get(contents.twins.get(name, name))
        if twin is not None:
            done[name] = TensorSummary(name, twin.statistics, same_as=twin.name)
            continue
        try:
            done[name] = TensorSummary(name, _statistics(contents, name, threads))
        except CheckpointError as error:
            faults.append(Fault(str(error), error.remedy))
    return tuple(done.values()), tuple(faults)


def _statistics(contents: Contents, name: str, threads: Executor) -> TensorStatistics:
    from raytrain_debug.postmortem.tensors import statistics, statistics_of_parts

    if contents.parts is None:
        return statistics(contents.load(name), contents.release, threads)
    stored = contents.parts(name)
    return statistics_of_parts(stored.shape, stored.dtype, stored.parts, threads)
