"""Reads Universal Binary JSON as XGBoost writes it; skips arrays of numbers, so that a large model costs little."""

from __future__ import annotations

import struct
from typing import Any, BinaryIO

_NUMBERS = {b"i": ">b", b"U": ">B", b"I": ">h", b"l": ">i", b"L": ">q", b"d": ">f", b"D": ">d"}
_CONSTANTS = {b"T": True, b"F": False, b"Z": None}
_MAX_STRING = 1 << 20
_MAX_DEPTH = 100


class Skipped(int):
    """The length of an array of numbers that was not read."""


def load(file: BinaryIO) -> Any:
    """The value that `file` begins with; an array of numbers in the optimized form is its length, `Skipped`.

    Raises ValueError for what is no UBJSON, or ends too early.
    """
    return _value(file, _read(file, 1), 0)


def _value(file: BinaryIO, marker: bytes, depth: int) -> Any:
    if depth > _MAX_DEPTH:
        raise ValueError("nested too deeply")
    if marker in _NUMBERS:
        return _number(file, marker)
    if marker in _CONSTANTS:
        return _CONSTANTS[marker]
    if marker in (b"S", b"H"):
        return _string(file)
    if marker == b"C":
        return _read(file, 1).decode("latin-1")
    if marker == b"[":
        return _array(file, depth)
    if marker == b"{":
        return _object(file, depth)
    raise ValueError(f"no UBJSON: marker {marker!r}")


def _array(file: BinaryIO, depth: int) -> Any:
    kind, count, marker = _form(file)
    if kind in _NUMBERS and count is not None:
        _skip(file, count * struct.calcsize(_NUMBERS[kind]))
        return Skipped(count)
    items: list[Any] = []
    while len(items) < count if count is not None else marker != b"]":
        items.append(_value(file, kind or (_marker(file) if count is not None else marker), depth + 1))
        if count is None:
            marker = _marker(file)
    return items


def _object(file: BinaryIO, depth: int) -> dict[str, Any]:
    kind, count, marker = _form(file)
    found: dict[str, Any] = {}
    done = 0
    while done < count if count is not None else marker != b"}":
        key = _string(file, None if count is not None else marker)
        found[key] = _value(file, kind or _marker(file), depth + 1)
        done += 1
        if count is None:
            marker = _marker(file)
    return found


def _form(file: BinaryIO) -> tuple[bytes, int | None, bytes]:
    """The type of all items (b"" when each has its own), their number when it is given, and the marker after that."""
    kind, marker = b"", _marker(file)
    if marker == b"$":
        kind, marker = _read(file, 1), _read(file, 1)
        if marker != b"#":
            raise ValueError("no UBJSON: a type without a count")
    return kind, _length(file) if marker == b"#" else None, marker


def _marker(file: BinaryIO) -> bytes:
    while (marker := _read(file, 1)) == b"N":
        pass
    return marker


def _number(file: BinaryIO, marker: bytes) -> Any:
    form = _NUMBERS[marker]
    return struct.unpack(form, _read(file, struct.calcsize(form)))[0]


def _length(file: BinaryIO, marker: bytes | None = None) -> int:
    marker = marker or _read(file, 1)
    length = _number(file, marker) if marker in _NUMBERS else None
    if not isinstance(length, int) or length < 0:
        raise ValueError("no UBJSON: a length that is none")
    return length


def _string(file: BinaryIO, marker: bytes | None = None) -> str:
    length = _length(file, marker)
    if length > _MAX_STRING:
        _skip(file, length)
        return f"<{length} bytes>"
    return _read(file, length).decode("utf-8", "replace")


def _read(file: BinaryIO, count: int) -> bytes:
    data = file.read(count)
    if len(data) != count:
        raise ValueError("ends too early")
    return data


def _skip(file: BinaryIO, count: int) -> None:
    if count:
        file.seek(count - 1, 1)
        _read(file, 1)
