"""Any value of the user's in terms of JSON, within bounds, alike in two processes when the values are alike."""

from __future__ import annotations

from typing import Any

from raytrain_debug.run import codec
from raytrain_debug.shim import digest, tensors

_MAX_ITEMS = 200
_MAX_DEPTH = 4
_MAX_TEXT = 2_000
_MAX_REPR = 200
_SHOWN = 10  # items of a set


def describe(value: Any) -> Any:
    """Numbers, strings, and containers of them as they are; tensors and arrays by statistics, others by their repr.

    A tensor of one element is its number. Of a tensor that is spread over ranks this rank's part is described, with
    the whole's shape as `global_shape`. What is not written out whole has a `checksum` of the whole, and where that was
    too much to look at, `looked_at`: such descriptions can be equal though the values are not. Bounded; runs the
    value's own `__repr__`, and raises what that does only when it is no Exception.
    """
    return _Description().of(value, 0)


class _Description:
    """One description, with what is left of its bounds."""

    def __init__(self) -> None:
        self.items = _MAX_ITEMS
        self.digest = digest.Digest()

    def of(self, value: Any, depth: int) -> Any:
        if tensors.is_tensor(value):
            return self.tensor(value)
        if tensors.is_array(value):
            return self.array(value)
        if tensors.is_array_scalar(value) and (number := _one_number(value)) is not None:
            return self.of(number, depth)
        if isinstance(value, (dict, list, tuple)) and depth < _MAX_DEPTH and len(value) <= self.items:
            self.items -= len(value)
            if not isinstance(value, dict):
                return [self.of(item, depth + 1) for item in list(value)]
            items = list(value.items())
            found = {str(_text(key)): self.of(item, depth + 1) for key, item in items}
            if len(found) == len(items):  # else keys look alike, such as 1 and "1"
                return found
        if digest.is_module(value):
            return self.module(value)
        plain = codec.plain(value, max_items=0, max_text=_MAX_TEXT)
        return self.in_part(value, plain) if isinstance(plain, dict) and "repr" in plain else plain

    def tensor(self, value: Any) -> Any:
        local = tensors.local_part(value)
        if local is value and (number := _one_number(value)) is not None:
            return self.of(number, _MAX_DEPTH)
        result = tensors.describe(local)
        if local is not value:
            result["$type"] = f"{type(value).__module__}.{type(value).__qualname__}"
            result["global_shape"] = [int(size) for size in value.shape]
        return _with_plain_values(result)

    def array(self, value: Any) -> Any:
        number = _one_number(value)
        return _with_plain_values(tensors.describe(value)) if number is None else self.of(number, _MAX_DEPTH)

    def module(self, value: Any) -> dict[str, Any]:
        kind = type(value)
        local = [tensors.local_part(parameter) for parameter in value.parameters()]
        checksum, looked_at, count = self.digest.of_tensors(digest.module_tensors(value))
        result: dict[str, Any] = {
            "$type": f"{kind.__module__}.{kind.__qualname__}",
            "parameters": sum(map(_count, local)),
            "training": bool(value.training),
            "repr": f"{kind.__qualname__} with {len(local)} parameter tensors",
            "checksum": checksum,
        }
        if looked_at < count:
            result["looked_at"] = looked_at
        return result

    def in_part(self, value: Any, result: dict[str, Any]) -> dict[str, Any]:
        """What codec says of a value that JSON does not hold, and by what it is told from one that looks the same."""
        if isinstance(value, (str, bytes, bytearray, list, tuple, dict, set, frozenset, int)):
            before = self.digest.items
            result["checksum"], whole = self.digest.of(value)
            if not whole:
                result["looked_at"] = before - max(self.digest.items, 0)
            if isinstance(value, (set, frozenset)) and value:
                result["repr"] = _set_text(value)
            elif isinstance(value, int):
                result["repr"] = f"<integer of {value.bit_length():,} bits>"
            return result
        text, whole = digest.object_text(value)
        result["repr"] = text if len(text) <= _MAX_REPR else text[: _MAX_REPR - 1] + "…"
        if len(text) > _MAX_REPR:
            result["checksum"], all_read = self.digest.of(text)
            whole = whole and all_read
        if not whole:
            result["looked_at"] = 0
        return result


def _one_number(value: Any) -> Any:
    """The only element of a tensor or array, a number or text; else None."""
    try:
        one = not value.is_meta and value.numel() == 1 if hasattr(value, "is_meta") else value.size == 1
        element = value.item() if one else None
    except Exception:
        return None
    return element if isinstance(element, (bool, int, float, complex, str)) else None


def _count(tensor: Any) -> int:
    try:
        return int(tensor.numel())
    except Exception:
        return 0  # it has no shape yet


def _with_plain_values(result: dict[str, Any]) -> dict[str, Any]:
    if "values" in result:
        result["values"] = codec.plain(result["values"])
    return result


def _set_text(value: Any) -> str:
    """A set in an order that does not depend on the process."""
    few = list(value) if len(value) <= _SHOWN else []
    items = sorted((digest.object_text(item)[0] for item in few), key=lambda text: (len(text), text))
    text = f"{{{', '.join(items) or '…'}}}"
    text = text if isinstance(value, set) else f"{type(value).__name__}({text})"
    return text if len(text) <= _MAX_REPR else text[: _MAX_REPR - 1] + "…"


def _text(key: Any) -> Any:
    return key if isinstance(key, (str, int, float, bool)) else digest.object_text(key)[0][:_MAX_REPR]
