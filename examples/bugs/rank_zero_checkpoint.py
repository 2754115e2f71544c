"""Rank 0 alone saves a model that is spread over the ranks. The bug is planted; docs/bugs.md finds it.

python -m raytrain_debug launch --nproc-per-node 2 examples/bugs/rank_zero_checkpoint.py
"""

import tempfile
from pathlib import Path

import ray.train
import torch
import torch.distributed as dist
from ray.train.torch import TorchTrainer

WORDS = 1000


class SpreadEmbedding(torch.nn.Module):
    """Each rank has a part of the vectors, and gives those of its words."""

    def __init__(self, rank, world_size):
        super().__init__()
        self.rank, self.world_size = rank, world_size
        self.part = torch.nn.Embedding(WORDS // world_size, 16)

    def forward(self, words):
        mine = words % self.world_size == self.rank
        vectors = torch.where(mine[:, None], self.part(words // self.world_size), torch.zeros(()))
        dist.all_reduce(vectors.detach())
        return vectors


def train_loop():
    context = ray.train.get_context()
    rank = context.get_world_rank()
    torch.manual_seed(rank)
    model = SpreadEmbedding(rank, context.get_world_size())
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    for epoch in range(2):
        words = torch.randint(WORDS, (256,), generator=torch.Generator().manual_seed(epoch))
        loss = model(words).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        checkpoint = None
        with tempfile.TemporaryDirectory() as directory:
            if rank == 0:  # as one does with replicas
                torch.save(model.state_dict(), Path(directory, "model.pt"))
                checkpoint = ray.train.Checkpoint.from_directory(directory)
            ray.train.report({"epoch": epoch, "loss": loss.item()}, checkpoint=checkpoint)


TorchTrainer(train_loop, scaling_config=ray.train.ScalingConfig(num_workers=0)).fit()
