"""Two ranks that reduce a number every step; rank 1 raises in the third. Its group's timeout is two seconds."""

import datetime
import sys
import time

import torch
import torch.distributed as dist


def step(rank, number):
    total = torch.ones(1)
    dist.all_reduce(total)
    rate = 0.1 * number
    if rank == 1 and number == 3:
        raise ValueError(f"rank {rank} breaks")
    return total.item() * rate


def main():
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=2))
    rank = dist.get_rank()
    for number in range(1000):
        step(rank, number)
        time.sleep(float(sys.argv[1]))


main()
