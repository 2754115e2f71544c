"""Two Ray Train workers; rank 1 raises in the first attempt, and stops at a breakpoint in the second.

`ray_attempts.py DIRECTORY`: in DIRECTORY, which all processes see, every attempt waits for a file `go-<attempt>`.
"""

import os
import sys
import time

import ray.train
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

import raytrain_debug


def train(config):
    rank = ray.train.get_context().get_world_rank()
    failed = os.path.join(config["directory"], "failed")
    attempt = int(os.path.exists(failed))
    ray.train.report({"attempt": attempt})
    while not os.path.exists(os.path.join(config["directory"], f"go-{attempt}")):
        time.sleep(0.02)  # a breakpoint goes here
    if attempt == 0:
        if rank == 1:
            open(failed, "w").close()
            raise RuntimeError("planted in the first attempt")
        time.sleep(600)
    raytrain_debug.breakpoint(rank=1)
    ray.train.report({"attempt": attempt, "done": True})


DataParallelTrainer(
    train,
    train_loop_config={"directory": sys.argv[1]},
    scaling_config=ScalingConfig(num_workers=2),
    run_config=RunConfig(storage_path=sys.argv[1], failure_config=FailureConfig(max_failures=1)),
).fit()
print("the driver goes on", flush=True)
