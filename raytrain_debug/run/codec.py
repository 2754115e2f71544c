"""The one JSON encoder: strict JSON for values that JSON alone cannot hold.

Floats without a JSON form are written `{"$float": "nan" | "inf" | "-inf"}` and read back as floats. A value that
JSON cannot hold is written `{"$type": "package.Class", "repr": "..."}`, with `length` for a container, `shape` and
`dtype` for a tensor; an error in place of a value is `{"$error": "package.Type"}`.
"""

from __future__ import annotations

import itertools
import json
import math
import reprlib
import sys
from typing import Any

_MAX_REPR = 200
_MAX_DEPTH = 20
_MAX_PRINTED_ELEMENTS = 1000

_COMPACT = json.JSONEncoder(allow_nan=False, ensure_ascii=False, separators=(",", ":"))
_SPECIAL_FLOATS = ("nan", "inf", "-inf")
_SIZED = (str, bytes, bytearray, list, tuple, dict, set, frozenset)


def dumps(value: Any, *, indent: int | None = None) -> str:
    """Strict JSON text of `value` (no NaN literals), one line unless `indent` is given. Never raises for odd values."""
    encoder = _COMPACT if indent is None else json.JSONEncoder(allow_nan=False, ensure_ascii=False, indent=indent)
    try:
        text = encoder.encode(value)
    except Exception:
        text = encoder.encode(plain(value))
    if not text.isascii():
        # A lone surrogate (a file name that is not UTF-8) has no UTF-8 form; its backslash form is JSON's own escape.
        text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return text


def loads(text: str | bytes) -> Any:
    """The value that `dumps` wrote, with NaN and infinities as floats again; raises ValueError on anything else."""
    marked = ("$float" in text) if isinstance(text, str) else (b"$float" in text)
    return json.loads(text, object_hook=_restore if marked else None, parse_constant=_refuse)


def plain(value: Any, *, max_items: int | None = None, max_text: int | None = None) -> Any:
    """`value` in terms of JSON: numbers and strings kept, one-element tensors as numbers, the rest described.

    Of all containers together `max_items` items are written out and the others described; so are strings longer than
    `max_text` characters, cycles, and what lies deeper than 20 levels. Never raises.
    """
    return _Plain(math.inf if max_items is None else max_items, math.inf if max_text is None else max_text).of(value, 0)


def described(value: Any) -> dict[str, Any]:
    """What stands for a value that JSON cannot hold: its type and a bounded repr; never raises."""
    kind = type(value)
    result: dict[str, Any] = {"$type": f"{kind.__module__}.{kind.__qualname__}"}
    try:
        if _is_array(value):
            result["shape"] = [int(size) for size in value.shape]
            result["dtype"] = str(value.dtype)
            # Printing moves a tensor to the host and a big one costs time: a few numbers tell little about many.
            printed = math.prod(result["shape"]) <= _MAX_PRINTED_ELEMENTS
            text = repr(value) if printed else "…"
        elif kind in _SIZED:
            result["length"] = len(value)
            text = _bounded_repr(value)
        else:
            text = repr(value)
        result["repr"] = text if len(text) <= _MAX_REPR else text[: _MAX_REPR - 1] + "…"
    except Exception as error:
        result["repr"] = f"<repr failed: {type(error).__name__}>"
    return result


def as_float(value: float) -> float:
    """A number as a float; an integer beyond all floats is the largest of them, for it is finite."""
    try:
        return float(value)
    except OverflowError:
        return sys.float_info.max if value > 0 else -sys.float_info.max


def error(raised: BaseException) -> dict[str, str]:
    """What stands for a value that could not be had because `raised` came in its place."""
    kind = type(raised)
    return {"$error": kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"}


class _Plain:
    """One conversion to JSON's terms, with what is left of its bounds."""

    def __init__(self, items: float, text: float) -> None:
        self.items = items
        self.text = text
        self.ancestors: set[int] = set()

    def of(self, value: Any, depth: int) -> Any:
        kind = type(value)
        if value is None or kind is bool:
            return value
        if kind is float:
            return value if math.isfinite(value) else {"$float": repr(value)}
        try:
            if kind is int:
                # Python refuses to print integers of more than some thousand digits.
                return value if value.bit_length() < 10_000 else described(value)
            if kind is str:
                return value if len(value) <= self.text else described(value)
            if isinstance(value, (dict, list, tuple)):
                return self.container(value, depth)
            if isinstance(value, int):
                return self.of(int.__int__(value), depth)
            if isinstance(value, float):
                return self.of(float.__float__(value), depth)
            if isinstance(value, str):
                return self.of(str.__str__(value), depth)
            if _is_array(value) and math.prod(value.shape) == 1:
                number = value.item()
                if type(number) in (bool, int, float, str, complex):
                    return self.of(number, depth)
        except Exception:
            pass
        return described(value)

    def container(self, value: Any, depth: int) -> Any:
        if depth >= _MAX_DEPTH or id(value) in self.ancestors or len(value) > self.items:
            return described(value)
        self.items -= len(value)
        self.ancestors.add(id(value))
        try:
            if not isinstance(value, dict):
                return [self.of(item, depth + 1) for item in value]
            result: dict[str, Any] = {}
            for key, item in value.items():
                text = key if type(key) is str else _key(key)
                if text in result:
                    text = f"{text} ({type(key).__name__})"
                result[text] = self.of(item, depth + 1)
            return result
        finally:
            self.ancestors.discard(id(value))


def _key(key: Any) -> str:
    """A key that is no string as json.dumps would write it, or its bounded repr."""
    if key is None or isinstance(key, bool):
        return json.dumps(key)
    if isinstance(key, str):
        return str.__str__(key)
    if isinstance(key, int):
        return int.__repr__(key)
    text: str = described(key)["repr"]
    return text


def _is_array(value: Any) -> bool:
    """Whether `value` is a tensor, array or numpy scalar of whichever library; none of them is imported for this."""
    kind = type(value)
    return hasattr(kind, "item") and hasattr(kind, "shape") and hasattr(kind, "dtype")


def _bounded_repr(value: Any) -> str:
    if isinstance(value, (str, bytes, bytearray)):
        return repr(value[:_MAX_REPR])
    if isinstance(value, (set, frozenset)) and len(value) > 10:
        return f"{type(value).__name__}({{{', '.join(map(reprlib.repr, itertools.islice(value, 6)))}, ...}})"
    return reprlib.repr(value)


def _restore(mapping: dict[str, Any]) -> Any:
    if len(mapping) == 1 and mapping.get("$float") in _SPECIAL_FLOATS:
        return float(mapping["$float"])
    return mapping


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not strict JSON")
