"""Ranks report different numbers of times. The bug is planted; docs/bugs.md finds it.

python -m raytrain_debug launch --nproc-per-node 2 examples/bugs/uneven_reports.py

Local mode (`num_workers=0`) does not mind. With workers `ray.train.report` is a barrier, and this hangs or fails.
"""

import ray.train
from ray.train.torch import TorchTrainer

BATCHES = {0: 40, 1: 25}  # in each rank's shard


def train_loop():
    rank = ray.train.get_context().get_world_rank()
    for batch in range(1, BATCHES[rank] + 1):
        loss = 1.0 / batch
        if batch % 10 == 0:
            ray.train.report({"batch": batch, "loss": loss})


TorchTrainer(train_loop, scaling_config=ray.train.ScalingConfig(num_workers=0)).fit()
