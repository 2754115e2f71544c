"""What a training function reports, tested: every epoch's metrics, and the checkpoints that Ray does not keep.

    pytest examples/test_training.py

The fixture `raytrain_run` comes with raytrain_debug. Nothing in the training function knows of it.
"""

import linear_single
import ray.train
from ray.train.torch import TorchTrainer


def fit(epochs: int) -> ray.train.Result:
    trainer = TorchTrainer(
        linear_single.train_loop,
        train_loop_config={"epochs": epochs, "batch_size": 32},
        scaling_config=ray.train.ScalingConfig(num_workers=0),
    )
    return trainer.fit()


def test_the_loss_falls_from_epoch_to_epoch(raytrain_run):
    fit(epochs=4)
    losses = [report.metrics["loss"] for report in raytrain_run.reports]
    assert len(losses) == 4
    assert losses == sorted(losses, reverse=True)


def test_every_checkpoint_holds_the_model_of_its_own_report(raytrain_run):
    fit(epochs=3)
    for report in raytrain_run.reports:
        weights = report.checkpoint.open()["model.pt"]
        assert weights["weight"].item() == report.metrics["slope"]
        assert weights["bias"].item() == report.metrics["offset"]
