"""Contexts of many ranks told once: what all have in common, then the rest of each."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

Context = Mapping[str, Any]


def shared(contexts: Mapping[int, Context]) -> list[tuple[list[int], Context]]:
    """What all ranks have in common, with all ranks; then the rest, ranks with an equal one together.

    `contexts` by rank. A part with nothing in it is left out. NaN equals NaN.
    """
    if not contexts:
        return []
    first, *others = contexts.values()
    common = {
        name: value
        for name, value in first.items()
        if all(name in other and _key(other[name]) == _key(value) for other in others)
    }
    groups: dict[str, tuple[list[int], Context]] = {}
    for rank, context in contexts.items():
        own = {name: value for name, value in context.items() if name not in common}
        groups.setdefault(_key(own), ([], own))[0].append(rank)
    return [(ranks, values) for ranks, values in ((list(contexts), common), *groups.values()) if values]


def _key(value: Any) -> str:
    """Equal for values that read the same, NaN included."""
    return json.dumps(value, sort_keys=True, default=repr)
