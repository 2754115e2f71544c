"""Prints, as JSON, all that a script can see of Ray's own behaviour around reports; the same with and without us."""

import json
import os
import tempfile
from pathlib import Path

import ray.train
from ray.train.torch import TorchTrainer

seen: list = []


def train() -> str:
    seen.append(["before", ray.train.get_checkpoint()])
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "model.pt").write_bytes(b"weights")
        Path(directory, "model.pt").chmod(0o644)
        checkpoint = ray.train.Checkpoint.from_directory(directory)
        metrics = {"loss": 1.0}
        seen.append(["returns", ray.train.report(metrics, checkpoint=checkpoint)])
        seen.append(["same checkpoint", ray.train.get_checkpoint() is checkpoint])
        seen.append(["files", sorted(os.listdir(directory)), os.stat(f"{directory}/model.pt").st_mode])
        seen.append(["links", os.stat(f"{directory}/model.pt").st_nlink])
    ray.train.report(metrics={"loss": 0.5}, checkpoint=None, checkpoint_dir_name="name")
    seen.append(["metrics only", ray.train.get_checkpoint()])
    for bad in ({"validation": True}, {"unknown": 1}):
        try:
            ray.train.report({"loss": 1}, **bad)
        except Exception as error:
            seen.append([type(error).__name__, str(error)])
    ray.train.report(["not", "a", "dict"])
    return "returned"


result = TorchTrainer(train, scaling_config=ray.train.ScalingConfig(num_workers=0)).fit()
seen.append(["result", result.metrics, result.checkpoint, result.path, result.error, result.return_value])
print(json.dumps(seen, default=repr))
