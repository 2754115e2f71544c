"""Handwritten digits with JAX, saved by Orbax: Ray Train's local mode in one process.

    python -m raytrain_debug launch --no-torchrun examples/frameworks/jax_digits.py

What `jax.jit` compiles is run by XLA, in which no debugger stops: set breakpoints around it, or JAX_DISABLE_JIT=1.
"""

import argparse
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import orbax.checkpoint
import ray.train
from ray.train.v2.jax import JaxTrainer
from sklearn.datasets import load_digits


def init(key) -> dict:
    first, second = jax.random.split(key)
    return {
        "hidden": {"w": jax.random.normal(first, (64, 32)) * 0.1, "b": jnp.zeros(32)},
        "out": {"w": jax.random.normal(second, (32, 10)) * 0.1, "b": jnp.zeros(10)},
    }


def loss_of(params: dict, images, labels):
    hidden = jax.nn.relu(images @ params["hidden"]["w"] + params["hidden"]["b"])
    logits = hidden @ params["out"]["w"] + params["out"]["b"]
    return -jnp.mean(jax.nn.log_softmax(logits)[jnp.arange(len(labels)), labels])


@jax.jit
def step(params: dict, images, labels, lr):
    loss, gradients = jax.value_and_grad(loss_of)(params, images, labels)
    return loss, jax.tree.map(lambda each, gradient: each - lr * gradient, params, gradients)


def train_loop(config: dict) -> None:
    images, labels = load_digits(return_X_y=True)
    images, labels = jnp.asarray(images) / 16, jnp.asarray(labels)
    params = init(jax.random.key(0))
    for epoch in range(config["epochs"]):
        for start in range(0, len(labels), 64):
            batch = slice(start, start + 64)
            loss, params = step(params, images[batch], labels[batch], config["lr"])
        with tempfile.TemporaryDirectory() as directory:
            with orbax.checkpoint.StandardCheckpointer() as checkpointer:
                checkpointer.save(Path(directory, "state"), {"params": params, "epoch": epoch})
            ray.train.report(
                {"epoch": epoch, "loss": float(loss)}, checkpoint=ray.train.Checkpoint.from_directory(directory)
            )
        print(f"epoch {epoch}: loss {loss:.4f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=0.5)
    options = parser.parse_args()
    trainer = JaxTrainer(
        train_loop, train_loop_config=vars(options), scaling_config=ray.train.ScalingConfig(num_workers=0)
    )
    result = trainer.fit()
    print(f"done: loss {result.metrics['loss']:.3f}", flush=True)


if __name__ == "__main__":
    main()
