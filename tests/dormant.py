"""Ranks without torch and without a launcher: plain Python processes in the shim, at once there and quickly gone."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from raytrain_debug.across.ask import Address
from raytrain_debug.run import layout
from raytrain_debug.run.reader import read_record
from raytrain_debug.run.records import ProcessRecord
from raytrain_debug.shim.settings import Settings
from tests.conftest import wait_for


@contextmanager
def dormant_ranks(root: Path, sources: list[str]) -> Iterator[list[Address]]:
    """One rank a source text, started as the launcher does; yields their addresses once each has printed a line."""
    run = layout.create_run(root / layout.ROOT_NAME)
    settings = Settings(str(run.directory), launcher="", launcher_pid=os.getpid())
    processes = []
    for rank, source in enumerate(sources):
        script = root / f"rank{rank}.py"
        script.write_text(source)
        identity = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(len(sources))}
        processes.append(
            subprocess.Popen(
                [sys.executable, "-u", "-m", "raytrain_debug.shim", script],
                env={**os.environ, **settings.to_environment(), **identity},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
            )
        )
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline(), "the rank ended before it said anything"
        yield [_address(run, rank) for rank in range(len(sources))]
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.communicate()


def _address(run: layout.RunPaths, rank: int) -> Address:
    record = wait_for(lambda: read_record(run.rank(rank).process, ProcessRecord), 10, f"rank {rank}")
    assert record is not None
    return Address(rank, record.control, record.pid)
