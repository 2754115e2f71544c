"""A torchrun job without Ray: STEPS all_reduces, a little apart. `steps.py STEPS [SECONDS [TIMEOUT]]`."""

import datetime
import sys
import time

import torch
import torch.distributed as dist


def step(i, value):
    dist.all_reduce(value)
    local = float(value[0]) / dist.get_world_size()
    time.sleep(seconds)
    return local


def main():
    timeout = float(sys.argv[3]) if len(sys.argv) > 3 else 1800.0
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=timeout))
    print(f"rank {dist.get_rank()} trains", flush=True)
    for i in range(int(sys.argv[1])):
        value = torch.ones(2)
        last = step(i, value)
    print(f"rank {dist.get_rank()} done {last}", flush=True)
    dist.destroy_process_group()


seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 0.1
main()
