"""Reads the index of a Hugging Face model in several files, and checks that those hold what it names."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

from raytrain_debug.errors import CheckpointError
from raytrain_debug.postmortem import safetensors_files, torch_files
from raytrain_debug.postmortem.contents import Contents

_SHOWN = 5
_MAX_SIZE = 64 << 20


def accepts(path: Path, head: bytes) -> bool:
    """Whether this is such an index, by its name and first byte."""
    return path.name.endswith(".index.json") and head.lstrip()[:1] == b"{"


@contextmanager
def opened(path: Path, unsafe: bool = False) -> Iterator[Contents]:
    """What the index says; the tensors are told with the files that hold them. Raises CheckpointError."""
    try:
        if path.stat().st_size > _MAX_SIZE:
            raise CheckpointError("is larger than any index")
        index = json.loads(path.read_bytes())
        places: dict[str, list[str]] = {}
        for tensor, file in index["weight_map"].items():
            places.setdefault(_inside(file), []).append(tensor)
        scalars: dict[str, Any] = {"tensors": len(index["weight_map"]), "files": len(places)}
        scalars |= {key: each for key, each in index.get("metadata", {}).items() if isinstance(each, (int, float, str))}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"is no index of a model: {type(error).__name__}: {error}") from None
    faults = tuple(_faults(path.parent, places))
    yield Contents("Hugging Face index", values=len(scalars), scalars=scalars, leaves=scalars, faults=faults)


def _faults(folder: Path, places: Mapping[str, list[str]]) -> Iterator[str]:
    for file, tensors in sorted(places.items()):
        path = folder / file
        if not path.is_file():
            yield f"names {file}, which is not here: {len(tensors)} tensors are missing"
            continue
        reader = safetensors_files if path.suffix == ".safetensors" else torch_files
        try:
            with reader.opened(path) as contents:
                missing = sorted(set(tensors) - set(contents.names))
        except CheckpointError:
            continue  # told with the file itself
        if missing:
            more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
            yield f"{file} does not hold {', '.join(missing[:_SHOWN])}{more}"


def _inside(file: Any) -> str:
    path = PurePosixPath(file)
    if path.is_absolute() or ".." in path.parts:
        raise ValueError(f"{file} lies outside of the checkpoint")
    return str(path)
