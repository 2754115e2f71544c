"""Values as a tree that a person opens level by level: what a core describes, what a checkpoint holds, results."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from raytrain_debug.errors import RaytrainDebugError
from raytrain_debug.postmortem.opened import OpenCheckpoint, Part
from raytrain_debug.postmortem.recorded import Recorded, Tensors, description, valued
from raytrain_debug.run.records import Described, TensorDescription

_MAX_CHILDREN = 1_000
MAX_TEXT = 10_000  # characters
_CONTAINERS = (list, tuple, set, frozenset)


@dataclass(frozen=True)
class Node:
    """A value with a name; `expression` evaluates to it ("" where none does), `children` is None where it has none."""

    name: str
    text: str
    type: str = ""
    expression: str = ""
    children: Callable[[], list[Node]] | None = None


def of_described(name: str, described: Described, tensors: Tensors, expression: str = "") -> Node:
    """A value as a core describes it."""
    has_parts = bool(described.items) or described.tensor is not None
    return Node(
        name,
        described.text,
        described.type,
        expression,
        (lambda: _described_parts(described, tensors, expression)) if has_parts else None,
    )


def of_value(name: str, value: Any, expression: str = "", text: str | None = None) -> Node:
    """A value of this process; `text` in place of its repr."""
    if isinstance(value, Recorded):
        return of_described(name, *description(value), expression)
    shown = _text(value) if text is None else text
    return Node(name, shown, type(value).__qualname__, expression, _opener(value, expression))


def note(text: str) -> Node:
    """A line for the person in place of values."""
    return Node("", text)


def _opener(value: Any, expression: str) -> Callable[[], list[Node]] | None:
    if isinstance(value, OpenCheckpoint):
        return lambda: [_file(value, path, f"{expression}[{path!r}]") for path in value]
    if _is_tensor(value):
        return lambda: _tensor_parts(value, expression)
    if _stands_for_another(value):
        return None
    if isinstance(value, Mapping) and len(value):
        return lambda: _mapping_parts(value, expression)
    if isinstance(value, _CONTAINERS) and value:
        indexed = isinstance(value, (list, tuple))
        return lambda: _listed(
            (of_value(str(at), item, f"{expression}[{at}]" if indexed and expression else ""))
            for at, item in enumerate(value)
        )
    return None


def _mapping_parts(value: Mapping[Any, Any], expression: str) -> list[Node]:
    def nodes() -> Iterator[Node]:
        for key in value:
            name = key if isinstance(key, str) else repr(key)
            inside = f"{expression}[{key!r}]" if expression else ""
            try:
                yield of_value(name, value[key], inside)
            except RaytrainDebugError as error:
                yield Node(name, str(error))

    return _listed(nodes())


def _file(checkpoint: OpenCheckpoint, path: str, expression: str) -> Node:
    """A file of a checkpoint; it is opened only when the person opens the node."""

    def children() -> list[Node]:
        try:
            part = checkpoint[path]
        except RaytrainDebugError as error:
            return [note(f"{error}{f' ({error.remedy})' if error.remedy else ''}")]
        if not isinstance(part, Part):
            return [note("no format with tensors that is known here")]
        return _mapping_parts(part, expression)

    return Node(path, f"{checkpoint.size(path):,} bytes", "file", expression, children)


def _described_parts(described: Described, tensors: Tensors, expression: str) -> list[Node]:
    if described.tensor is not None:
        nodes = _facts(described.tensor)
        if described.tensor.kept is not None:
            nodes.append(_kept_values(described, tensors, expression))
        return nodes
    nodes = [
        of_described(name, item, tensors, _part(described, name, expression)) for name, item in described.items.items()
    ]
    if described.parameters is not None:
        nodes.append(Node("(parameters)", f"{described.parameters:,}"))
    if described.length is not None and described.length > len(described.items):
        nodes.append(note(f"{described.length - len(described.items):,} more were not kept"))
    return nodes


def _part(described: Described, name: str, expression: str) -> str:
    if not expression or described.kind == "set":
        return ""
    if described.kind in ("object", "module"):
        return f"{expression}.{name}" if name.isidentifier() else f"{expression}[{name!r}]"
    return f"{expression}[{name}]"


def _kept_values(described: Described, tensors: Tensors, expression: str) -> Node:
    try:
        return Node("values", bounded_repr(valued(described, tensors)), described.type, expression)
    except RaytrainDebugError as error:
        return Node("values", str(error))


def _tensor_parts(tensor: Any, expression: str) -> list[Node]:
    from raytrain_debug.postmortem.tensors import statistics

    found = statistics(tensor)
    rows: list[tuple[str, Any]] = [("shape", found.shape), ("dtype", found.dtype)]
    for name in ("min", "max", "mean", "std", "norm", "zeros", "nan", "inf", "first_bad", "note"):
        value = getattr(found, name)
        if value not in (None, ""):
            rows.append((name, value))
    return [
        *(Node(name, _number(value)) for name, value in rows),
        Node("values", bounded_repr(tensor), "Tensor", expression),
    ]


def _facts(tensor: TensorDescription) -> list[Node]:
    """A described tensor's numbers, those that are known."""
    names = ("shape", "dtype", "device", "min", "max", "mean", "std", "nan", "inf", "first_bad", "looked_at")
    rows = [(name, getattr(tensor, name)) for name in (*names, "requires_grad", "global_shape", "note")]
    return [Node(name, _number(value)) for name, value in rows if value not in (None, "")]


def _listed(nodes: Iterable[Node]) -> list[Node]:
    """The first of `nodes`, and that there are more."""
    rest = iter(nodes)
    found = list(itertools.islice(rest, _MAX_CHILDREN))
    more = sum(1 for _ in itertools.islice(rest, 1))
    return [*found, note(f"only the first {_MAX_CHILDREN:,} are listed")] if more else found


def _number(value: Any) -> str:
    if isinstance(value, float) and math.isfinite(value):
        return f"{value:.6g}"
    return str(list(value)) if isinstance(value, tuple) else str(value)


def bounded_repr(value: Any, most: int = MAX_TEXT) -> str:
    """The repr of a value, at most `most` characters of it; that it failed, if it did."""
    try:
        text = repr(value)
    except Exception as error:
        return f"<its repr raised {type(error).__name__}>"
    return text if len(text) <= most else text[: most - 1] + "…"


def _is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _text(value: Any) -> str:
    """A value in a few words; a tensor's numbers where they are few."""
    if _stands_for_another(value):
        return str(value.get("repr") or f"<{value.get('$error')}>")
    if not _is_tensor(value):
        return bounded_repr(value)
    what = f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    few = value.numel() <= 8 and value.layout is sys.modules["torch"].strided
    return f"{what}: {value.tolist()}" if few else what


def _stands_for_another(value: Any) -> bool:
    """Whether a report has this for a value that JSON could not hold."""
    return isinstance(value, dict) and ("$type" in value or "$error" in value)
