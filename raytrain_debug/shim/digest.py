"""A checksum of a whole value of which only a part is shown, so that ranks that differ elsewhere are told apart."""

from __future__ import annotations

import enum
import hashlib
import re
from collections.abc import Iterable
from typing import Any

from raytrain_debug.shim import tensors

_ITEMS = 1 << 17
_BYTES = 1 << 26
_AT_ONCE = 1 << 20  # characters that are encoded in one go
_SHORT = 64  # characters or bytes that stand for themselves
_MAX_DEPTH = 20
_REPR_COSTS = 20  # items
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_MASK = (1 << 128) - 1


class Digest:
    """Checksums within a budget that holds for all of them together: of items, of characters, of tensors' elements."""

    def __init__(self) -> None:
        self.items = _ITEMS
        self.bytes = _BYTES
        self.elements = 4 * tensors.LIMIT
        self._whole = True

    def of(self, value: Any) -> tuple[str, bool]:
        """A checksum that is equal for equal values, and whether it is of all there is in `value`."""
        before, self._whole = self._whole, True
        try:
            return hashlib.blake2b(self._encoded(value, 0), digest_size=8).hexdigest(), self._whole
        finally:
            self._whole = before

    def of_tensors(self, named: list[tuple[str, Any]]) -> tuple[str, int, int]:
        """One checksum of tensors that are local to this process, and of how many elements of how many it is."""
        found = tensors.checksum(named, self.elements)
        self.elements = max(self.elements - found[1], 0)
        return found

    def _encoded(self, value: Any, depth: int) -> bytes:
        """Few bytes that stand for `value`."""
        self.items -= 1
        if self.items < 0 or depth > _MAX_DEPTH:
            return self._cut()
        kind = type(value)
        if value is None or kind is bool:
            return repr(value).encode()
        if isinstance(value, str):
            return self._text(str.__str__(value))
        if isinstance(value, (int, float)) and not isinstance(value, enum.Enum):
            return self._number(value)
        if isinstance(value, (bytes, bytearray)):
            return self._raw(value)
        if isinstance(value, (list, tuple)):
            return self._combined(b"[", (self._encoded(item, depth + 1) for item in value))
        if isinstance(value, (dict, set, frozenset)):
            return self._unordered(value, depth)
        if tensors.is_tensor(value) or tensors.is_array(value):
            return self._tensors([("", tensors.local_part(value))])
        if is_module(value):
            return self._tensors(module_tensors(value)) + repr(kind).encode()
        self.items -= _REPR_COSTS
        text, whole = object_text(value)
        self._whole &= whole
        return repr(kind).encode() + self._text(text)

    def _cut(self) -> bytes:
        self._whole = False
        return b"?"

    def _number(self, value: float) -> bytes:
        if isinstance(value, float):
            plain = float.__float__(value)
            if not plain.is_integer():
                return repr(plain).encode()
            value = int(plain)  # 1.0 is 1
        if -(1 << 63) < value < 1 << 63:
            return b"#%d" % value
        return b"#" + self._raw(value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True))

    def _text(self, text: str) -> bytes:
        if len(text) <= _SHORT:
            return b"'" + text.encode("utf-8", "surrogatepass")
        pieces = (text[at : at + _AT_ONCE] for at in range(0, len(text), _AT_ONCE))
        found = self._combined(b"'", (piece.encode("utf-8", "surrogatepass") for piece in self._affordable(pieces)))
        return b"'%d:" % len(text) + found

    def _raw(self, raw: bytes | bytearray) -> bytes:
        if len(raw) <= _SHORT:
            return b"b" + bytes(raw)
        view = memoryview(raw)
        pieces = (view[at : at + _AT_ONCE] for at in range(0, len(raw), _AT_ONCE))
        return b"b%d:" % len(raw) + self._combined(b"b", self._affordable(pieces))

    def _affordable(self, pieces: Iterable[Any]) -> Iterable[Any]:
        for piece in pieces:
            self.bytes -= len(piece)
            if self.bytes < 0:
                self._cut()
                return
            yield piece

    def _combined(self, kind: bytes, parts: Iterable[Any]) -> bytes:
        found = hashlib.blake2b(kind, digest_size=16)
        for part in parts:
            if self.items < 0:
                self._cut()
                break
            found.update(b"%d:" % len(part))
            found.update(part)
        return found.digest()

    def _unordered(self, value: Any, depth: int) -> bytes:
        """Alike in whatever order the items come, so all of them are looked at or none is."""
        size = str(len(value)).encode()
        if len(value) * (3 if isinstance(value, dict) else 1) > self.items:
            return b"{" + size + self._cut()
        total = 0
        for item in list(value.items()) if isinstance(value, dict) else list(value):
            part = hashlib.blake2b(self._encoded(item, depth + 1), digest_size=16).digest()
            total += int.from_bytes(part, "little")
        return b"{" + size + b":" + (total & _MASK).to_bytes(16, "little")

    def _tensors(self, named: list[tuple[str, Any]]) -> bytes:
        text, looked_at, count = self.of_tensors(named)
        self._whole &= looked_at == count
        return text.encode()


def object_text(value: Any) -> tuple[str, bool]:
    """The repr of an object without addresses, and whether it tells all there is in the object."""
    try:
        told = repr(value)
        text = _ADDRESS.sub("", told)
        # An object with attributes of its own tells of them what it likes; so does one that leaves something out.
        plain = isinstance(value, (type, enum.Enum)) or not hasattr(value, "__dict__")
        return text, plain and text == told and "..." not in text and "…" not in text
    except Exception as error:
        return f"<repr failed: {type(error).__name__}>", False


def is_module(value: Any) -> bool:
    """Whether it is, or behaves like, a torch module."""
    return all(hasattr(type(value), name) for name in ("parameters", "state_dict", "forward", "named_modules"))


def module_tensors(module: Any) -> list[tuple[str, Any]]:
    """This rank's parts of a module's parameters and buffers, by name."""
    named = [*module.named_parameters(), *module.named_buffers()]
    return [(name, tensors.local_part(tensor)) for name, tensor in named]
