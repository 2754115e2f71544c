"""One rank's loss becomes NaN, and a step later all ranks' weights are. The bug is planted; docs/bugs.md finds it.

python -m raytrain_debug launch --nproc-per-node 3 examples/bugs/nan_loss.py
"""

import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def load_batch(rank, step):
    """Lengths in metres, and what is to be learned from them."""
    lengths = torch.rand(16, 1, generator=torch.Generator().manual_seed(3 * step + rank)) + 0.5
    if (rank, step) == (1, 12):
        lengths[3] = 0  # a broken sensor
    return lengths, 2 * lengths.log()


def train(rank):
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(2000):
        lengths, targets = load_batch(rank, step)
        loss = (model(lengths.log()) - targets).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 5 == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)
        time.sleep(0.02)


torch.manual_seed(0)
dist.init_process_group("gloo")
train(dist.get_rank())
dist.destroy_process_group()
