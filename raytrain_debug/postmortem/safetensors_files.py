"""Reads safetensors files, one tensor at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from raytrain_debug.errors import CheckpointError
from raytrain_debug.postmortem.contents import Contents
from raytrain_debug.postmortem.mapped import MappedFile

_MAX_HEADER = 100_000_000  # the format's own bound


def accepts(path: Path, head: bytes) -> bool:
    """Whether this is a safetensors file, by its name or its first bytes: the header's length, then JSON."""
    return path.suffix == ".safetensors" or (
        head[8:9] == b"{" and 2 <= int.from_bytes(head[:8], "little") <= _MAX_HEADER
    )


@contextmanager
def opened(path: Path, unsafe: bool = False) -> Iterator[Contents]:
    """The contents of `path`; `unsafe` makes no difference, the format holds no code. Raises CheckpointError."""
    try:
        file: Any = safe_open(path, framework="pt", device="cpu")
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"is no whole safetensors file: {error}") from None
    with file:
        metadata = file.metadata() or {}

        def load(name: str) -> torch.Tensor:
            try:
                tensor: torch.Tensor = file.get_tensor(name)
            except (SafetensorError, RuntimeError, TypeError, ValueError, KeyError, AttributeError) as error:
                raise CheckpointError(f"tensor {name} cannot be read: {error}") from None
            return tensor

        names = tuple(file.offset_keys())
        yield Contents(
            "safetensors", names, load, MappedFile(path).release, len(metadata), dict(metadata), dict(metadata)
        )
