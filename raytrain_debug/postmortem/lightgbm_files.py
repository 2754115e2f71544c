"""Summaries of LightGBM models, from the text that LightGBM itself saves; the library is not needed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from raytrain_debug.errors import CheckpointError
from raytrain_debug.postmortem.contents import Contents

_HEADER = ("version", "num_class", "max_feature_idx", "objective")


def accepts(path: Path, head: bytes) -> bool:
    """Whether this is a LightGBM model, by its first lines."""
    first, _, second = head[:100].partition(b"\n")
    return first.strip() == b"tree" and second.startswith(b"version=")


@contextmanager
def opened(path: Path, unsafe: bool = False) -> Iterator[Contents]:
    """What the model tells of itself, as scalars; it has no tensors. Raises CheckpointError."""
    header: dict[str, str] = {}
    trees, whole = 0, False
    with open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            if line.startswith("Tree="):
                trees += 1
            elif line.startswith("end of trees"):
                whole = True
                break
            elif trees == 0:
                key, _, value = line.strip().partition("=")
                if key in _HEADER:
                    header[key] = value
    if not whole:
        raise CheckpointError(f"is a LightGBM model that is cut short, after {trees} trees")
    try:
        scalars: dict[str, Any] = {
            "objective": header.get("objective", "unknown"),
            "features": int(header["max_feature_idx"]) + 1,
            "trees": trees,
            "classes": int(header["num_class"]),
            "version": header["version"],
        }
    except (KeyError, ValueError):
        raise CheckpointError("is no LightGBM model that we know: its header is another") from None
    yield Contents("LightGBM model", values=len(scalars), scalars=scalars, leaves=scalars)
