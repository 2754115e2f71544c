"""Ray Train's local mode under torchrun in which only rank 0 reports: `reports.py COUNT`."""

import sys

import ray.train
from ray.train.torch import TorchTrainer


def train_loop(config):
    if ray.train.get_context().get_world_rank() == 0:
        for step in range(config["count"]):
            ray.train.report({"step": step})


TorchTrainer(
    train_loop,
    train_loop_config={"count": int(sys.argv[1])},
    scaling_config=ray.train.ScalingConfig(num_workers=0),
).fit()
