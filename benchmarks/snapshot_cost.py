"""What keeping a checkpoint costs beside the `torch.save` that wrote it, in a temporary and in a kept directory.

    python benchmarks/snapshot_cost.py [--mib 1024] [--rounds 6] [--directory DIR]

Run directory and checkpoints lie on one file system, that of DIR (the system's temporary directory by default). "One
copy" is `shutil.copyfile` of the same file. The fastest of the rounds counts, and the order changes between them: the
kernel slows down whoever writes much, soon after another wrote much.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import torch
from rich.console import Console
from rich.table import Table

from raytrain_debug.run import layout
from raytrain_debug.shim.guard import Guard
from raytrain_debug.shim.snapshot import Snapshots

TEMPORARY_BUDGET = 0.10  # of torch.save
KEPT_BUDGET = 1.0  # copies
NOISE = 1.25  # two copies of one file can differ by as much


def seconds(action: Callable[[], object]) -> float:
    """The time `action` takes once earlier writes have reached the disk."""
    os.sync()
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def one_round(base: Path, model: dict[str, torch.Tensor], snapshots: Snapshots, index: int) -> tuple[float, ...]:
    """Seconds of: save, snapshot of a temporary directory, plain copy, snapshot of a kept directory."""
    with tempfile.TemporaryDirectory(dir=base) as directory:
        save = seconds(lambda: torch.save(model, Path(directory, "model.pt")))
        reported = SimpleNamespace(path=directory, filesystem=None)
        temporary = seconds(lambda: snapshots.take(reported, index))
    kept = base / "kept"
    kept.mkdir()
    torch.save(model, kept / "model.pt")
    checkpoint = SimpleNamespace(path=str(kept), filesystem=None)
    taken: dict[str, float] = {}
    actions: list[tuple[str, Callable[[], object]]] = [
        ("copy", lambda: shutil.copyfile(kept / "model.pt", base / "copy")),
        ("snapshot", lambda: snapshots.take(checkpoint, index + 1)),
    ]
    for name, action in actions if index % 4 else reversed(actions):
        taken[name] = seconds(action)
    snapshots.prune()
    shutil.rmtree(kept)
    (base / "copy").unlink()
    return save, temporary, taken["copy"], taken["snapshot"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--directory", default=None)
    options = parser.parse_args()
    base = Path(tempfile.mkdtemp(dir=options.directory))  # a kept directory: nothing announces that it will be deleted
    try:
        run = layout.create_run(base / layout.ROOT_NAME)
        layout.make_private(run.rank(0).directory)
        snapshots = Snapshots(run.rank(0), 1, Guard(run.errors))
        model = {"weight": torch.randn(options.mib, 512, 512)}
        rounds = [one_round(base, model, snapshots, 2 * number) for number in range(options.rounds)]
    finally:
        shutil.rmtree(base)
    save, temporary, copy, copied = (min(column) for column in zip(*rounds, strict=True))
    table = Table(f"{options.mib} MiB checkpoint", "seconds", "of torch.save", "of one copy", "budget")
    table.add_row("torch.save", f"{save:.3f}", "", "", "")
    table.add_row("snapshot, temporary directory", f"{temporary:.3f}", f"{temporary / save:.1%}", "", "<= 10%")
    table.add_row("snapshot, kept directory", f"{copied:.3f}", "", f"{copied / copy:.2f}", "<= 1 copy")
    Console().print(table)
    return 0 if temporary <= TEMPORARY_BUDGET * save and copied <= KEPT_BUDGET * NOISE * copy else 1


if __name__ == "__main__":
    raise SystemExit(main())
