"""Values of a dead rank to compute with: plain ones as they were, and the others by what a core describes of them."""

from __future__ import annotations

import ast
import collections
import functools
from collections.abc import Callable, Iterator
from typing import Any

from raytrain_debug.run.records import Described, ExceptionRecord

Tensors = Callable[[str], Any]
"""Gives a tensor that the core kept, by its name there; raises CheckpointError."""

_SEQUENCES: dict[str, Callable[[list[Any]], Any]] = {
    "list": list,
    "tuple": tuple,
    "collections.deque": collections.deque,
    "set": set,
    "frozenset": frozenset,
}


class Recorded:
    """A value of which the description alone is left: it prints as that, and gives out the parts that were kept.

    Parts are had as they were had of the value itself: by index or key, or as attributes. Made by `recorded`.
    """

    __slots__ = ("_described", "_tensors")

    def __init__(self, described: Described, tensors: Tensors) -> None:
        self._described = described
        self._tensors = tensors

    def __repr__(self) -> str:
        return self._described.text

    def __getattr__(self, name: str) -> Any:
        described = self._described
        if described.kind in ("object", "module") and name in described.items:
            return valued(described.items[name], self._tensors)
        facts = described.tensor
        if facts is not None and name in ("shape", "dtype", "device", "requires_grad"):
            return getattr(facts, name)
        raise AttributeError(f"{name!r}: {self._loss()}")

    def __getitem__(self, key: Any) -> Any:
        described = self._described
        name = key if isinstance(key, str) and described.kind in ("object", "module") else repr(key)
        if described.kind == "sequence" and isinstance(key, int) and key < 0 and described.length is not None:
            name = repr(described.length + key)
        if name in described.items:
            return valued(described.items[name], self._tensors)
        raise LookupError(f"{key!r}: {self._loss()}")

    def __len__(self) -> int:
        if self._described.length is None:
            raise TypeError(self._loss())
        return self._described.length

    def __iter__(self) -> Iterator[Any]:
        raise TypeError(self._loss())

    def __bool__(self) -> bool:
        if self._described.length is not None:
            return self._described.length > 0
        return True

    def __dir__(self) -> list[str]:
        return list(self._described.items) if self._described.kind in ("object", "module") else []

    def _loss(self) -> str:
        described = self._described
        if described.tensor is not None:
            return f"the elements of this tensor were not kept, only: {described.text}"
        if described.items:
            whole = f" of {described.length:,}" if described.length is not None else ""
            return f"of this {described.type} only {len(described.items)}{whole} parts were kept"
        return f"of this {described.type} only a description was kept: {described.text}"


def recorded(described: Described, tensors: Tensors) -> Recorded:
    """A Recorded whose class is called as that of the value was."""
    return _class(described.type)(described, tensors)


def description(value: Recorded) -> tuple[Described, Tensors]:
    """What `value` was made of."""
    return value._described, value._tensors


def valued(described: Described, tensors: Tensors) -> Any:
    """The value itself where the core has all of it, else a Recorded."""
    kind = described.kind
    if kind == "number":
        return _number(described, tensors)
    if kind == "text" and isinstance(described.value, str) and len(described.value) == described.length:
        return described.value
    if kind == "bytes":
        return _bytes(described, tensors)
    if kind in ("tensor", "array"):
        return _tensor(described, tensors)
    if kind in ("sequence", "set", "mapping") and len(described.items) == described.length:
        return _container(described, tensors)
    return recorded(described, tensors)


def of_exception(error: ExceptionRecord) -> Described:
    """An exception as a value: its message, its notes, and what else it carries."""
    items = {"message": text(error.message)}
    if error.notes:
        items["notes"] = text("\n".join(error.notes))
    for name, other in (("cause", error.cause), ("context", error.context)):
        if other is not None:
            items[name] = of_exception(other)
    items.update({str(at): of_exception(member) for at, member in enumerate(error.members)})
    items.update(error.attributes)
    return Described(error.type, "object", headline(error), items=items)


def headline(error: ExceptionRecord) -> str:
    """`ValueError: loss is nan`."""
    return f"{error.type}: {error.message}" if error.message else error.type


def text(value: str) -> Described:
    """A text of ours, described."""
    return Described("str", "text", repr(value), value, len(value))


@functools.lru_cache(maxsize=1024)
def _class(name: str) -> type[Recorded]:
    module, _, qualified = name.rpartition(".")
    return type(qualified or name, (Recorded,), {"__slots__": (), "__module__": module or "builtins"})


def _number(described: Described, tensors: Tensors) -> Any:
    if described.value is not None or described.text == "None":
        return described.value
    try:
        return complex(described.text)
    except ValueError:
        return recorded(described, tensors)


def _bytes(described: Described, tensors: Tensors) -> Any:
    try:
        value = ast.literal_eval(described.text)
    except (ValueError, SyntaxError):
        try:
            value = ast.literal_eval(described.text.removeprefix("bytearray(").removesuffix(")"))
        except (ValueError, SyntaxError):
            value = None
    return value if isinstance(value, bytes) and len(value) == described.length else recorded(described, tensors)


def _tensor(described: Described, tensors: Tensors) -> Any:
    facts = described.tensor
    if facts is None:
        return recorded(described, tensors)
    if facts.kept is not None:
        tensor = tensors(facts.kept)
        return tensor.numpy() if described.kind == "array" else tensor
    if described.value is not None and described.kind == "tensor":
        import torch

        # A single number is known even where there was no room for tensors.
        return torch.tensor(described.value, dtype=getattr(torch, facts.dtype, None)).reshape(facts.shape)
    return described.value if described.value is not None else recorded(described, tensors)


def _container(described: Described, tensors: Tensors) -> Any:
    values = [valued(item, tensors) for item in described.items.values()]
    if described.kind == "mapping":
        return {_key(name): value for name, value in zip(described.items, values, strict=True)}
    made = _SEQUENCES.get(described.type)
    try:
        return made(values) if made is not None else recorded(described, tensors)
    except TypeError:  # parts of a set that have no hash any more
        return recorded(described, tensors)


def _key(name: str) -> Any:
    try:
        return ast.literal_eval(name)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return name
