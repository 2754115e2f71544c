"""Handwritten digits with Hugging Face Transformers: a tiny ViT, made from its configuration, in one process.

    python -m raytrain_debug launch --no-torchrun examples/frameworks/transformers_digits.py

Nothing is downloaded.
"""

import argparse
import tempfile

import ray.train
import torch
from ray.train.huggingface.transformers import RayTrainReportCallback, prepare_trainer
from ray.train.torch import TorchTrainer
from sklearn.datasets import load_digits
from transformers import (
    Trainer,
    TrainerCallback,
    TrainingArguments,
    ViTConfig,
    ViTForImageClassification,
    set_seed,
)


def digits() -> list[dict]:
    images, labels = load_digits(return_X_y=True)
    pixels = torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
    return [{"pixel_values": image, "labels": int(label)} for image, label in zip(pixels, labels, strict=True)]


def build_model() -> ViTForImageClassification:
    return ViTForImageClassification(
        ViTConfig(
            image_size=8,
            patch_size=2,
            num_channels=1,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=64,
            num_labels=10,
        )
    )


class Progress(TrainerCallback):
    """A breakpoint in here stops after every step."""

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step % 10 == 0:
            print(f"step {state.global_step} of {state.max_steps}", flush=True)


def train_loop(config: dict) -> None:
    set_seed(0)
    with tempfile.TemporaryDirectory() as directory:
        arguments = TrainingArguments(
            output_dir=directory,
            num_train_epochs=config["epochs"],
            per_device_train_batch_size=32,
            learning_rate=5e-3,
            save_strategy="epoch",
            logging_strategy="epoch",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
        )
        trainer = Trainer(model=build_model(), args=arguments, train_dataset=digits())
        trainer.add_callback(Progress())
        trainer.add_callback(RayTrainReportCallback())
        prepare_trainer(trainer).train()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()
    trainer = TorchTrainer(
        train_loop, train_loop_config=vars(options), scaling_config=ray.train.ScalingConfig(num_workers=0)
    )
    result = trainer.fit()
    print(f"done: loss {result.metrics['loss']}", flush=True)


if __name__ == "__main__":
    main()
