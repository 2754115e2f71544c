"""What we rely on in Ray Data that is no public API (of Ray Train: ray_internals.py): all of it, with a test for each.

Ray 2.51 to 2.60: what answers a training function's calls in local mode has `_dataset_shards`, the datasets by name.
What a dataset knows of itself is in its `_logical_plan.dag`, an operator with `infer_schema()`, `infer_metadata()` and
`post_order_iter()` over those before it. One that has a property `_cached_output_metadata` without a value still has to
ask its source, unless its `output_data()` is there. Once the dataset has run, it is in its `_cache` (not in older
versions).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_PLANNED = "_cached_output_metadata"


@dataclass(frozen=True)
class DatasetFacts:
    """What a dataset knows of itself, None for what it does not: types of columns by name, rows, bytes in memory."""

    schema: dict[str, str] | None
    rows: int | None
    size: int | None


def dataset_shards(reporter: Any) -> Mapping[str, Any]:
    """The datasets that local mode gives its one process, by name; `reporter` is what `report` is a method of."""
    found = getattr(reporter, "_dataset_shards", None)
    return found if isinstance(found, Mapping) else {}


def facts_of(dataset: Any) -> DatasetFacts:
    """What `dataset` knows without being run, and without asking its source for anything (files, a database)."""
    dag, cache = dataset._logical_plan.dag, getattr(dataset, "_cache", None)
    schema = rows = size = None
    if cache is not None:
        schema, rows, size = cache.get_schema(dag), cache.get_num_rows(dag), cache.get_size_bytes(dag)
    if _nothing_to_ask(dag):
        metadata = dag.infer_metadata()
        schema = dag.infer_schema() if schema is None else schema
        rows = metadata.num_rows if rows is None else rows
        size = metadata.size_bytes if size is None else size
    return DatasetFacts(_types(schema), rows, size)


def _nothing_to_ask(dag: Any) -> bool:
    """Whether no operator would have to plan its read first, which a source answers in whatever time it takes."""
    return all(
        not hasattr(type(each), _PLANNED) or _PLANNED in vars(each) or each.output_data() is not None
        for each in dag.post_order_iter()
    )


def _types(schema: Any) -> dict[str, str] | None:
    """What Arrow's schema and Ray Data's own have in common."""
    try:
        return dict(zip(map(str, schema.names), map(str, schema.types), strict=True))
    except (AttributeError, TypeError, ValueError):
        return None
