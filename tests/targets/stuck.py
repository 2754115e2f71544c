"""A torchrun job without Ray that gets stuck once rank 0 has said "stuck": `stuck.py HOW`.

load: rank 1 sleeps in load_batch while the others wait in all_reduce. backward: it sleeps before DDP's backward.
exit: rank 1 returns, the others make a group with it. different: rank 1 is in a barrier. gil: it holds the Python lock.
breakpoint: rank 1 is at a breakpoint. feeder: its thread that brings values has ended. none: nobody is stuck, for ever.
"""

import ctypes
import queue
import sys
import threading
import time

import torch
import torch.distributed as dist

import raytrain_debug

how = sys.argv[1]


def load_batch():
    time.sleep(1000)


def reduce_mean(value):
    dist.all_reduce(value)
    return value / dist.get_world_size()


def feed(values):
    raise KeyError("nothing to load")


def be_odd():
    if how in ("load", "backward"):
        load_batch()
    elif how == "different":
        dist.barrier()
    elif how == "gil":
        ctypes.PyDLL(None).sleep(1000)
    elif how == "feeder":
        values = queue.Queue()
        loader = threading.Thread(target=feed, args=(values,), name="loader")
        loader.start()
        loader.join()
        values.get()
    elif how == "breakpoint":
        raytrain_debug.breakpoint()


def train():
    rank = dist.get_rank()
    loss = torch.tensor([float("nan") if rank == 1 else 0.25])
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 10))
    reduce_mean(loss.clone())
    print(f"rank {rank} is stuck", flush=True)
    if rank == 1 and how != "none":
        be_odd()
        if how == "exit":
            return
    if how == "exit":
        dist.new_group()
    if how == "backward":
        model(torch.ones(2, 64)).sum().backward()
    for _ in iter(int, 1 if how != "none" else 2):
        reduce_mean(loss.clone())
        time.sleep(0.05)


dist.init_process_group("gloo")
train()
