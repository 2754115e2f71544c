"""Merging and rendering the stacks of many simulated ranks, from the answers' JSON on. Budget: 4,096 ranks in 2 s.

    python benchmarks/stacks_scale.py [--ranks 4096] [--places 64]

Every rank has 40 frames; they stand at `--places` different places, and in the last row all at different ones. Memory
is the peak of Python's allocations above the answers themselves.
"""

from __future__ import annotations

import argparse
import io
import json
import time
import tracemalloc
from typing import Any

from rich.console import Console
from rich.table import Table

from raytrain_debug.across.stacks import fold, merge, read_sample, stacks_of
from raytrain_debug.render.stacks import View, render

DEPTH = 40
USER, LIBRARY = 3, 1


def answer(place: int) -> dict[str, Any]:
    """What a rank answers that stands at `place`: frames in common, its own ones, then torch's."""
    common = [["/job/train.py", 100 + depth, f"level_{depth}", USER] for depth in range(20)]
    own = [[f"/job/data_{place % 7}.py", place, f"load_{depth}", USER] for depth in range(10)]
    torch = [["/lib/torch/distributed/distributed_c10d.py", depth, "all_reduce", LIBRARY] for depth in range(10)]
    thread = {"name": "MainThread", "training": True, "waiting_in": "all_reduce", "peers": True, "mark": place}
    return {
        "state": "running",
        "started": {"0": 1000},
        "pending": [["0", "all_reduce", 1000, 5.0]],
        "work": [1.0, 10],
        "threads": [{**thread, "frames": common + own + torch}],
    }


def measure(ranks: int, places: int) -> tuple[float, float, float]:
    """Seconds to merge, seconds to render, and peak memory in bytes, starting from one answer a rank."""
    answers: dict[int, Any] = {rank: json.loads(json.dumps(answer(rank % places))) for rank in range(ranks)}
    start = time.perf_counter()
    sample = read_sample(answers)
    merge(fold(stacks_of(sample)))
    merged = time.perf_counter() - start
    start = time.perf_counter()
    console = Console(file=io.StringIO(), width=120)
    for part in render(sample, View("/job")):
        console.print(part)
    rendered = time.perf_counter() - start
    del sample, console
    tracemalloc.start()
    render(read_sample(answers), View("/job"))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return merged, rendered, peak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=4096)
    parser.add_argument("--places", type=int, default=64)
    options = parser.parse_args()
    table = Table("ranks", "places", "merge", "render", "both", "peak memory", "a rank")
    cases = [
        (options.ranks // 4, options.places),
        (options.ranks // 2, options.places),
        (options.ranks, options.places),
    ]
    for ranks, places in [*cases, (options.ranks, options.ranks)]:
        merged, rendered, peak = measure(ranks, places)
        table.add_row(
            str(ranks),
            str(places),
            f"{merged:.2f} s",
            f"{rendered:.2f} s",
            f"{merged + rendered:.2f} s",
            f"{peak / 2**20:.1f} MiB",
            f"{peak / ranks / 1024:.1f} KiB",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
