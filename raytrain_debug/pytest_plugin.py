"""A pytest fixture that records `trainer.fit()` of Ray Train's local mode in a test, with every checkpoint kept alive.

    def test_it_learns(raytrain_run):
        trainer.fit()
        assert raytrain_run.reports[-1].metrics["loss"] < 0.1
        weights = raytrain_run.reports[0].checkpoint.open()["model.pt"]

Ray itself gives the last metrics only, and a checkpoint whose directory may be gone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import socket
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from raytrain_debug.postmortem.loaded import LoadedReport, LoadedRun

_ALL = sys.maxsize


class RecordedRun:
    """What this process has reported since the test began."""

    def __init__(self, path: Path) -> None:
        self.path = path
        """The run's directory: `python -m raytrain_debug postmortem PATH` shows it."""

    @property
    def run(self) -> LoadedRun:
        """The run as it is now, as `raytrain_debug.load_run` gives it."""
        from raytrain_debug import load_run

        return load_run(self.path)

    @property
    def reports(self) -> tuple[LoadedReport, ...]:
        """All reports so far, oldest first; their checkpoints stay as long as pytest keeps temporary directories."""
        return tuple(report for rank in self.run.ranks for report in rank.reports)


@contextlib.contextmanager
def recorded(root: Path, name: str) -> Iterator[RecordedRun]:
    """Record this process's reports in a new run under `root`; `name` is what the run is called where it is shown."""
    from raytrain_debug.run import layout, writer
    from raytrain_debug.run.records import ProcessRecord, RunRecord
    from raytrain_debug.shim import core, ray_hooks
    from raytrain_debug.shim.guard import Guard
    from raytrain_debug.shim.rank import process_create_time
    from raytrain_debug.shim.recorder import RecorderConfig

    paths = layout.create_run(root)
    own, started = paths.rank(0), process_create_time()

    def fit_ended(error: BaseException | None) -> None:
        if error is not None:
            core.of_exception(core.Whose(own, 0, started), error, threading.current_thread())
        else:
            own.core.unlink(missing_ok=True)  # of a fit before, which this one has made good

    record = RunRecord(paths.id, (name,), os.getcwd(), "script", time.time(), world_size=1)
    writer.write_record(paths.record, record)
    layout.make_private(own.directory)
    process = ProcessRecord(0, 0, 1, os.getpid(), started, socket.gethostname(), 0, "", name)
    writer.write_record(own.process, process)
    try:
        with ray_hooks.recording(RecorderConfig(paths, 0, 0, Guard(paths.errors), keep_checkpoints=_ALL), fit_ended):
            yield RecordedRun(paths.directory)
    finally:
        writer.write_record(paths.record, dataclasses.replace(record, ended=time.time()))
    if paths.errors.exists():
        warnings.warn(f"raytrain_run may have missed something: see {paths.errors}", stacklevel=2)


@pytest.fixture
def raytrain_run(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[RecordedRun]:
    """All that `ray.train.report` is called with in this test, in local mode (`ScalingConfig(num_workers=0)`)."""
    with recorded(tmp_path_factory.mktemp("raytrain_run"), request.node.nodeid) as run:
        yield run
