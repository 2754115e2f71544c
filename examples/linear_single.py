"""A line through noisy points: Ray Train's local mode in one process, in a few seconds.

python examples/linear_single.py
python -m raytrain_debug launch --no-torchrun examples/linear_single.py --epochs 5
"""

import argparse
import tempfile
from pathlib import Path

import ray.train
import torch
from ray.train.torch import TorchTrainer, prepare_data_loader, prepare_model
from torch.utils.data import DataLoader, TensorDataset

SLOPE, OFFSET = 3.0, -1.0


def points(count: int = 512) -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(count, 1, generator=generator) * 2 - 1
    noise = torch.randn(count, 1, generator=generator) * 0.05
    return TensorDataset(x, SLOPE * x + OFFSET + noise)


def train_loop(config: dict) -> None:
    torch.manual_seed(0)
    loader = prepare_data_loader(DataLoader(points(), batch_size=config["batch_size"], shuffle=True))
    model = prepare_model(torch.nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(config["epochs"]):
        if ray.train.get_context().get_world_size() > 1:
            loader.sampler.set_epoch(epoch)
        total = 0.0
        for x, y in loader:
            loss = torch.nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(x)
        metrics = {
            "epoch": epoch,
            "loss": total / len(loader.dataset),
            "slope": model.weight.item(),
            "offset": model.bias.item(),
        }
        with tempfile.TemporaryDirectory() as directory:
            torch.save(model.state_dict(), Path(directory, "model.pt"))
            ray.train.report(metrics, checkpoint=ray.train.Checkpoint.from_directory(directory))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32)
    options = parser.parse_args()
    trainer = TorchTrainer(
        train_loop, train_loop_config=vars(options), scaling_config=ray.train.ScalingConfig(num_workers=0)
    )
    metrics = trainer.fit().metrics
    print(f"done: y = {metrics['slope']:.2f} x + {metrics['offset']:.2f}", flush=True)


if __name__ == "__main__":
    main()
