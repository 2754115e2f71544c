"""Handwritten digits with LightGBM: Ray Train's local mode in one process.

    python -m raytrain_debug launch --no-torchrun examples/frameworks/lightgbm_digits.py

Every round is a report; the booster is saved every fifth, and at the end.
"""

import argparse

import lightgbm
import ray.train
from ray.train.lightgbm import LightGBMTrainer, RayTrainReportCallback
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split


def say_progress(environment) -> None:
    """LightGBM calls this after every round; a breakpoint in here stops there."""
    (_, _, error, _) = environment.evaluation_result_list[0]
    print(
        f"round {environment.iteration}: {error:.3f} of the validation images are taken for another digit", flush=True
    )


def train_loop(config: dict) -> None:
    images, labels = load_digits(return_X_y=True)
    train_x, validation_x, train_y, validation_y = train_test_split(images, labels, random_state=0)
    training = lightgbm.Dataset(train_x, train_y)
    parameters = {
        "objective": "multiclass",
        "num_class": 10,
        "metric": "multi_error",
        "num_leaves": 7,
        "num_threads": 1,
        "verbose": -1,
    }
    lightgbm.train(
        parameters,
        training,
        num_boost_round=config["rounds"],
        valid_sets=[training.create_valid(validation_x, validation_y)],
        valid_names=["validation"],
        callbacks=[say_progress, RayTrainReportCallback(frequency=5)],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=12)
    options = parser.parse_args()
    trainer = LightGBMTrainer(
        train_loop, train_loop_config=vars(options), scaling_config=ray.train.ScalingConfig(num_workers=0)
    )
    result = trainer.fit()
    print(f"done: error {result.metrics['validation-multi_error']:.3f}", flush=True)


if __name__ == "__main__":
    main()
