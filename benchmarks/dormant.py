"""A job nobody debugs, under `launch` and under plain torchrun: whole run, and steps per second. Budgets 1.05, 0.99.

    python benchmarks/dormant.py [--pairs 5] [--steps 3000]

The two are run in turn, so that a machine whose speed drifts treats both alike; figures are medians.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

STEPS = """
import os, sys, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

def main(steps):
    dist.init_process_group("gloo")
    layers = [torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data, target = torch.randn(32, 64), torch.randn(32, 8)
    for step in range(steps):
        if step == steps // 10:
            dist.barrier()
            start = time.perf_counter()
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(data), target).backward()
        optimizer.step()
    dist.barrier()
    if dist.get_rank() == 0:
        print("rate", (steps - steps // 10) / (time.perf_counter() - start), flush=True)
    # torch 2.13 aborts now and then while a DDP model and its process group go, without us as well.
    os._exit(0)

main(int(sys.argv[1]))
"""


def measure(command: list[str], directory: str) -> tuple[float, float]:
    """Seconds of the whole run, and steps per second."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    start = time.perf_counter()
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - start
    found = re.search(r"rate ([\d.]+)", done.stdout)
    if done.returncode or not found:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return seconds, float(found[1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=3000)
    options = parser.parse_args()
    target = ["--nproc-per-node", "2", "steps.py", str(options.steps)]
    plain_command = [sys.executable, "-m", "torch.distributed.run", *target]
    our_command = [sys.executable, "-m", "raytrain_debug", "launch", "--base-port", "auto", *target]
    plain, ours = [], []
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "steps.py").write_text(STEPS)
        measure(plain_command, directory)  # warm the file caches
        for _ in range(options.pairs):
            plain.append(measure(plain_command, directory))
            ours.append(measure(our_command, directory))
    table = Table("dormant run, 2 ranks", "plain torchrun", "launch", "ratio", "budget")
    for row, (name, unit, budget) in enumerate((("whole run", "s", "<= 1.05"), ("steps per second", "/s", ">= 0.99"))):
        before, after = (statistics.median(each[row] for each in runs) for runs in (plain, ours))
        ratio = statistics.median(mine[row] / theirs[row] for mine, theirs in zip(ours, plain, strict=True))
        table.add_row(name, f"{before:.2f} {unit}", f"{after:.2f} {unit}", f"{ratio:.3f}", budget)
    Console().print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
