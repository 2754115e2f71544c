"""Replicas that should be equal are not, for a seed differs. The bug is planted; docs/bugs.md finds it.

python -m raytrain_debug launch --nproc-per-node 2 examples/bugs/drifting_replicas.py
"""

import tempfile
from pathlib import Path

import ray.train
import torch
import torch.distributed as dist
from ray.train.torch import TorchTrainer


def average_gradients(model):
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


def train_loop():
    torch.manual_seed(ray.train.get_context().get_world_rank())  # other data on each rank, and another model
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(3):
        for _ in range(20):
            inputs = torch.randn(16, 4)
            loss = (model(inputs) - inputs.sum(dim=1, keepdim=True)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            average_gradients(model)
            optimizer.step()
        with tempfile.TemporaryDirectory() as directory:
            torch.save(model.state_dict(), Path(directory, "model.pt"))
            checkpoint = ray.train.Checkpoint.from_directory(directory)
            ray.train.report({"epoch": epoch, "loss": loss.item()}, checkpoint=checkpoint)


TorchTrainer(train_loop, scaling_config=ray.train.ScalingConfig(num_workers=0)).fit()
