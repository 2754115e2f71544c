"""A checkpoint that each rank of a real job reports its own parts of, as post-mortem, comparison and Python see it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import raytrain_debug

SCRIPT = """
import tempfile
import ray.train
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from ray.train import Checkpoint, ScalingConfig
from ray.train.torch import TorchTrainer
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor


def train():
    mesh = init_device_mesh("cpu", (2,))
    rank = dist.get_rank()
    for step in range(2):
        weight = distribute_tensor(torch.arange(8.0).reshape(4, 2) + step, mesh, [Shard(0)])
        with tempfile.TemporaryDirectory() as directory:
            dcp.save({"model": {"weight": weight, "frozen": torch.ones(3)}}, checkpoint_id=directory)
            ray.train.report({"step": step}, checkpoint=Checkpoint.from_directory(directory))
    dist.barrier()
    if rank == 1:
        raise ValueError("planted")


TorchTrainer(train, scaling_config=ScalingConfig(num_workers=0)).fit()
"""


@pytest.mark.parametrize("options", [(), ("--faithful",)], ids=["plain", "faithful"])
def test_parts_that_ranks_report_are_read_as_one_checkpoint(launch, tmp_path, options):
    script = tmp_path / "sharded.py"
    script.write_text(SCRIPT)
    job = launch(*options, "--nproc-per-node", "2", script)
    assert job.wait() != 0, job.output

    def command(*arguments, typed=""):
        done = subprocess.run(
            [sys.executable, "-m", "raytrain_debug", *arguments],
            cwd=job.cwd,
            input=typed,
            capture_output=True,
            text=True,
            timeout=60,
        )
        return done.stdout, done.stderr

    told = json.loads(command("postmortem", "--json")[0])
    usable = "The checkpoint of ranks 0-1 from report 1, in parts, is usable: 2 tensors, all of them finite."
    assert usable in told["verdict"]["summary"]
    run = raytrain_debug.load_run(str(job.paths.directory))
    for rank in range(2):
        snapshot = run.ranks[rank].reports[-1].checkpoint
        assert sum(file.path.endswith(".distcp") for file in snapshot.files) == 1
        assert snapshot.open()[".metadata"]["model.weight"].flatten().tolist() == [float(at) for at in range(1, 9)]
    out, _ = command("compare", "--reports", "0,1", "--rank", "1")
    assert "Reports 0 and 1 of rank 1 differ: 1 of 2 tensors" in out
    out, _ = command("compare")
    assert "At report 1, ranks 0-1 agree" in out
    assert "ranks 0-1 hold parts of one checkpoint, no replicas" in out
    out, err = command("postmortem", "--shell", typed="p checkpoint['.metadata']['model.weight'].sum()\nq\n")
    assert "(rank 1) tensor(36.)" in out, err
