"""What a metrics-only report record costs, beside Ray's own report: medians of one process, budget 60 µs.

    python benchmarks/report_cost.py [--reports 5000]

A real training function of Ray's local mode reports four numbers; Ray's log line is discarded.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from raytrain_debug.run import layout, reader
from raytrain_debug.shim import ray_hooks
from raytrain_debug.shim.guard import Guard
from raytrain_debug.shim.recorder import RecorderConfig

BUDGET = 60e-6


def durations(count: int) -> list[float]:
    """Seconds of each of `count` reports, made by a training function in local mode."""
    import ray.train
    from ray.train.torch import TorchTrainer

    logging.getLogger("ray.train").setLevel(logging.ERROR)
    taken: list[float] = []

    def train() -> None:
        for step in range(count):
            metrics = {"step": step, "loss": 1.0 / (step + 1), "accuracy": 0.5, "learning_rate": 1e-3}
            start = time.perf_counter()
            ray.train.report(metrics)
            taken.append(time.perf_counter() - start)

    TorchTrainer(train, scaling_config=ray.train.ScalingConfig(num_workers=0)).fit()
    return taken[count // 10 :]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--reports", type=int, default=5000)
    options = parser.parse_args()
    plain = statistics.median(durations(options.reports))
    with tempfile.TemporaryDirectory() as directory:
        run = layout.create_run(Path(directory, layout.ROOT_NAME))
        ray_hooks.install(RecorderConfig(run, 0, 0, Guard(run.errors)))
        recorded = durations(options.reports)
        written, _ = reader.tail_reports(run.rank(0), 1)
    if written != options.reports:
        raise SystemExit(f"{options.reports} reports were made and {written} recorded")
    cost = statistics.median(recorded) - plain
    table = Table("metrics-only report", "median µs", "budget")
    table.add_row("Ray's own", f"{plain * 1e6:.1f}", "")
    table.add_row("recorded as well", f"{plain * 1e6 + cost * 1e6:.1f}", "")
    table.add_row("the record", f"{cost * 1e6:.1f}", f"<= {BUDGET * 1e6:.0f}")
    Console().print(table)
    return 0 if cost <= BUDGET else 1


if __name__ == "__main__":
    raise SystemExit(main())
