"""Ends differently at each attempt: rank 1 raises, then rank 0 is killed, then both finish. `elastic.py [ray]`.

With `ray` each attempt reports twice before that. Every attempt goes on only once a file `go-<attempt>` is there.
"""

import os
import signal
import sys
import time

attempt, rank = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), int(os.environ["RANK"])


def train(config=None):
    if "ray" in sys.argv:
        import ray.train

        for step in range(2):
            ray.train.report({"step": step, "attempt": attempt})
    while not os.path.exists(f"go-{attempt}"):
        time.sleep(0.02)  # a breakpoint goes here
    if (attempt, rank) == (0, 1):
        raise RuntimeError("planted in the first attempt")
    if (attempt, rank) == (1, 0):
        os.kill(os.getpid(), signal.SIGKILL)
    if attempt < 2:
        time.sleep(60)
    print(f"rank {rank} finishes attempt {attempt}", flush=True)


if "ray" in sys.argv:
    from ray.train import ScalingConfig
    from ray.train.torch import TorchTrainer

    TorchTrainer(train, scaling_config=ScalingConfig(num_workers=0)).fit()
else:
    train()
