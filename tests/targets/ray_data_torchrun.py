"""Passes a dataset to Ray Train's local mode under torchrun, which refuses it."""

import ray.train
from ray.train.torch import TorchTrainer


class Dataset:
    """Stands for one of Ray Data's, whose making would start Ray in every rank."""


def main():
    trainer = TorchTrainer(
        lambda: None, scaling_config=ray.train.ScalingConfig(num_workers=0), datasets={"train": Dataset()}
    )
    trainer.fit()


if __name__ == "__main__":
    main()
