"""The whole `ray.train.get_context()` state, and the datasets of a rank, as plain values."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Mapping
from typing import Any

from raytrain_debug.run import codec
from raytrain_debug.shim import ray_data_internals, ray_internals

_MAX_ITEMS = 1_000
_MAX_TEXT = 10_000


def describe_context(context: Any) -> dict[str, Any]:
    """What every public `get_*` getter of `context` returns, by its name without `get_`, in terms of JSON.

    A getter that raises, as the deprecated ones do, is `{"$error": its type}`. Only getters of the object are called:
    functions of the module `ray.train` may communicate between ranks.
    """
    result: dict[str, Any] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in dir(context):
            if not name.startswith("get_"):
                continue
            try:
                getter = getattr(context, name)
                if callable(getter):
                    result[name[len("get_") :]] = _plain(getter())
            except Exception as error:
                result[name[len("get_") :]] = codec.error(error)
    return result


class Shards:
    """The Ray Data datasets of one rank, described as far as they know themselves; none is run for it."""

    def __init__(self) -> None:
        self._whole: dict[str, tuple[weakref.ref[Any], dict[str, Any]]] = {}  # all is known, and stays

    def describe(self, shards: Mapping[str, Any]) -> dict[str, Any]:
        """Of each dataset, by name: `kind`, `schema` (types of columns by name), `rows`, `bytes`; None for unknown."""
        return {str(name): self._describe(str(name), dataset) for name, dataset in list(shards.items())}

    def _describe(self, name: str, dataset: Any) -> dict[str, Any]:
        known, description = self._whole.get(name, (None, {}))
        if known is not None and known() is dataset:
            return description
        try:
            facts = ray_data_internals.facts_of(dataset)
        except Exception as error:
            return {"kind": type(dataset).__name__, **codec.error(error)}
        description = {
            "kind": type(dataset).__name__,
            "schema": codec.plain(facts.schema, max_items=_MAX_ITEMS, max_text=_MAX_TEXT),
            "rows": facts.rows,
            "bytes": facts.size,
        }
        if None not in (facts.schema, facts.rows, facts.size):
            self._whole[name] = weakref.ref(dataset), description
        return description


def _plain(value: Any) -> Any:
    place = ray_internals.storage_place(value)
    return codec.plain(value if place is None else place, max_items=_MAX_ITEMS, max_text=_MAX_TEXT)
