"""Reads checkpoints of torch.distributed.checkpoint from their `.metadata`, part by part and without a process group.

Ranks that each report their own parts leave them in several folders; those are given by who knows of them.
`.metadata` is a pickle. It is read with the few classes that such a file consists of and nothing else.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from torch.distributed.checkpoint import DefaultLoadPlanner, FileSystemReader
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, ReadItem

from raytrain_debug.errors import CheckpointError, UnsafeCheckpoint
from raytrain_debug.postmortem.contents import Contents, Parts, is_plain, no_tensors

_CLASSES = {
    "torch.distributed.checkpoint.metadata": (
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorStorageMetadata",
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "TensorProperties",
        "_MEM_FORMAT_ENCODING",
    ),
    "torch.distributed.checkpoint.filesystem": ("_StorageInfo", "_StoragePrefix"),
    "torch.serialization": ("_get_layout",),
    "torch": ("Size",),
    "collections": ("OrderedDict",),
    "builtins": ("set", "frozenset"),
}
_MAX_VALUES = 1000  # objects of a checkpoint that are read; each is a small file of its own
_MAX_VALUE = 1 << 20  # bytes of one


def accepts(path: Path, head: bytes) -> bool:
    """Whether this is the description of such a checkpoint, by its name and that it is a pickle."""
    return path.name == ".metadata" and head[:1] == b"\x80"


@contextmanager
def opened(path: Path, unsafe: bool = False, folders: Sequence[Path] = ()) -> Iterator[Contents]:
    """The contents of the checkpoint that `path` describes; parts that are not beside it may lie in `folders`.

    Raises UnsafeCheckpoint when the description holds other objects than its own and `unsafe` is False, CheckpointError
    when it is damaged.
    """
    checkpoint = _Checkpoint((path.parent, *folders), _metadata(path, unsafe))
    leaves, refused = checkpoint.leaves()
    yield Contents(
        "torch.distributed.checkpoint",
        tuple(checkpoint.tensors),
        checkpoint.load,
        values=len(checkpoint.objects),
        scalars=dict(list({key: each for key, each in leaves.items() if "." not in key}.items())[:20]),
        leaves=leaves,
        parts=checkpoint.parts,
        faults=refused,
    )


class _Checkpoint:
    """The tensors and other objects that the parts in `folders` hold; the first that has a part whole gives it."""

    def __init__(self, folders: Sequence[Path], metadata: Metadata) -> None:
        entries = metadata.state_dict_metadata
        self.tensors = {key: each for key, each in entries.items() if isinstance(each, TensorStorageMetadata)}
        self.objects = [key for key, each in entries.items() if isinstance(each, BytesStorageMetadata)]
        self._stored = dict(metadata.storage_data)
        self._readers = {folder: FileSystemReader(folder) for folder in folders}
        for reader in self._readers.values():
            reader.set_up_storage_reader(metadata, True)

    def load(self, name: str) -> torch.Tensor:
        """A whole tensor, put together from its parts."""
        stored = self.parts(name)
        whole = torch.zeros(stored.shape, dtype=stored.dtype)
        for begin, part in stored.parts:
            whole[tuple(slice(at, at + size) for at, size in zip(begin, part.shape, strict=True))] = part
        return whole

    def parts(self, name: str) -> Parts:
        """A tensor in parts, one of which is in memory at a time."""
        if name not in self.tensors:
            no_tensors(name)
        entry = self.tensors[name]
        return Parts(tuple(entry.size), entry.properties.dtype, self._read_parts(name, entry))

    def leaves(self) -> tuple[dict[str, Any], tuple[str, ...]]:
        """The plain ones of the other objects, and what is to be said about those that were not read."""
        found: dict[str, Any] = {}
        faults = []
        for name in self.objects[:_MAX_VALUES]:
            index = MetadataIndex(name)
            try:
                folder, length = self._place(index)
                if length <= _MAX_VALUE:
                    data = self._read(
                        folder, ReadItem(LoadItemType.BYTE_IO, index, _NOWHERE, index, _NOWHERE, _NOWHERE)
                    )
                    value = torch.load(data, map_location="cpu", weights_only=True)
                    if is_plain(value):
                        found[name] = value
            except CheckpointError as error:
                faults.append(str(error))
            except Exception:
                continue  # safe loading refuses it: it is counted, and not told
        return found, tuple(dict.fromkeys(faults))

    def _read_parts(self, name: str, entry: TensorStorageMetadata) -> Iterator[tuple[tuple[int, ...], torch.Tensor]]:
        for chunk in entry.chunks:
            yield tuple(chunk.offsets), self._read_part(name, chunk, entry.properties.dtype)

    def _read_part(self, name: str, chunk: ChunkStorageMetadata, dtype: torch.dtype) -> torch.Tensor:
        index = MetadataIndex(name, chunk.offsets)
        folder, _ = self._place(index)
        start = torch.Size([0] * len(chunk.sizes))
        part: torch.Tensor = self._read(
            folder, ReadItem(LoadItemType.TENSOR, index, start, index, start, chunk.sizes), chunk.sizes, dtype
        )
        return part

    def _place(self, index: MetadataIndex) -> tuple[Path, int]:
        """The folder with the part in which an object is stored whole, and how many bytes it has there."""
        stored = self._stored.get(index)
        if stored is None:
            raise CheckpointError(f"{index.fqn} is stored nowhere")
        relative = PurePosixPath(stored.relative_path)
        if relative.is_absolute() or ".." in relative.parts:
            raise CheckpointError(f"{relative} lies outside of the checkpoint")
        wrong = "is not here"
        for folder in self._readers:
            try:
                size = (folder / relative).stat().st_size
            except OSError:
                continue
            if stored.offset + stored.length <= size:
                return folder, stored.length
            wrong = "is cut short"
        raise CheckpointError(f"{relative}, which holds a part of it, {wrong}")

    def _read(self, folder: Path, item: ReadItem, *room: Any) -> Any:
        planner = _One(*room)
        try:
            self._readers[folder].read_data(LoadPlan([item]), planner).wait()
        except Exception as error:
            first = (str(error).strip().splitlines() or [""])[0][:200]
            raise CheckpointError(f"{item.storage_index.fqn} cannot be read: {first}") from None
        return planner.found


_NOWHERE = torch.Size([0])


class _One(DefaultLoadPlanner):  # type: ignore[misc]
    """Takes the one thing that is read: an object's bytes, or a tensor of the given size and dtype."""

    def __init__(self, size: torch.Size = _NOWHERE, dtype: torch.dtype = torch.uint8) -> None:
        super().__init__()
        self.found: Any = None
        self._room = size, dtype

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        self.found = value

    def resolve_tensor(self, read_item: ReadItem) -> torch.Tensor:
        size, dtype = self._room
        self.found = torch.empty(size, dtype=dtype)
        return self.found

    def commit_tensor(self, read_item: ReadItem, tensor: torch.Tensor) -> None:
        pass


def _metadata(path: Path, unsafe: bool) -> Metadata:
    with open(path, "rb") as file:
        try:
            found = pickle.load(file) if unsafe else _Unpickler(file).load()
        except UnsafeCheckpoint:
            raise
        except Exception as error:
            raise CheckpointError(f"is damaged: {type(error).__name__}: {error}") from None
    if not isinstance(found, Metadata) or not isinstance(found.storage_data, dict):
        raise CheckpointError("describes no checkpoint of torch.distributed.checkpoint")
    return found


class _Unpickler(pickle.Unpickler):
    """Builds nothing but what the description of a checkpoint consists of."""

    def find_class(self, module: str, name: str) -> Any:
        if name in _CLASSES.get(module, ()):
            return super().find_class(module, name)
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        if module in ("pathlib", "pathlib._local") and name.endswith("Path"):
            return PurePosixPath
        raise UnsafeCheckpoint(
            f"it is a pickle that holds {module}.{name}, and to build that is to run code that the file names",
            "if you trust where the file comes from, add --unsafe-load",
            (f"{module}.{name}",),
        )
