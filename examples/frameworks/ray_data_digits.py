"""Handwritten digits from Ray Data: the training function of local mode reads a dataset that Ray's workers prepare.

    python -m raytrain_debug launch --no-torchrun examples/frameworks/ray_data_digits.py

Ray's worker processes are no ranks. In local mode Ray Train gives datasets to one process only, never to torchrun's.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
import ray
import ray.data
import ray.train
import torch
from ray.train.torch import TorchTrainer, prepare_model
from sklearn.datasets import load_digits


def brighten(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Brightness in [0, 1]; runs in Ray's workers."""
    return {"image": (batch["image"] / 16).astype("float32"), "label": batch["label"]}


def digits() -> ray.data.Dataset:
    images, labels = load_digits(return_X_y=True)
    rows = ray.data.from_items(
        [{"image": image, "label": int(label)} for image, label in zip(images, labels, strict=True)]
    )
    return rows.map_batches(brighten)


def train_loop(config: dict) -> None:
    torch.manual_seed(0)
    shard = ray.train.get_dataset_shard("train")
    model = prepare_model(torch.nn.Linear(64, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for epoch in range(config["epochs"]):
        total = rows = 0
        for batch in shard.iter_torch_batches(batch_size=128):
            loss = torch.nn.functional.cross_entropy(model(batch["image"]), batch["label"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total, rows = total + loss.item() * len(batch["label"]), rows + len(batch["label"])
        with tempfile.TemporaryDirectory() as directory:
            torch.save(model.state_dict(), Path(directory, "model.pt"))
            metrics = {"epoch": epoch, "loss": total / rows, "rows": rows}
            ray.train.report(metrics, checkpoint=ray.train.Checkpoint.from_directory(directory))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()
    ray.init(address="local", num_cpus=2, include_dashboard=False)
    trainer = TorchTrainer(
        train_loop,
        train_loop_config=vars(options),
        scaling_config=ray.train.ScalingConfig(num_workers=0),
        datasets={"train": digits()},
    )
    result = trainer.fit()
    print(f"done: loss {result.metrics['loss']:.3f}", flush=True)


if __name__ == "__main__":
    main()
