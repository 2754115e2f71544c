"""Summary of a large checkpoint: its time against reading the file once, and the memory it needs.

    python benchmarks/checkpoint_summary.py [--gib 1] [--format torch|safetensors] [--directory DIR]

Both are measured with the file in the page cache and with the cache dropped for it. The summary's budget: memory for
one tensor, time near reading the file once.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import save_file

from raytrain_debug.postmortem.checkpoints import summarise


def main() -> None:
    """Write a checkpoint, measure, print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, default=1.0)
    parser.add_argument("--format", choices=("torch", "safetensors"), default="torch")
    parser.add_argument("--directory", help="where to write the checkpoint")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.directory) as name:
        directory = Path(name)
        (directory / "warm").mkdir()
        write(directory / "warm", args.format, 1 / 1024)
        summarise(directory / "warm")  # imports and threads are no part of the measure
        big = directory / "big"
        big.mkdir()
        path = write(big, args.format, args.gib)
        result: dict[str, object] = {"gib": args.gib, "format": args.format, "tensor_mib": 64}
        for state in ("cached", "cold"):
            read_s, _ = measured(path, state, lambda: read(path))
            summary_s, peak = measured(path, state, lambda: summarise(big))
            result[state] = {
                "read_once_s": round(read_s, 2),
                "summary_s": round(summary_s, 2),
                "ratio": round(summary_s / read_s, 2),
                "peak_memory_growth_mib": peak,
            }
        print(json.dumps(result, indent=2))


def write(directory: Path, form: str, gib: float) -> Path:
    """A checkpoint of 64 MiB tensors and one of a quarter of the whole, as an embedding may be."""
    total = int(gib * 2**28)  # elements
    sizes = [total // 4] + [2**24] * (total * 3 // 4 // 2**24) or [total]
    state = {f"layer{at}.weight": torch.randn(size) for at, size in enumerate(sizes)}
    path = directory / ("model.pt" if form == "torch" else "model.safetensors")
    torch.save(state, path) if form == "torch" else save_file(state, path)
    return path


def read(path: Path) -> None:
    """Read the file once into one buffer."""
    buffer = bytearray(1 << 22)
    with open(path, "rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


def measured(path: Path, state: str, work: Callable[[], object]) -> tuple[float, int]:
    """Seconds that `work` takes, best of 3, and how many MiB the process grew by at most."""
    seconds, peaks = [], []
    for _ in range(3):
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            if state == "cold":
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            else:
                read(path)
        before = memory("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # the peak counts from now on
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
        peaks.append(memory("VmHWM") - before)
    return min(seconds), max(peaks)


def memory(field: str) -> int:
    """A field of /proc/self/status in MiB."""
    return int(Path("/proc/self/status").read_text().split(field + ":")[1].split()[0]) // 1024


if __name__ == "__main__":
    main()
