"""Breakpoints in the code of a job. `breakpoints.py KIND [TIMEOUT]`; each rank prints what it has passed."""

import datetime
import sys
import time

import torch
import torch.distributed as dist

import raytrain_debug


def visit(i, loss):
    if kind == "one-rank":
        raytrain_debug.breakpoint(rank=1, when=loss.isnan().any())
    elif kind == "counted":
        raytrain_debug.breakpoint(rank=[1], skip=2, times=1)
    elif kind == "builtin" and i == 3 and dist.get_rank() == 1:
        breakpoint()
    return i


def main():
    timeout = float(sys.argv[2]) if len(sys.argv) > 2 else 1800.0
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=timeout))
    value = torch.ones(2)
    for i in range(8):
        dist.all_reduce(value)
        value /= dist.get_world_size()
        loss = torch.tensor([float("nan") if i == 3 and dist.get_rank() == 1 else 0.5])
        visit(i, loss)
        time.sleep(0.02)
    print(f"rank {dist.get_rank()} done {value.tolist()}", flush=True)
    dist.destroy_process_group()


kind = sys.argv[1]
main()
