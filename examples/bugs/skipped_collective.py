"""A rank skips a collective, and the job hangs long after. The bug is planted; docs/bugs.md finds it.

python -m raytrain_debug launch --nproc-per-node 3 --hang-after 2 examples/bugs/skipped_collective.py
"""

import torch
import torch.distributed as dist


def load_batch(rank, step):
    """120 samples dealt out to the ranks in parts of 16, the last part a short one."""
    return torch.arange(120)[16 * (3 * step + rank) :][:16].float()


def average(loss):
    dist.all_reduce(loss)
    return loss / dist.get_world_size()


def train(rank):
    used = 0
    for epoch in range(50):
        for step in range(3):
            batch = load_batch(rank, step)
            if len(batch) == 0:
                continue  # nothing left for this rank
            loss = average((batch / 120).square().mean())
            used += 1
        if rank == 0:
            print(f"epoch {epoch}: loss {loss.item():.3f}", flush=True)
    dist.barrier()


dist.init_process_group("gloo")
train(dist.get_rank())
dist.destroy_process_group()
