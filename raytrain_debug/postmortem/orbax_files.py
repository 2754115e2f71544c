"""Reads checkpoints of Orbax, JAX's library for them, from their `_METADATA`, one array at a time.

tensorstore, which Orbax writes with, does the reading; JAX and Orbax are not needed. Without it the arrays are named,
with their shapes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from raytrain_debug.errors import CheckpointError
from raytrain_debug.postmortem.arrays import to_tensor
from raytrain_debug.postmortem.contents import Contents, is_plain

_MAX_TEXT = 64 << 20  # bytes of JSON that are read
_MAX_VALUES = 1000  # scalars that are read; each is an array of its own
_MAX_SCALARS = 20


def accepts(path: Path, head: bytes) -> bool:
    """Whether this is the description of such a checkpoint, by its name and what it begins with."""
    return path.name == "_METADATA" and b'"tree_metadata"' in head


@contextmanager
def opened(path: Path, unsafe: bool = False) -> Iterator[Contents]:
    """The contents of the checkpoint that `path` describes; `unsafe` makes no difference. Raises CheckpointError."""
    try:
        if path.stat().st_size > _MAX_TEXT:
            raise CheckpointError("describes more arrays than are looked at")
        tree = _Tree.of(json.loads(path.read_bytes()), path.parent)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"is damaged: {type(error).__name__}: {error}") from None
    yield tree.contents()


@dataclass(frozen=True)
class _Tree:
    """The arrays (name to shape) and other values of a checkpoint, and how tensorstore finds them in `folder`."""

    folder: Path
    arrays: dict[str, tuple[int, ...] | None]
    scalars: tuple[str, ...]
    others: int
    zarr: str
    ocdbt: bool

    @classmethod
    def of(cls, metadata: dict[str, Any], folder: Path) -> _Tree:
        arrays: dict[str, tuple[int, ...] | None] = {}
        scalars, others = [], 0
        for entry in metadata["tree_metadata"].values():
            name = ".".join(str(part["key"]) for part in entry["key_metadata"])
            value = entry["value_metadata"]
            if value.get("skip_deserialize"):
                others += 1
            elif value["value_type"] == "scalar":
                scalars.append(name)
            elif value["value_type"] == "string":
                others += 1
            else:
                shape = value.get("write_shape")
                arrays[name] = tuple(int(size) for size in shape) if shape is not None else None
        zarr = "zarr3" if metadata.get("use_zarr3") else "zarr"
        return cls(folder, arrays, tuple(scalars), others, zarr, bool(metadata.get("use_ocdbt")))

    def contents(self) -> Contents:
        values = len(self.scalars) + self.others
        if find_spec("tensorstore") is None:
            shapes = {name: f"array of {_shape(shape)}" for name, shape in self.arrays.items()}
            few = dict(list(shapes.items())[:_MAX_SCALARS])
            form = "Orbax, whose arrays are shown once tensorstore is installed"
            return Contents(form, values=values + len(shapes), scalars=few, leaves=shapes)
        leaves: dict[str, Any] = {}
        for name in self.scalars[:_MAX_VALUES]:
            try:
                value = self.load(name).item()
            except (CheckpointError, RuntimeError):
                continue  # it is counted, and not told
            if is_plain(value):
                leaves[name] = value
        few = dict(list(leaves.items())[:_MAX_SCALARS])
        return Contents("Orbax", tuple(self.arrays), self.load, values=values, scalars=few, leaves=leaves)

    def load(self, name: str) -> torch.Tensor:
        """One array, put together by tensorstore from the chunks in which it is stored."""
        import tensorstore

        if name not in self.arrays and name not in self.scalars:
            raise CheckpointError(f"has no tensor {name}")
        if "/" in name or name.startswith("."):
            raise CheckpointError(f"{name} is no name that Orbax gives to an array")
        if self.ocdbt:
            store = {"driver": "ocdbt", "base": f"file://{self.folder.absolute()}/", "path": f"{name}/"}
        else:
            store = {"driver": "file", "path": f"{self.folder.absolute() / name}/"}
        try:
            array = tensorstore.open({"driver": self.zarr, "kvstore": store}, open=True, read=True).result()
            return to_tensor(array.read().result(), name)
        except (ValueError, RuntimeError, OSError, KeyError) as error:
            text = (str(error).strip().splitlines() or [type(error).__name__])[0].partition(" [")[0]
            raise CheckpointError(f"{name} cannot be read: {text[:200]}") from None


def _shape(shape: tuple[int, ...] | None) -> str:
    return "×".join(map(str, shape)) if shape else "unknown shape" if shape is None else "one number"
