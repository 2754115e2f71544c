"""A user's values described for a core: what they are, their parts to a depth, tensors by statistics; within bounds.

Everything that may run code of the user's (`__repr__`, a property, a tensor subclass) runs in a helper thread that is
given up when it gets stuck; the object that it was stuck in is not asked again.
"""

from __future__ import annotations

import dataclasses
import enum
import math
import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from raytrain_debug.run.records import Described, TensorDescription
from raytrain_debug.run.words import counted
from raytrain_debug.shim import tensors
from raytrain_debug.shim.bounded import Helper, TookTooLong
from raytrain_debug.shim.structure import is_namedtuple, parts, type_name

_STATISTICS = ("min", "max", "mean", "std", "nan", "inf", "looked_at")
_MAX_TEXT = 200  # characters of the line for people
_STUCK = 0.5  # seconds without progress
_MAX_STUCK = 4  # times, in the variables of one frame
_TOO_LONG = "<not described: it took too long>"
_BIG_INTEGER = 10_000  # bits
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_SPACE = re.compile(r"\s+")


@dataclass(frozen=True)
class Detail:
    """How much of a value is described: levels of parts, parts at one place, parts in all, characters of a text."""

    depth: int
    parts: int
    room: int
    characters: int


FULL = Detail(depth=6, parts=100, room=1_000, characters=2_000)
SHALLOW = Detail(depth=2, parts=20, room=30, characters=200)


class Describer:
    """Describes values within bounds that hold for all of them together: `seconds`, and a number of `values`.

    `kept` maps the `id` of tensors to their names in the core's tensor file. Use it as a context manager.
    """

    def __init__(self, seconds: float, values: int = 20_000, kept: Mapping[int, str] | None = None) -> None:
        self._end = time.monotonic() + seconds
        self._left = values
        self._kept = kept or {}
        self._helper = Helper("raytrain_debug describe")
        self._spent: dict[type, float] = {}  # seconds in the repr of each class
        self._searching = seconds / 4  # for the first bad element of tensors; each has half of what is left
        self._steps = 0
        self._turn: object = None
        self._current: Any = None  # the object whose code may be running
        self._stuck_in: dict[int, tuple[Any, int]] = {}  # objects whose code got stuck, and how often
        # With the object, or its id could come again.
        self._known: dict[tuple[int, Detail | None], tuple[Any, Described]] = {}
        self.exhausted = False  # something was left out for want of time or because of the number

    def __enter__(self) -> Describer:
        return self

    def __exit__(self, *_: object) -> None:
        self._helper.close()

    def variables(self, values: Mapping[str, Any], detail: Detail = FULL) -> dict[str, Described]:
        """Each of `values` described; never raises."""
        found: dict[str, Described] = {}
        for _ in range(_MAX_STUCK):
            try:
                self._helper.call(lambda: self._fill(found, values, detail), _STUCK, lambda: self._steps)
                break
            except TookTooLong:
                stuck = self._current
                self._stuck_in[id(stuck)] = stuck, self._times_stuck(stuck) + 1
                self._spent[type(stuck)] = self._spent.get(type(stuck), 0.0) + _STUCK
            except BaseException as error:
                rest = f"<not described: {type(error).__name__}>"
                return {name: found.get(name) or self._other(value, rest) for name, value in values.items()}
        return {name: found.get(name) or self._other(value, _TOO_LONG) for name, value in values.items()}

    def value(self, value: Any, detail: Detail = FULL) -> Described:
        """`value` described; never raises."""
        return self.variables({"": value}, detail)[""]

    # In the helper thread.

    def _fill(self, found: dict[str, Described], values: Mapping[str, Any], detail: Detail) -> None:
        self._turn = turn = object()
        for name, value in values.items():
            if name in found:
                continue
            known = self._known.get((id(value), detail))
            described = known[1] if known is not None else self._of(value, detail, 0, detail.room, ())
            if self._turn is not turn:
                return  # this thread was given up, and another has taken its place
            self._known[id(value), detail] = value, described
            found[name] = described

    def _of(self, value: Any, detail: Detail, depth: int, room: int, above: tuple[int, ...]) -> Described:
        kind = type(value)
        self._steps += 1
        self._current = value
        self._left -= 1
        if value is None or kind in (bool, int, float, complex):
            return _number(value, type_name(kind))
        if self._left <= 0 or time.monotonic() > self._end:
            self.exhausted = True
            return self._other(value, "<left out>")
        if id(value) in above:
            return self._other(value, "<itself>")
        if self._times_stuck(value) > 1:
            return self._other(value, f"<{type_name(kind)} object that took too long>")
        if issubclass(kind, enum.Enum):
            return self._other(value, self._repr(value))
        if issubclass(kind, (int, float, complex)):
            return _number(value, type_name(kind))
        if issubclass(kind, str):
            return self._string(str.__str__(value), kind, detail)
        if issubclass(kind, (bytes, bytearray)):
            return Described(type_name(kind), "bytes", _bounded(repr(value[:_MAX_TEXT])), length=len(value))
        if tensors.is_tensor(value) or tensors.is_array(value):
            return self._tensor(value)
        if (number := _numpy_number(value)) is not None:
            return number
        return self._compound(value, detail, depth, room, (*above, id(value)))

    def _string(self, text: str, kind: type, detail: Detail) -> Described:
        shown = repr(text[:_MAX_TEXT])
        return Described(type_name(kind), "text", _bounded(shown), text[: detail.characters], len(text))

    def _compound(self, value: Any, detail: Detail, depth: int, room: int, above: tuple[int, ...]) -> Described:
        """`room` is for parts, and theirs, all together: shared out evenly, or the first of them would take it all."""
        kind, name = type(value), type_name(type(value))
        whole = parts(value)
        if whole is None:
            return self._other(value, self._repr(value))
        items: dict[str, Described] = {}
        if depth < detail.depth and room > 0:
            pairs = whole.first(min(detail.parts, room))
            for key, part in pairs:
                if self._left <= 0:
                    break
                text = key if isinstance(key, str) and whole.kind in ("object", "module") else self._key(key)
                items[_unused(text, items)] = self._of(part, detail, depth + 1, room // len(pairs) - 1, above)
        parameters = _parameters(value) if whole.kind == "module" else None
        if whole.kind == "module":
            text = self._module_text(value, parameters)
        elif whole.kind == "object":
            text = self._object_text(value, items)
        else:
            text = _container_text(kind, whole.kind, items, whole.length)
        length = None if whole.kind in ("object", "module") else whole.length
        return Described(name, whole.kind, text, length=length, items=items, parameters=parameters)

    def _object_text(self, value: Any, items: Mapping[str, Described]) -> str:
        if is_namedtuple(value) or _has_generated_repr(type(value)):
            # That would call the repr of all fields, of big tensors too.
            inside = ", ".join(f"{name}={item.text}" for name, item in items.items())
            return _bounded(f"{type(value).__qualname__}({inside})")
        return self._repr(value)

    def _module_text(self, value: Any, parameters: int | None) -> str:
        name = type(value).__qualname__
        children = len(value._modules)
        with_parameters = f", {parameters:,} parameters" if parameters else ""
        if children:
            return f"{name} of {counted(children, 'module')}{with_parameters}"
        return _bounded(f"{name}({self._guarded(value, value.extra_repr)}){with_parameters}")

    def _tensor(self, value: Any) -> Described:
        known = self._known.get((id(value), None))
        if known is None:
            known = self._known[id(value), None] = value, self._new_tensor(value)
        return known[1]

    def _new_tensor(self, value: Any) -> Described:
        is_tensor = tensors.is_tensor(value)
        device = str(value.device) if is_tensor else "cpu"
        local = tensors.local_part(value)
        why_not = "it took too long" if self._times_stuck(value) else tensors.why_unreadable(local)
        facts: dict[str, Any] = (
            {
                "shape": list(local.shape),
                "dtype": str(local.dtype).removeprefix("torch."),
                "note": f"no statistics: {why_not}",
            }
            if why_not
            else tensors.describe(local)
        )
        shape = tuple(facts.get("shape", ()))
        statistics: dict[str, Any] = {key: facts[key] for key in _STATISTICS if key in facts}
        described = TensorDescription(
            shape=shape,
            dtype=str(facts.get("dtype") or str(value.dtype).removeprefix("torch.")),
            device=device,
            **statistics,
            first_bad=self._first_bad(local, facts),
            requires_grad=bool(is_tensor and value.requires_grad),
            global_shape=None if local is value else tuple(int(size) for size in value.shape),
            kept=self._kept.get(id(value)),
            note=str(facts.get("note", "")),
        )
        number = _one_number(facts.get("values")) if math.prod(shape) == 1 else None
        text = _tensor_text(described, facts.get("values"))
        return Described(
            type_name(type(value)), "tensor" if is_tensor else "array", text, value=number, tensor=described
        )

    def _first_bad(self, tensor: Any, facts: Mapping[str, Any]) -> tuple[int, ...] | None:
        if facts.get("nan") or facts.get("inf") or facts.get("looked_at"):
            began = time.monotonic()
            try:
                return tensors.first_bad(tensor, self._searching / 2)
            except Exception:
                pass
            finally:
                self._searching -= time.monotonic() - began
        return None

    def _key(self, key: Any) -> str:
        if isinstance(key, (str, bytes, int, float)) or key is None:
            return _bounded(repr(key[:_MAX_TEXT] if isinstance(key, (str, bytes)) else key))
        return self._repr(key)

    def _repr(self, value: Any) -> str:
        kind: Any = type(value)
        if kind.__repr__ is object.__repr__:
            return f"<{type_name(kind)} object>"
        return self._guarded(value, lambda: repr(value)) or f"<{type_name(kind)} object>"

    def _guarded(self, value: Any, function: Callable[[], str]) -> str:
        """The text that user code gives, on one line; what went wrong in its place."""
        kind = type(value)
        if self._spent.get(kind, 0.0) >= _STUCK:
            return f"<{type_name(kind)} object, whose repr takes too long>"
        self._current = value
        began = time.monotonic()
        try:
            return _bounded(_ADDRESS.sub("", _SPACE.sub(" ", str(function())[: 10 * _MAX_TEXT]).strip()))
        except Exception as error:
            return f"<{type_name(kind)} object, whose repr raised {type(error).__name__}>"
        finally:
            self._spent[kind] = self._spent.get(kind, 0.0) + time.monotonic() - began

    def _times_stuck(self, value: Any) -> int:
        return self._stuck_in.get(id(value), (None, 0))[1]

    def _other(self, value: Any, text: str) -> Described:
        return Described(type_name(type(value)), "other", text)


def _number(value: Any, name: str) -> Described:
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > _BIG_INTEGER:
        return Described(name, "number", f"<integer of {value.bit_length():,} bits>")
    if isinstance(value, bool) or value is None:
        return Described(name, "number", repr(value), value)
    if isinstance(value, complex):
        return Described(name, "number", complex.__repr__(value))
    plain: int | float = int.__int__(value) if isinstance(value, int) else float.__float__(value)
    return Described(name, "number", _bounded(repr(plain)), plain)


def _numpy_number(value: Any) -> Described | None:
    generic = getattr(sys.modules.get("numpy"), "generic", None)
    if generic is None or not issubclass(type(value), generic) or value.dtype.kind not in "biuf":
        return None
    number = value.item()
    return Described(type_name(type(value)), "number", repr(number), number)


def _one_number(values: Any) -> int | float | bool | None:
    while isinstance(values, list) and len(values) == 1:
        values = values[0]
    return values if isinstance(values, (bool, int, float)) else None


def _tensor_text(tensor: TensorDescription, values: Any) -> str:
    shape = " × ".join(map(str, tensor.shape)) if tensor.shape else "scalar"
    what = f"{tensor.dtype} [{shape}]" if tensor.shape else tensor.dtype
    if tensor.device != "cpu":
        what += f" on {tensor.device}"
    if values is not None and len(text := str(values)) <= _MAX_TEXT // 2:
        return f"{what}: {text}"
    told = []
    if tensor.mean is not None:
        told.append(f"{tensor.min:.4g} … {tensor.max:.4g}, mean {tensor.mean:.4g}")
    told += [f"{count} {name}" for count, name in ((tensor.nan, "NaN"), (tensor.inf, "infinite")) if count]
    if tensor.first_bad is not None:
        told.append(f"first at {list(tensor.first_bad)}")
    if tensor.note:
        told.append(tensor.note)
    return _bounded(": ".join([what, ", ".join(told)] if told else [what]))


def _container_text(kind: type, sort: str, items: Mapping[str, Described], length: int) -> str:
    if length and not items:
        return f"{kind.__qualname__} of {length:,} item{'s' if length > 1 else ''}"
    left, right = "()" if kind is tuple else "[]" if sort == "sequence" else "{}"
    if kind not in (list, tuple, dict, set):
        left, right = f"{kind.__qualname__}({left}", f"{right})"
    pieces = [f"{name}: {item.text}" if sort == "mapping" else item.text for name, item in items.items()]
    if kind is tuple and length == 1:
        pieces[0] += ","
    inside, room = "", _MAX_TEXT - len(left) - len(right) - 3
    for number, piece in enumerate(pieces):
        joined = f"{inside}, {piece}" if number else piece
        if len(joined) > room:
            return f"{left}{joined[: max(len(inside), room // 2)].rstrip(', ')}, …{right}"
        inside = joined
    return f"{left}{inside}{', …' if len(items) < length else ''}{right}"


def _parameters(module: Any) -> int | None:
    try:
        return sum(int(tensors.local_part(parameter).numel()) for parameter in module.parameters())
    except Exception:
        return None


def _has_generated_repr(kind: type) -> bool:
    """Whether a dataclass prints itself by its fields."""
    return dataclasses.is_dataclass(kind) and bool(getattr(kind, "__dataclass_params__").repr)  # noqa: B009


def _unused(name: str, taken: Iterable[str]) -> str:
    candidate, number = name, 1
    while candidate in taken:
        number += 1
        candidate = f"{name} #{number}"
    return candidate


def _bounded(text: str) -> str:
    return text if len(text) <= _MAX_TEXT else text[: _MAX_TEXT - 1] + "…"
