"""Two ranks that wait for each other in the ways torch.distributed has, under short timeouts. `waits.py MODE SECONDS`.

`pause`: rank 1 stops at a breakpoint while rank 0 waits for it, once for each way. `missing`: rank 1 never comes
to them; rank 0 says how and after how long each failed. `late`: rank 1 comes to init_process_group SECONDS * 20 late.
"""

import datetime
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import raytrain_debug

mode, seconds = sys.argv[1], float(sys.argv[2])
limit = datetime.timedelta(seconds=seconds)
rank = int(os.environ["RANK"])
value = torch.ones(2)


def collective(group, model):
    dist.all_reduce(value, group=group)


def gradients(group, model):
    model(torch.ones(1, 4)).sum().backward()


def receive(group, model):
    dist.recv(value, 1, group=group) if rank == 0 else dist.send(value, 0, group=group)


def receive_later(group, model):
    if rank == 0:
        dist.irecv(value, 1, group=group).wait()
    else:
        dist.isend(value, 0, group=group).wait()


def barrier(group, model):
    dist.monitored_barrier(group, timeout=limit)


def make_group(group, model):
    dist.new_group(timeout=limit)


def paused(way, group, model):
    if rank == 1:
        time.sleep(0.5)  # rank 0 waits by now
        raytrain_debug.breakpoint()
    way(group, model)
    print(f"rank {rank} did {way.__name__}", flush=True)


def missed(way, group, model):
    start = time.monotonic()
    try:
        way(group, model)
        print(f"{way.__name__} came back", flush=True)
    except RuntimeError as error:
        print(
            f"{way.__name__} failed with RuntimeError after {time.monotonic() - start:.1f} s", type(error), flush=True
        )


def main():
    if mode == "late" and rank == 1:
        time.sleep(20 * seconds)
    dist.init_process_group("gloo", timeout=limit)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    own = dist.new_group(timeout=limit)
    others = [dist.new_group(timeout=limit) for _ in range(4)]
    ways = [collective, gradients, receive, receive_later, barrier, make_group]
    if mode == "pause":
        for way in ways:
            paused(way, own, model)
    if mode == "missing":
        if rank == 1:
            time.sleep(30 * seconds)
        # Each in a group of its own, for none is of use after a failure; what cuts all connections comes last.
        missed(collective, others[0], model)
        missed(gradients, None, model)
        missed(barrier, others[1], model)
        missed(make_group, None, model)
        missed(receive_later, others[2], model)
        missed(receive, others[3], model)
        os._exit(7)
    dist.destroy_process_group()
    print(f"rank {rank} done", flush=True)


main()
