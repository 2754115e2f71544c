"""Real Ray Train workers with nothing but a loop: `ray_plain.py WORKERS DIRECTORY`, until DIRECTORY/go is there."""

import os
import sys
import time

import ray.train
from ray.train import RunConfig, ScalingConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer


def train(config):
    rank = ray.train.get_context().get_world_rank()
    turn = 0
    while not os.path.exists(os.path.join(config["directory"], "go")):
        turn += 1
        time.sleep(0.02)
        if turn == 3:
            breakpoint()
    ray.train.report({"rank": rank, "turn": turn})


DataParallelTrainer(
    train,
    train_loop_config={"directory": sys.argv[2]},
    scaling_config=ScalingConfig(num_workers=int(sys.argv[1])),
    run_config=RunConfig(storage_path=sys.argv[2]),
).fit()
print("the driver goes on", flush=True)
