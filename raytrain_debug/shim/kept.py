"""Tensors of a dying rank's frames, kept as one safetensors file within a budget of bytes.

The file is written here, not by the safetensors package, which wants all tensors in memory at once: a rank may be dying
because there is none left. The format is a header's length, the header in JSON, and the data; see "Format" in
https://github.com/huggingface/safetensors.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from raytrain_debug.run import layout
from raytrain_debug.shim import tensors
from raytrain_debug.shim.structure import parts

_DEPTH = 3  # levels of containers and objects in which tensors are looked for
_PARTS = 100  # of each
_MAX_VISITS = 20_000
_CHUNK = 8 << 20
_DTYPES = {
    "bool": "BOOL",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    **{
        f"{name}{bits}": f"{letter}{bits}" for name, letter in (("int", "I"), ("uint", "U")) for bits in (8, 16, 32, 64)
    },
    **{f"float{bits}": f"F{bits}" for bits in (16, 32, 64)},
}


class Keeper:
    """Chooses tensors within `budget` bytes, then writes them. `names` maps the `id` of a tensor to its name.

    Holds the chosen tensors, so that their ids stay theirs.
    """

    def __init__(self, budget: int) -> None:
        self.names: dict[int, str] = {}
        self.left_out = 0  # tensors that did not fit in
        self._budget = budget
        self._chosen: dict[str, Any] = {}
        self._places: dict[Any, str] = {}  # the same memory under another object is kept once
        self._visits = 0

    def choose(self, frames: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
        """Choose among the variables of frames, given as (function, variables), the most interesting frame first.

        What variables name themselves, or through containers and objects, goes before what lies in a module.
        """
        modules: list[tuple[str, Any]] = []
        seen: dict[int, Any] = {}
        for function, variables in frames:
            for name, value in variables.items():
                for path, tensor in self._found(f"{function}.{name}", value, 0, modules, seen):
                    self._consider(path, tensor)
        for path, module in modules:
            # Not its state_dict: of a sharded module, the ranks would have to communicate for that.
            for name, tensor in itertools.chain(module.named_parameters(), module.named_buffers()):
                self._consider(f"{path}.{name}", tensor)

    def write(self, path: Path, deadline: float) -> int:
        """Write what was chosen to `path`; how many tensors that are. `deadline` in time.monotonic().

        One tensor is copied at a time. One that cannot be copied is left out, and so is what comes after the deadline;
        `names` then has the others only. Raises OSError.
        """
        if not self._chosen:
            return 0
        layout.make_private(path.parent)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            with open(descriptor, "wb") as file:
                written = self._write(file, deadline)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
        self.names = {key: name for key, name in self.names.items() if name in written}
        return len(written)

    def _found(
        self, path: str, value: Any, depth: int, modules: list[tuple[str, Any]], seen: dict[int, Any]
    ) -> Iterator[tuple[str, Any]]:
        self._visits += 1
        if tensors.is_tensor(value) or tensors.is_array(value):
            yield path, value
            return
        if depth > _DEPTH or id(value) in seen or self._visits > _MAX_VISITS:
            return
        whole = parts(value)
        if whole is None:
            return
        seen[id(value)] = value
        if whole.kind == "module":
            modules.append((path, value))
            return
        for key, part in whole.first(_PARTS):
            named = f"{path}.{key}" if whole.kind == "object" else f"{path}[{_text(key)}]"
            yield from self._found(named, part, depth + 1, modules, seen)

    def _consider(self, path: str, value: Any) -> None:
        if id(value) in self.names:
            return
        try:
            local = tensors.local_part(value)
            dtype, size = _dtype(local), _size(local)
            if dtype is None or tensors.why_unreadable(local):
                return
            place = _place(local)
        except Exception:
            return
        name = self._places.get(place)
        if name is None:
            if size > self._budget:
                self.left_out += 1
                return
            self._budget -= size
            name, number = path, 1
            while name in self._chosen:
                number += 1
                name = f"{path} #{number}"
            self._chosen[name] = value
            self._places[place] = name
        self.names[id(value)] = name

    def _write(self, file: BinaryIO, deadline: float) -> set[str]:
        entries: dict[str, dict[str, Any]] = {}
        end = 0
        for name, value in self._chosen.items():
            local = tensors.local_part(value)
            entries[name] = _entry(local, end)
            end = entries[name]["data_offsets"][1]
        room = len(_header(entries))
        room += -room % 8
        file.write(room.to_bytes(8, "little") + b" " * room)
        written: dict[str, dict[str, Any]] = {}
        end = 0
        for name, value in self._chosen.items():
            if time.monotonic() > deadline:
                break
            try:
                data = _data(tensors.local_part(value))
            except Exception:
                continue  # a device in a bad state, or no memory
            for start in range(0, len(data), _CHUNK):
                file.write(data[start : start + _CHUNK])
            written[name] = {**entries[name], "data_offsets": [end, end + len(data)]}
            end += len(data)
        file.seek(8)
        file.write(_header(written).ljust(room))
        return set(written)


def _header(entries: Mapping[str, Any]) -> bytes:
    return json.dumps(entries, separators=(",", ":")).encode()


def _entry(value: Any, start: int) -> dict[str, Any]:
    return {
        "dtype": _dtype(value),
        "shape": [int(size) for size in value.shape],
        "data_offsets": [start, start + _size(value)],
    }


def _dtype(value: Any) -> str | None:
    """The format's name for the dtype of a dense tensor or array; None for what it cannot hold."""
    if tensors.is_tensor(value):
        import torch

        if type(value).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
            return None  # it computes its elements when asked, or waits for a collective that brings them
        if value.layout != torch.strided or value.is_quantized or value.is_meta or value.is_nested:
            return None
    elif not value.dtype.isnative:
        return None
    return _DTYPES.get(str(value.dtype).removeprefix("torch."))


def _size(value: Any) -> int:
    return int(math.prod(value.shape)) * int(value.dtype.itemsize)


def _place(value: Any) -> Any:
    if not tensors.is_tensor(value):
        return value.__array_interface__["data"][0], str(value.dtype), value.shape, value.strides
    return str(value.device), value.data_ptr(), str(value.dtype), tuple(value.shape), value.stride(), value.is_neg()


def _data(value: Any) -> memoryview:
    """The bytes of a tensor or array in the order of its indices."""
    if tensors.is_tensor(value):
        import torch

        plain = value.detach().as_subclass(torch.Tensor).resolve_conj().resolve_neg().cpu().contiguous()
        return memoryview(plain.reshape(-1).view(torch.uint8).numpy())
    import numpy

    flat: Any = numpy.ascontiguousarray(value).reshape(-1).view(numpy.uint8)
    return memoryview(flat)


def _text(key: Any) -> str:
    return repr(key) if isinstance(key, (str, int)) and len(repr(key)) < 100 else "?"
