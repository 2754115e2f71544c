"""Steps per second before a debugger comes, while it is attached, and after it left. Budget: after / before >= 0.95.

    python benchmarks/detach_speed.py [--rounds 3] [--seconds 4]

One run of two ranks tells all figures: each round measures it alone, attaches to rank 1 with a breakpoint in the file
that the steps run through (on a line never reached, so that the debugger has reason to trace), measures, detaches and
measures again. The step is a small DistributedDataParallel step with some plain Python around it, which is what tracing
slows. Steps per second of rank 1's CPU time are the figure that other work on the machine disturbs least.
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

from raytrain_debug.dap.session import Session

STEPS = """
import os, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

def mix(value):
    return (value * 1103515245 + 12345) % 2147483648

def prepare(seed):
    for _ in range(2000):
        seed = mix(seed)
    if seed < 0:
        print("never")
    return seed

def main():
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(64, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data, target, going = torch.randn(32, 64), torch.randn(32, 8), torch.ones(1)
    steps = 0
    while going.item() > 0:
        prepare(steps)
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(data), target).backward()
        optimizer.step()
        going.fill_(not os.path.exists("stop"))
        dist.all_reduce(going, op=dist.ReduceOp.MIN)
        steps += 1
        if steps % 20 == 0 and dist.get_rank() == 1:
            print("step", steps, time.monotonic(), time.process_time(), flush=True)
    dist.destroy_process_group()

main()
"""
NEVER = next(number for number, line in enumerate(STEPS.splitlines(), 1) if 'print("never")' in line)


class Job:
    """The run, and how fast it goes."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.log = directory, directory / "log"
        (directory / "steps.py").write_text(STEPS)
        command = [sys.executable, "-m", "raytrain_debug", "launch", "--base-port", "auto"]
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                [*command, "--nproc-per-node", "2", "steps.py"],
                cwd=directory,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self._find(r"step 400 ")
        self.port = int(self._find(r"gateway ready on [^:]+:(\d+)")[1]) + 1

    def rate(self, seconds: float) -> tuple[float, float]:
        """Steps per second over the `seconds` from now, and per second of CPU time."""
        time.sleep(0.5)  # what has just changed has settled
        start = time.monotonic()
        time.sleep(seconds)
        end = time.monotonic()
        found = re.findall(r"step (\d+) ([\d.]+) ([\d.]+)\n", self.log.read_text())
        steps = [(int(n), float(at), float(cpu)) for n, at, cpu in found if start <= float(at) <= end]
        done, passed, worked = (last - first for first, last in zip(steps[0], steps[-1], strict=True))
        return done / passed, done / worked

    def attach(self) -> Session:
        session = Session("127.0.0.1", self.port)
        session.attach(timeout=30)
        session.set_breakpoint(str(self.directory / "steps.py"), line=NEVER)
        return session

    def stop(self) -> None:
        (self.directory / "stop").touch()
        self.process.wait(30)

    def _find(self, pattern: str) -> re.Match[str]:
        end = time.monotonic() + 90
        while time.monotonic() < end and self.process.poll() is None:
            if found := re.search(pattern, self.log.read_text()):
                return found
            time.sleep(0.05)
        raise SystemExit(f"no {pattern!r} in:\n{self.log.read_text()}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0)
    options = parser.parse_args()
    rounds = []
    with tempfile.TemporaryDirectory() as directory:
        job = Job(Path(directory))
        try:
            for _ in range(options.rounds):
                before = job.rate(options.seconds)
                session = job.attach()
                during = job.rate(options.seconds)
                session.disconnect()
                rounds.append((before, during, job.rate(options.seconds)))
        finally:
            job.stop()
    table = Table("step rate, 2 ranks, one run", "before", "attached", "after", "after / before", "budget")
    for row, name in enumerate(("steps per second", "steps per CPU second")):
        medians = [statistics.median(each[row] for each in column) for column in zip(*rounds, strict=True)]
        ratio = statistics.median(after[row] / before[row] for before, _, after in rounds)
        table.add_row(name, *(f"{each:.0f}" for each in medians), f"{ratio:.3f}", ">= 0.95")
    Console().print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
