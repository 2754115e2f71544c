"""A rank loads its data for ever, and the others wait for it. The bug is planted; docs/bugs.md finds it.

python -m raytrain_debug launch --nproc-per-node 3 examples/bugs/endless_loading.py
"""

import random

import torch
import torch.distributed as dist

LENGTHS = {0: [80, 120, 200], 1: [60, 90, 300], 2: [10, 15, 20]}  # of the texts in each rank's shard


def pack(lengths, size):
    """Texts of at least `size` tokens together, and no more than 8 of them: others are dealt until that fits."""
    while True:
        packed = random.choices(lengths, k=8)
        if sum(packed) >= size:
            return packed


def train(rank):
    for step in range(1000):
        batch = pack(LENGTHS[rank], size=512)
        tokens = torch.tensor(float(sum(batch)))
        dist.all_reduce(tokens)
        if rank == 0 and step % 100 == 0:
            print(f"step {step}: {tokens.item():.0f} tokens", flush=True)


dist.init_process_group("gloo")
train(dist.get_rank())
dist.destroy_process_group()
