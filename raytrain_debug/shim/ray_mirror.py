"""Brings what a rank on another Ray node records into the launcher's run, where the two nodes share no file system.

All small files of a rank's directory, as they grow; snapshots of checkpoints stay on the node where they were made, and
the rank's own directory there remains (docs/ray-workers.md says where). A rank that is started on such a node takes
over what it has recorded in earlier attempts, maybe on another: reports are counted on, cores put aside, as anywhere.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from raytrain_debug.run import layout

_PATTERNS = (
    "process.json",
    "reports.jsonl",
    "exceptions.jsonl",
    "core*.json",
    "fault-*.txt",
    "core/tensors.safetensors",
    "core/sources/*.py",
)
_TAKEN_OVER = ("reports.jsonl", "exceptions.jsonl", "core*.json")
_MOST = 256 << 20  # bytes of a file
_AT_ONCE = 8 << 20  # bytes of a growing file in one go

Stamps = dict[str, tuple[int, int]]
"""What has been brought of each file: bytes, and the time of its last change (0 for one that only grows)."""


@dataclass(frozen=True)
class Piece:
    """A part of a file from `offset` on: all of it from 0, or what a growing one has gained."""

    name: str
    offset: int
    data: bytes
    stamp: tuple[int, int]


def run_on_this_node(run: str) -> Path:
    """Where ranks of this node record: the launcher's run where it is to be seen, and else one of the node's own.

    Raises UnsafeDirectory, OSError.
    """
    if os.path.exists(os.path.join(run, "run.json")):
        return Path(run)
    return layout.create_run(layout.runtime_directory() / layout.ROOT_NAME, Path(run).name).directory


def earlier(directory: str, known: Stamps) -> list[Piece]:
    """What a rank that is started elsewhere has to take over, beyond `known`, from its directory here."""
    return news(directory, known, _TAKEN_OVER)


def counted(known: Stamps) -> Stamps:
    """Of what has been taken over, the files that only grow: the rest of them is news, and nothing before."""
    return {name: stamp for name, stamp in known.items() if _grows(name)}


def news(directory: str, known: Stamps, patterns: Iterable[str] = _PATTERNS) -> list[Piece]:
    """What the rank's directory holds beyond `known`; nothing for files that cannot be read."""
    found = []
    for pattern in patterns:
        for path in sorted(Path(directory).glob(pattern)):
            try:
                piece = _piece(path, path.relative_to(directory).as_posix(), known)
            except OSError:
                continue
            if piece is not None:
                found.append(piece)
    return found


def bring(pieces: Iterable[Piece], directory: Path, known: Stamps) -> None:
    """Put pieces into `directory`, and note them in `known`. Raises OSError."""
    for piece in pieces:
        path = directory / piece.name
        layout.make_private(path.parent)
        part = path if piece.offset else path.with_name(f".{path.name}.part")
        flags = os.O_APPEND if piece.offset else os.O_TRUNC
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | flags, 0o600)
        with open(descriptor, "wb") as file:
            file.write(piece.data)
        if part != path:
            os.replace(part, path)
        known[piece.name] = piece.stamp


def _grows(name: str) -> bool:
    return name.endswith(".jsonl")


def _piece(path: Path, name: str, known: Stamps) -> Piece | None:
    status = path.stat()
    grows = _grows(name)
    size, time = known.get(name, (0, -1))
    if (status.st_size, 0 if grows else status.st_mtime_ns) == (size, time) or status.st_size > _MOST:
        return None
    offset = size if grows and status.st_size >= size else 0
    with open(path, "rb") as file:
        file.seek(offset)
        data = file.read(_AT_ONCE if grows else _MOST)
    return Piece(name, offset, data, (offset + len(data), 0 if grows else status.st_mtime_ns))
