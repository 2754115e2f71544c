"""A line about each recorded run: when, what, how many ranks, how it ended, how much it takes on disk."""

from __future__ import annotations

import os
import shlex
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from raytrain_debug.postmortem.liveness import liveness
from raytrain_debug.postmortem.verdict import FirstFailure, verdict
from raytrain_debug.run.layout import RunPaths
from raytrain_debug.run.reader import Run, load_run

UNKNOWN = "unknown"


@dataclass(frozen=True)
class Overview:
    """One run. `state` as in a Verdict, or "unknown" when its run.json cannot be read; `size` in bytes on disk.

    `started` and `ended` are Unix seconds; without a readable run.json `started` comes from the run's id.
    """

    run: str
    path: str
    state: str
    started: float | None
    ended: float | None
    mode: str | None
    script: str | None
    argv: tuple[str, ...]
    world_size: int
    exit_code: int | None
    first_failure: FirstFailure | None
    size: int


def overview(paths: RunPaths) -> Overview:
    """Look at the run at `paths`; never raises for what lies there."""
    run = load_run(paths, last=1)
    judged = verdict(run, liveness(run))
    record = run.record
    return Overview(
        run=paths.id,
        path=str(paths.directory),
        state=judged.state if record is not None or judged.state == "running" else UNKNOWN,
        started=record.started if record is not None else _started(paths.id),
        ended=record.ended if record is not None else None,
        mode=record.mode if record is not None else None,
        script=script_of(run),
        argv=record.argv if record is not None else (),
        world_size=record.world_size if record is not None else len(run.ranks),
        exit_code=record.exit_code if record is not None else None,
        first_failure=judged.first_failure,
        size=disk_usage(paths.directory),
    )


def script_of(run: Run) -> str | None:
    """The training script as the command line named it."""
    if run.record is not None and run.record.argv:
        return run.record.argv[0]
    return next((rank.process.script for rank in run.ranks if rank.process is not None), None)


def command_of(run: Run) -> str | None:
    """The script and its arguments as a shell takes them."""
    return shlex.join(run.record.argv) if run.record is not None and run.record.argv else script_of(run)


def to_json(overviews: list[Overview]) -> dict[str, Any]:
    """The runs as `runs --json` prints them."""
    return {"runs": [asdict(each) for each in overviews]}


def disk_usage(directory: Path) -> int:
    """Bytes that the files below `directory` take on disk; a file with several names counts once."""
    total = 0
    seen: set[tuple[int, int]] = set()
    for folder, _, names in os.walk(directory):
        for name in names:
            try:
                status = os.lstat(os.path.join(folder, name))
            except OSError:
                continue  # a run at work removes old snapshots
            if (status.st_dev, status.st_ino) not in seen:
                seen.add((status.st_dev, status.st_ino))
                total += status.st_blocks * 512
    return total


def _started(run_id: str) -> float | None:
    try:
        return time.mktime(time.strptime(run_id[:15], "%Y%m%d-%H%M%S"))
    except (ValueError, OverflowError):
        return None
