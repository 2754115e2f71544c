"""Handwritten digits with PyTorch Lightning, in one process or on ranks of torchrun.

    python -m raytrain_debug launch --no-torchrun examples/frameworks/lightning_digits.py
    python -m raytrain_debug launch --nproc-per-node 2 examples/frameworks/lightning_digits.py

Ray's RayTrainReportCallback asks Ray for its job id, so every rank needs a Ray of its own: a small one will do.
"""

import argparse

import pytorch_lightning as pl
import ray
import ray.train
import ray.train.lightning
import torch
from ray.train.torch import TorchTrainer
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset


class Classifier(pl.LightningModule):
    def __init__(self, lr: float = 2e-3, width: int = 32) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.layers = torch.nn.Sequential(torch.nn.Linear(64, width), torch.nn.ReLU(), torch.nn.Linear(width, 10))

    def training_step(self, batch, index):
        images, labels = batch
        loss = torch.nn.functional.cross_entropy(self.layers(images), labels)
        self.log("loss", loss, on_step=False, on_epoch=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.hparams.lr)


def digits() -> TensorDataset:
    images, labels = load_digits(return_X_y=True)
    return TensorDataset(torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels))


def train_loop(config: dict) -> None:
    pl.seed_everything(0)
    trainer = pl.Trainer(
        max_epochs=config["epochs"],
        accelerator="cpu",
        devices="auto",
        strategy=ray.train.lightning.RayDDPStrategy(),
        plugins=[ray.train.lightning.RayLightningEnvironment()],
        callbacks=[ray.train.lightning.RayTrainReportCallback()],
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
        logger=False,
    )
    trainer = ray.train.lightning.prepare_trainer(trainer)
    trainer.fit(Classifier(), DataLoader(digits(), batch_size=64, shuffle=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()
    ray.init(address="local", num_cpus=1, include_dashboard=False)
    trainer = TorchTrainer(
        train_loop, train_loop_config=vars(options), scaling_config=ray.train.ScalingConfig(num_workers=0)
    )
    result = trainer.fit()
    print(f"done: loss {result.metrics['loss']:.3f}", flush=True)


if __name__ == "__main__":
    main()
