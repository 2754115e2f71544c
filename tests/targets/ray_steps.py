"""Real Ray Train workers in step: `ray_steps.py WORKERS DIRECTORY [TIMEOUT]`, until the file DIRECTORY/go is there.

Each step is a collective of torch, whose group has that TIMEOUT, and every step is reported. What all processes have to
see lies in DIRECTORY: while `late-report-1` does, rank 1 does not come to its report, and so on.
"""

import os
import sys
import tempfile
import time

import ray.train
import torch
import torch.distributed as dist
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer


def step(index, rank):
    value = torch.full((2,), float(rank))
    dist.all_reduce(value)
    total = value[0].item()
    time.sleep(0.05)
    return total


def be_late(config, place, rank):
    while os.path.exists(f"{config['directory']}/late-{place}-{rank}"):
        time.sleep(0.05)


def train(config):
    rank = ray.train.get_context().get_world_rank()
    index, running = 0, True
    while running:
        be_late(config, "collective", rank)
        total = step(index, rank)
        everyone = torch.tensor([0 if os.path.exists(f"{config['directory']}/go") else 1])
        dist.all_reduce(everyone, op=dist.ReduceOp.MIN)
        running, index = bool(everyone.item()), index + 1
        be_late(config, "report", rank)
        ray.train.report({"index": index, "total": total})
    with tempfile.TemporaryDirectory() as directory:
        torch.save({"index": torch.tensor(index)}, f"{directory}/model.pt")
        ray.train.report({"index": index}, checkpoint=ray.train.Checkpoint.from_directory(directory))
    print(f"rank {rank} done after {index} steps", flush=True)


TorchTrainer(
    train,
    train_loop_config={"directory": sys.argv[2]},
    scaling_config=ScalingConfig(num_workers=int(sys.argv[1])),
    run_config=RunConfig(storage_path=sys.argv[2], failure_config=FailureConfig(max_failures=2)),
    torch_config=TorchConfig("gloo", timeout_s=int(sys.argv[3]) if len(sys.argv) > 3 else 1800),
).fit()
