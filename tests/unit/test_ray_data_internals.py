"""Ray Data is described and left alone; what we rely on beyond its public API breaks one of these if it changes."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytest.importorskip("ray.data")

# One Ray for all of it. Planning to read is what a source may take its time for: it must not happen for a description.
DESCRIBED = """
import json, os, sys
import ray, ray.data, ray.train
from ray.data.datasource import Datasource, ReadTask
from ray.data.block import BlockMetadata
from ray.train import ScalingConfig
from ray.train.v2._internal.execution import train_fn_utils
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
import pyarrow as pa
from raytrain_debug.shim import ray_data_internals, ray_internals
from raytrain_debug.shim.context import Shards

ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)
planned = []

class Source(Datasource):
    def estimate_inmemory_data_size(self):
        return None

    def get_read_tasks(self, parallelism, *args, **kwargs):
        planned.append(parallelism)
        table = pa.table({"x": [1, 2, 3]})
        metadata = BlockMetadata(num_rows=3, size_bytes=24, input_files=None, exec_stats=None)
        return [ReadTask(lambda: [table], metadata, schema=table.schema)]

def described(dataset):
    return shards.describe({"it": dataset})["it"]

shards = Shards()
items = ray.data.from_items([{"x": 1, "y": "a"}, {"x": 2, "y": "b"}])
lazy = ray.data.read_datasource(Source())
mapped = items.map_batches(lambda batch: batch)
planned.clear()
found = {
    "items": described(items),
    "materialized": described(mapped.materialize()),
    "lazy": described(lazy),
    "planned": list(planned),
    "mapped": described(mapped),
}
for dataset in (lazy, mapped):
    list(dataset.iter_batches())
planned.clear()
found |= {"lazy after": described(lazy), "mapped after": described(mapped), "planned after": list(planned)}
found["not one"] = described(object())

@ray.remote
def prepare():
    import raytrain_debug
    raytrain_debug.breakpoint()  # would wait for a debugger
    return os.path.exists(".raytrain_debug")

found["is a rank"] = ray.get(prepare.remote(), timeout=60)

seen = []
ray_internals.wrap_reports(
    train_fn_utils, lambda wrapped, instance, args, kwargs: seen.append(ray_data_internals.dataset_shards(instance))
)
for datasets in ({"train": items}, None):
    DataParallelTrainer(
        lambda: ray.train.report({"same": ray.train.get_dataset_shard("train") is items if datasets else None}),
        scaling_config=ScalingConfig(num_workers=0),
        datasets=datasets,
    ).fit()
found["shards"] = [[name for name in each if each[name] is items] for each in seen]
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    done = subprocess.run(
        [sys.executable, "-c", DESCRIBED],
        cwd=tmp_path_factory.mktemp("described"),
        capture_output=True,
        text=True,
        check=False,
        timeout=150,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_local_mode_keeps_its_datasets_by_name(found):
    assert found["shards"] == [["train"], []]


def test_a_dataset_in_memory_tells_schema_rows_and_bytes(found):
    for name, kind in (("items", "MaterializedDataset"), ("materialized", "MaterializedDataset")):
        described = found[name]
        assert (described["kind"], described["schema"], described["rows"]) == (kind, {"x": "int64", "y": "string"}, 2)
        assert described["bytes"] > 0


def test_a_dataset_that_has_not_run_is_neither_run_nor_planned(found):
    nothing = {"kind": "Dataset", "schema": None, "rows": None, "bytes": None}
    assert found["lazy"] == nothing
    assert found["mapped"]["schema"] is None
    assert found["planned"] == []


def test_a_dataset_that_has_run_tells_what_came_out(found):
    assert found["lazy after"] == {"kind": "Dataset", "schema": {"x": "int64"}, "rows": 3, "bytes": 24}
    assert (found["mapped after"]["schema"], found["mapped after"]["rows"]) == ({"x": "int64", "y": "string"}, 2)
    assert found["planned after"] == []


def test_what_is_no_dataset_is_told_as_an_error(found):
    assert found["not one"] == {"kind": "object", "$error": "AttributeError"}


def test_a_breakpoint_in_a_process_that_prepares_data_makes_it_no_rank(found):
    assert found["is a rank"] is False
