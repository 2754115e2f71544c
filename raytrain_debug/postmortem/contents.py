"""What every checkpoint reader gives: the names of a file's tensors, and each of them when it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from raytrain_debug.errors import CheckpointError
from raytrain_debug.postmortem.tensors import Release


@dataclass(frozen=True)
class Parts:
    """A tensor that is stored in parts: each with the index that it begins at, loaded when it is asked for."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    parts: Iterable[tuple[tuple[int, ...], torch.Tensor]]


def no_tensors(name: str) -> torch.Tensor:
    """The `load` of a format that has no tensors."""
    raise CheckpointError(f"has no tensor {name}")


@dataclass(frozen=True)
class Contents:
    """An open checkpoint file, good until its reader's `with` block ends.

    `names` in the order in which they are best read; `load` gives one tensor (on the CPU; mapped where the format
    allows) and raises CheckpointError; `release` gives its memory back piece by piece. `parts` gives a tensor in the
    parts in which it is stored, for formats that have such. `values` counts what is not a tensor; `leaves` has those
    of them that are plain (numbers, strings) by dotted name, `scalars` the few that are worth a line ("epoch", "step").
    `twins` maps the name of a tensor to an earlier one that is the same memory (tied weights). `faults` tell what is
    wrong though the file can be read.
    """

    format: str
    names: tuple[str, ...] = ()
    load: Callable[[str], torch.Tensor] = no_tensors
    release: Release | None = None
    values: int = 0
    scalars: Mapping[str, Any] = field(default_factory=dict)
    leaves: Mapping[str, Any] = field(default_factory=dict)
    twins: Mapping[str, str] = field(default_factory=dict)
    parts: Callable[[str], Parts] | None = None
    faults: tuple[str, ...] = ()


_MAX_SCALARS = 20
_MAX_LEAVES = 10_000
_MAX_TEXT = 1000


def is_plain(value: Any) -> bool:
    """Whether a value is told as it is: a number, a string that is not too long, or None."""
    return isinstance(value, (int, float, type(None))) or (isinstance(value, str) and len(value) <= _MAX_TEXT)


@dataclass(frozen=True)
class Flattened:
    """What nested containers hold: tensors and plain values by dotted name, and the count of all that is no tensor."""

    tensors: dict[str, torch.Tensor]
    leaves: dict[str, Any]
    values: int
    scalars: dict[str, Any]


def flattened(value: Any, worth: str = "") -> Flattened:
    """Look into nested containers. The scalars are those at the top, then those in its container `worth`.

    Modules count as their state dict. A container met again, as in a cycle, is not entered a second time. Two tensors
    that would get one name ("a.b" and "b" in "a") are told apart as "a.b" and "a.b#2".
    """
    tensors: dict[str, torch.Tensor] = {}
    leaves: dict[str, Any] = {}
    top: dict[str, Any] = {}
    more: dict[str, Any] = {}
    count = 0
    seen: set[int] = set()
    keep: list[Any] = []  # what `seen` names must stay alive, or its id could come again
    pending: list[tuple[tuple[str, ...], Any]] = [((), value)]
    while pending:
        path, item = pending.pop()
        if isinstance(item, torch.nn.Module):
            item = item.state_dict()
        if isinstance(item, torch.Tensor):
            tensors[_unused(".".join(path) or "tensor", tensors)] = item
        elif isinstance(item, (Mapping, list, tuple, set, frozenset)):
            if id(item) not in seen:
                seen.add(id(item))
                keep.append(item)
                entries = item.items() if isinstance(item, Mapping) else enumerate(item)
                pending.extend(reversed([((*path, _key(key)), each) for key, each in entries]))
        else:
            count += 1
            if is_plain(item) and len(leaves) < _MAX_LEAVES:
                name = _unused(".".join(path) or "value", leaves)
                leaves[name] = item
                if len(path) <= 1:
                    top[name] = item
                elif path[0] == worth:
                    more[name] = item
    return Flattened(tensors, leaves, count, dict(list((top | more).items())[:_MAX_SCALARS]))


def twins_among(tensors: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """For each tensor that is the same memory as an earlier one, in the same shape: that one's name."""
    first: dict[object, str] = {}
    twins = {}
    for name, tensor in tensors.items():
        if tensor.is_nested or tensor.layout != torch.strided or tensor.is_meta or tensor.is_quantized:
            continue
        if tensor.numel() and not tensor.is_conj() and not tensor.is_neg():
            place = tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride()
            if first.setdefault(place, name) != name:
                twins[name] = first[place]
    return twins


def _key(key: Any) -> str:
    return key if isinstance(key, str) else repr(key)


def _unused(name: str, taken: Mapping[str, Any]) -> str:
    candidate, number = name, 1
    while candidate in taken:
        number += 1
        candidate = f"{name}#{number}"
    return candidate
