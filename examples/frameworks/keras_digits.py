"""Handwritten digits with Keras on TensorFlow: Ray Train's local mode in one process.

    python -m raytrain_debug launch --no-torchrun examples/frameworks/keras_digits.py

Keras traces its training step into a graph, in which no debugger stops; `run_eagerly` makes it run as Python.
"""

import argparse

import keras
import ray.train
from ray.train.tensorflow import TensorflowTrainer
from ray.train.tensorflow.keras import ReportCheckpointCallback
from sklearn.datasets import load_digits


class Progress(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        print(f"epoch {epoch}: loss {logs['loss']:.4f}", flush=True)


def train_loop(config: dict) -> None:
    keras.utils.set_random_seed(0)
    images, labels = load_digits(return_X_y=True)
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(32, activation="relu"), keras.layers.Dense(10)])
    model.compile(
        optimizer=keras.optimizers.Adam(2e-3),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        run_eagerly=config["eager"],
    )
    model.fit(
        images / 16,
        labels,
        batch_size=64,
        epochs=config["epochs"],
        verbose=0,
        callbacks=[Progress(), ReportCheckpointCallback()],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--eager", action="store_true", help="run the training step as Python, for breakpoints in it")
    options = parser.parse_args()
    trainer = TensorflowTrainer(
        train_loop, train_loop_config=vars(options), scaling_config=ray.train.ScalingConfig(num_workers=0)
    )
    result = trainer.fit()
    print(f"done: accuracy {result.metrics['accuracy']:.3f}", flush=True)


if __name__ == "__main__":
    main()
