"""Handwritten digits, data-parallel: real Ray Train under torchrun, in under a minute on two CPU cores.

    torchrun --nproc-per-node 2 examples/digits_ddp.py
    python -m raytrain_debug launch --nproc-per-node 2 examples/digits_ddp.py --epochs 5
    python -m raytrain_debug launch --ray examples/digits_ddp.py --num-workers 2

`num_workers=0` is Ray Train's local mode: the training function runs in this very process, a rank of torchrun's. With
more, Ray starts so many workers, on this machine or on a cluster, and the training function runs in each.
"""

import argparse
import tempfile
from pathlib import Path

import ray.train
import torch
from ray.train.torch import TorchTrainer, prepare_data_loader, prepare_model
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset


def load_split() -> tuple[TensorDataset, TensorDataset]:
    """1,797 images of 8 x 8 pixels in [0, 1]; the same fifth of them is for validation on every rank."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    validation, training = order[:360], order[360:]
    return TensorDataset(images[training], labels[training]), TensorDataset(images[validation], labels[validation])


def build_model() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 16, kernel_size=3, padding=1),
        torch.nn.ReLU(),
        torch.nn.Conv2d(16, 32, kernel_size=3, padding=1),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(32 * 4 * 4, 64),
        torch.nn.ReLU(),
        torch.nn.Linear(64, 10),
    )


def train_one_epoch(model, loader, optimizer) -> float:
    """The mean training loss of this rank's share of the data."""
    model.train()
    total = 0.0
    for images, labels in loader:
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item() * len(labels)
    return total / len(loader.sampler)


@torch.no_grad()
def validate(model, loader) -> float:
    """The share of the validation images that are recognised; every rank looks at all of them."""
    model.eval()
    correct = sum(int((model(images).argmax(dim=1) == labels).sum()) for images, labels in loader)
    return correct / len(loader.dataset)


def train_loop(config: dict) -> None:
    torch.manual_seed(0)
    context = ray.train.get_context()
    training, validation = load_split()
    train_loader = prepare_data_loader(DataLoader(training, batch_size=config["batch_size"], shuffle=True))
    validation_loader = DataLoader(validation, batch_size=360)
    model = prepare_model(build_model())
    optimizer = torch.optim.Adam(model.parameters(), lr=config["lr"])

    for epoch in range(config["epochs"]):
        if context.get_world_size() > 1:
            train_loader.sampler.set_epoch(epoch)
        loss = train_one_epoch(model, train_loader, optimizer)
        metrics = {"epoch": epoch, "loss": loss, "accuracy": validate(model, validation_loader)}
        with tempfile.TemporaryDirectory() as directory:
            torch.save(getattr(model, "module", model).state_dict(), Path(directory, "model.pt"))
            torch.save(optimizer.state_dict(), Path(directory, "optimizer.pt"))
            ray.train.report(metrics, checkpoint=ray.train.Checkpoint.from_directory(directory))
        if context.get_world_rank() == 0:
            print(f"epoch {epoch}: loss {loss:.4f}, accuracy {metrics['accuracy']:.3f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32, help="a rank")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--num-workers", type=int, default=0, help="Ray Train workers; 0 trains in this process")
    options = parser.parse_args()
    trainer = TorchTrainer(
        train_loop,
        train_loop_config=vars(options),
        scaling_config=ray.train.ScalingConfig(num_workers=options.num_workers),
    )
    result = trainer.fit()
    print(f"done: accuracy {result.metrics['accuracy']:.3f}", flush=True)


if __name__ == "__main__":
    main()
