"""Handwritten digits with XGBoost: Ray Train's local mode in one process.

    python -m raytrain_debug launch --no-torchrun examples/frameworks/xgboost_digits.py

Every round is a report; the booster is saved every fifth, and at the end.
"""

import argparse

import ray.train
import xgboost
from ray.train.xgboost import RayTrainReportCallback, XGBoostTrainer
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split


class Progress(xgboost.callback.TrainingCallback):
    """Says how far it is; a breakpoint in here stops after every round."""

    def after_iteration(self, model, epoch, evals_log):
        error = evals_log["validation"]["merror"][-1]
        print(f"round {epoch}: {error:.3f} of the validation images are taken for another digit", flush=True)
        return False  # go on


def train_loop(config: dict) -> None:
    images, labels = load_digits(return_X_y=True)
    train_x, validation_x, train_y, validation_y = train_test_split(images, labels, random_state=0)
    training = xgboost.DMatrix(train_x, train_y)
    validation = xgboost.DMatrix(validation_x, validation_y)
    parameters = {"objective": "multi:softprob", "num_class": 10, "eval_metric": "merror", "max_depth": 3, "nthread": 1}
    xgboost.train(
        parameters,
        training,
        num_boost_round=config["rounds"],
        evals=[(validation, "validation")],
        verbose_eval=False,
        callbacks=[Progress(), RayTrainReportCallback(frequency=5)],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=12)
    options = parser.parse_args()
    trainer = XGBoostTrainer(
        train_loop, train_loop_config=vars(options), scaling_config=ray.train.ScalingConfig(num_workers=0)
    )
    result = trainer.fit()
    print(f"done: error {result.metrics['validation-merror']:.3f}", flush=True)


if __name__ == "__main__":
    main()
