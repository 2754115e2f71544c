"""Reads HDF5 files, and the .keras files of Keras, which are a zip with one inside, one tensor at a time.

h5py does the reading; Keras and TensorFlow are not needed. Without it an HDF5 file is told by its kind, and a .keras
file by what lies beside its weights.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from raytrain_debug.errors import CheckpointError
from raytrain_debug.postmortem.arrays import to_tensor
from raytrain_debug.postmortem.contents import Contents, is_plain

_HDF5 = b"\x89HDF\r\n\x1a\n"
_ZIP = b"PK\x03\x04"
_WEIGHTS = "model.weights.h5"
_MAX_TEXT = 16 << 20  # bytes of the JSON in a .keras file
_MAX_SCALARS = 20
_MAX_RATIO = 4096  # of a dataset's bytes to those it takes in the file; compression reaches a quarter of it
_SMALL = 64 << 20  # bytes of a dataset that is read whatever it takes


def accepts(path: Path, head: bytes) -> bool:
    """Whether this is an HDF5 file that can be read here, or a Keras model, by its first bytes and its name."""
    if head.startswith(_HDF5):
        return find_spec("h5py") is not None
    return path.suffix == ".keras" and head.startswith(_ZIP)


@contextmanager
def opened(path: Path, unsafe: bool = False) -> Iterator[Contents]:
    """The contents of `path`; `unsafe` makes no difference, nothing in it is run. Raises CheckpointError."""
    with ExitStack() as stack:
        yield _contents(path, stack)


def _contents(path: Path, stack: ExitStack) -> Contents:
    source: Any = path
    form, told = "HDF5", {}
    try:
        if path.suffix == ".keras":
            archive = stack.enter_context(zipfile.ZipFile(path))
            form, told = "Keras model", _about(archive)
            if find_spec("h5py") is None:
                form += ", whose weights are shown once h5py is installed"
                return Contents(form, values=len(told), scalars=told, leaves=told)
            source = stack.enter_context(archive.open(_WEIGHTS))
        return _Weights(_open(source, stack)).contents(form, told)
    except zipfile.BadZipFile:
        raise CheckpointError("is cut short or damaged: the table of contents at its end is missing") from None
    except (OSError, KeyError, ValueError, RuntimeError, EOFError) as error:
        raise CheckpointError(f"is damaged: {_first_line(error)}") from None


def _open(source: Any, stack: ExitStack) -> Any:
    import h5py

    # Locks are for files that somebody may write to; a file system may have none.
    return stack.enter_context(h5py.File(source, "r", locking=False))


def _about(archive: zipfile.ZipFile) -> dict[str, Any]:
    """What a .keras file tells of itself beside its weights."""
    config, metadata = _json(archive, "config.json"), _json(archive, "metadata.json")
    told = {"class": config.get("class_name"), **metadata}
    settings = config.get("config")
    layers = settings.get("layers") if isinstance(settings, dict) else None
    if isinstance(layers, list):
        told["layers"] = len(layers)
    return {key: value for key, value in told.items() if value is not None and is_plain(value)}


def _json(archive: zipfile.ZipFile, name: str) -> dict[str, Any]:
    if archive.getinfo(name).file_size > _MAX_TEXT:
        return {}
    found = json.loads(archive.read(name))
    return found if isinstance(found, dict) else {}


class _Weights:
    """The numeric datasets of an open HDF5 file, by their path with dots; whatever else it holds is counted."""

    def __init__(self, file: Any) -> None:
        self._datasets: dict[str, Any] = {}
        self._others = 0
        self._told = {key: value for key, value in file.attrs.items() if is_plain(value)}
        file.visititems(self._visit)

    def contents(self, form: str, told: Mapping[str, Any]) -> Contents:
        scalars = dict(list({**told, **self._told}.items())[:_MAX_SCALARS])
        return Contents(
            form, tuple(self._datasets), self._load, values=self._others + len(scalars), scalars=scalars, leaves=scalars
        )

    def _visit(self, path: str, item: Any) -> None:
        import h5py

        if not isinstance(item, h5py.Dataset):
            return
        # Numbers that the file says lie in other files are none of this checkpoint.
        if item.shape is None or item.external or item.is_virtual or not _is_number(item):
            self._others += 1
        else:
            self._datasets[path.replace("/", ".")] = item

    def _load(self, name: str) -> torch.Tensor:
        if name not in self._datasets:
            raise CheckpointError(f"has no tensor {name}")
        dataset = self._datasets[name]
        if dataset.nbytes > max(_SMALL, _MAX_RATIO * dataset.id.get_storage_size()):
            raise CheckpointError(f"tensor {name} is said to have {dataset.nbytes} bytes, more than are in the file")
        try:
            return to_tensor(dataset[()], name, _own_type(dataset))
        except (OSError, KeyError, ValueError, RuntimeError) as error:
            raise CheckpointError(f"tensor {name} cannot be read: {_first_line(error)}") from None


def _is_number(dataset: Any) -> bool:
    return dataset.dtype.kind in "biufc" or bool(_own_type(dataset))


def _own_type(dataset: Any) -> str:
    """The type that Keras says it is, where HDF5 has no such: bfloat16."""
    told = dataset.attrs.get("dtype") if dataset.dtype.kind == "V" else None
    return told if isinstance(told, str) else ""


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
