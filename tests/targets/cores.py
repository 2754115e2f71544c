"""Four ranks, of which rank 1 raises while the others sleep, wait in a collective, and compute."""

import threading
import time

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record


def work(rank, pair):
    mine = {"rank": rank, "values": torch.full((3,), float(rank))}
    if rank == 1:
        dist.monitored_barrier()
        time.sleep(0.3)
        raise RuntimeError(f"rank {rank} breaks")
    dist.monitored_barrier()
    if rank == 2:
        total = torch.ones(3)
        dist.all_reduce(total, group=pair)
    while rank == 3:
        sum(range(100))
    time.sleep(60)
    return mine


@record
def main():
    dist.init_process_group("gloo")
    pair = dist.new_group([2, 3])
    threading.Thread(target=threading.Event().wait, name="my helper", daemon=True).start()
    work(dist.get_rank(), pair)


main()
