"""What parts a value of the user's has, found without running code of the user's where Python lets us."""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import sys
import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

# Their own methods are called, not those of a subclass.
_CONTAINERS: tuple[tuple[Any, str], ...] = (
    (list, "sequence"),
    (tuple, "sequence"),
    (collections.deque, "sequence"),
    (set, "set"),
    (frozenset, "set"),
    (dict, "mapping"),
    (types.MappingProxyType, "mapping"),
)
# Classes of the standard library whose attributes are what they are about; by name, to import none for this.
_PLAIN_OBJECTS = frozenset(
    {"argparse.Namespace", "types.SimpleNamespace", "collections.UserDict", "collections.UserList", "BaseException"}
)
_NO_PARTS = (type, types.ModuleType, types.FunctionType, types.MethodType, types.GeneratorType, types.CodeType)


@dataclass(frozen=True)
class Parts:
    """The parts of a value: `kind` as in a Described, how many there are, and (key, part) pairs."""

    kind: str
    length: int
    pairs: Callable[[], Iterable[tuple[Any, Any]]]

    def first(self, count: int) -> list[tuple[Any, Any]]:
        """The first `count` pairs. Another thread may be changing the value: then as many as could be had."""
        found: list[tuple[Any, Any]] = []
        try:
            found.extend(itertools.islice(self.pairs(), count))
        except RuntimeError:
            pass
        return found


def parts(value: Any) -> Parts | None:
    """The parts of a container, object or torch module; None for what has none to show."""
    kind = type(value)
    if is_namedtuple(value):
        return Parts("object", len(value), lambda: zip(kind._fields, tuple.__iter__(value), strict=False))
    for base, name in _CONTAINERS:
        if issubclass(kind, base):
            return Parts(name, base.__len__(value), functools.partial(_pairs, base, value))
    if is_torch_module(value):
        named = _module_parts(value)
        return Parts("module", len(named), lambda: iter(named))
    if not _is_worth_opening(kind):
        return None
    found = attributes(value)
    return Parts("object", len(found), lambda: iter(found)) if found else None


def attributes(value: Any) -> list[tuple[str, Any]]:
    """Instance attributes by name: those of `__dict__` and `__slots__`, names with an underscore last."""
    found: dict[str, Any] = {}
    for base in reversed(type(value).__mro__):
        slots = base.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else tuple(slots):
            member = base.__dict__.get(name)
            if isinstance(member, types.MemberDescriptorType):
                try:
                    found[name] = member.__get__(value)
                except AttributeError:
                    pass  # not set
    try:
        own = object.__getattribute__(value, "__dict__")
    except AttributeError:
        own = {}
    if type(own) is dict:
        found.update((str(name), item) for name, item in list(own.items()))
    names = sorted(found, key=lambda name: name.startswith("_"))
    return [(name, found[name]) for name in names if not name.startswith("__")]


def is_namedtuple(value: Any) -> bool:
    """Whether `value` is a tuple whose items have names."""
    kind = type(value)
    return issubclass(kind, tuple) and isinstance(getattr(kind, "_fields", None), tuple)


def is_torch_module(value: Any) -> bool:
    """Whether `value` is a torch.nn.Module that has been initialised."""
    module = getattr(getattr(sys.modules.get("torch"), "nn", None), "Module", None)
    return isinstance(module, type) and issubclass(type(value), module) and "_modules" in value.__dict__


def type_name(kind: type) -> str:
    """`int` for a builtin class, else with its module; the script's own classes without `__main__`."""
    module = str(kind.__module__)
    return kind.__qualname__ if module in ("builtins", "__main__") else f"{module}.{kind.__qualname__}"


def is_plain_variable(name: str, value: Any, in_module: bool) -> bool:
    """Whether a person looking at a frame wants to see this variable: not what Python or an `import` has put there.

    Of module-level code (`in_module`), its functions and classes are left out too.
    """
    if name.startswith((".", "__")) or isinstance(value, types.ModuleType):
        return False
    return not (in_module and isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType)))


def _pairs(base: Any, value: Any) -> Iterable[tuple[Any, Any]]:
    found: Iterable[tuple[Any, Any]] = base.items(value) if hasattr(base, "items") else enumerate(base.__iter__(value))
    return found


def _module_parts(module: Any) -> list[tuple[str, Any]]:
    """Parameters and buffers, submodules, and the attributes that the user has set."""
    own = module.__dict__
    inside = [own["_parameters"], own["_buffers"], own["_modules"]]
    named = [(str(name), part) for table in inside for name, part in list(table.items()) if part is not None]
    return named + [(name, part) for name, part in attributes(module) if not name.startswith("_")]


def _is_worth_opening(kind: type) -> bool:
    """Not classes, functions and the like, nor objects of the standard library, whose insides tell nothing."""
    if issubclass(kind, _NO_PARTS):
        return False
    if dataclasses.is_dataclass(kind) or any(type_name(base) in _PLAIN_OBJECTS for base in kind.__mro__):
        return True
    package = str(kind.__module__).partition(".")[0]
    return package == "__main__" or package not in sys.stdlib_module_names
