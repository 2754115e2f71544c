"""Reports as fast as it can, each second time with a checkpoint, and prints each report's number when it is through."""

import itertools
import logging
import os
import sys
import tempfile
from pathlib import Path

import ray.train
from ray.train.torch import TorchTrainer

SIZE = int(sys.argv[1])
LIMIT = int(sys.argv[2]) if len(sys.argv) > 2 else None


def content(number: int) -> bytes:
    return b"%08d" % number * (SIZE // 8)


def train() -> None:
    logging.getLogger("ray.train").setLevel(logging.ERROR)
    for number in itertools.islice(itertools.count(), LIMIT):
        if number % 2:
            ray.train.report({"number": number})
        else:
            with tempfile.TemporaryDirectory(dir=os.environ["CHECKPOINTS"]) as directory:
                Path(directory, "model.pt").write_bytes(content(number))
                ray.train.report({"number": number}, checkpoint=ray.train.Checkpoint.from_directory(directory))
        os.write(1, b"%d\n" % number)


TorchTrainer(train, scaling_config=ray.train.ScalingConfig(num_workers=0)).fit()
