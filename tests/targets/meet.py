"""A torchrun job that stops rank 3 at its fifth step: STEPS SECONDS TIMEOUT, the process group's in seconds."""

import datetime
import sys
import time

import torch
import torch.distributed as dist

import raytrain_debug

steps, seconds, timeout = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=timeout))
print(f"rank {dist.get_rank()} trains", flush=True)
for step in range(steps):
    value = torch.ones(1)
    dist.all_reduce(value)
    if step == 5:
        raytrain_debug.breakpoint(rank=3)
    time.sleep(seconds)
print(f"rank {dist.get_rank()} done {value.item():g}", flush=True)
dist.destroy_process_group()
