"""Draws the main screens of a made-up job of 64 ranks into docs/images/: `python docs/screens.py`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from raytrain_debug.across.hang import HangDetector
from raytrain_debug.across.progress import RankProgress, rows
from raytrain_debug.across.stacks import Frame, RankStacks, Sample, Stack
from raytrain_debug.across.values import collect
from raytrain_debug.render import live, stacks, values

IMAGES = Path(__file__).resolve().parent / "images"
CWD = "/home/me/job"
MAIN = Frame(f"{CWD}/train.py", 120, "<module>")
LOOP = Frame(f"{CWD}/train.py", 84, "train_loop")
STEP = Frame(f"{CWD}/train.py", 88, "step")
NEXT = Frame(f"{CWD}/train.py", 79, "train_loop")
LOAD = Frame(f"{CWD}/data.py", 12, "load_batch")
STRAGGLER, WORLD = 17, 64


def job() -> Sample:
    """All ranks wait in all_reduce but for one that loads its data, and two that wait for theirs."""
    ranks = {}
    for rank in range(WORLD):
        stack = Stack(rank, (MAIN, LOOP, STEP), "all_reduce", peers=True)
        if rank == STRAGGLER:
            stack = Stack(rank, (MAIN, NEXT, LOAD))
        elif rank in (40, 41):
            stack = Stack(rank, (MAIN, NEXT), "DataLoader next")
        ranks[rank] = RankStacks(rank, "running", (stack,), started={"0": 4711 if stack.peers else 4710})
    return Sample(ranks, {})


def hang() -> list[Any]:
    detector = HangDetector(60, CWD)
    detector.look(job(), 0.0)
    found = detector.look(job(), 60.0)
    assert found is not None
    return stacks.render_hang(found, CWD)


def status() -> list[Any]:
    def progress(rank: RankStacks) -> RankProgress:
        late = rank.rank == STRAGGLER
        size = int((2.1 + math.sin(rank.rank) / 20) * 2**30)
        rate = None if late else 0.41 + rank.rank / 1000
        return RankProgress(
            rank.rank, "dormant", rank, 95.0 if late else 93.0, 118, 97.5 + rank.rank / 100, rate, 0.0, size
        )

    head = "run 20260131-142501-3fa9; train.py; 64 ranks; Ctrl-C ends this, not the job"
    return live.render(rows(progress(rank) for rank in job().ranks.values()), head, CWD)


def loss() -> list[Any]:
    where = {"file": STEP.file, "line": STEP.line, "function": STEP.function}
    numbers = {rank: math.nan if rank == STRAGGLER else round(0.25 + (rank * 7 % 5) / 100, 2) for rank in range(WORLD)}
    answers = {rank: {"value": number, "state": "running", "where": where} for rank, number in numbers.items()}
    return values.render(collect("loss.item()", dict(answers)), CWD)


SCREENS = {
    "stacks": ("python -m raytrain_debug stacks", lambda: stacks.render(job(), stacks.View(CWD)), 72),
    "print": ("python -m raytrain_debug print 'loss.item()'", loss, 72),
    "status-watch": ("python -m raytrain_debug status --watch", status, 170),
    "hang": ("python -m raytrain_debug launch --hang-after 60 --nproc-per-node 64 train.py", hang, 110),
}


def draw(name: str, title: str, parts: Sequence[Any], width: int) -> None:
    """Write one picture."""
    with open("/dev/null", "w") as nowhere:
        console = Console(record=True, width=width, file=nowhere, force_terminal=True, highlight=False, emoji=False)
        for part in parts:
            console.print(part, markup=False)
    (IMAGES / f"{name}.svg").write_text(console.export_svg(title=title, unique_id=name))


def main() -> None:
    for name, (title, parts, width) in SCREENS.items():
        draw(name, title, parts(), width)


if __name__ == "__main__":
    main()
