"""Run directories for tests, written with the package's own writer as launcher and ranks write them."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from raytrain_debug.run import codec, layout, writer
from raytrain_debug.run.reader import Run, load_run
from raytrain_debug.run.records import (
    CallSite,
    CheckpointRecord,
    CoreRecord,
    ExceptionRecord,
    ExitRecord,
    FileEntry,
    FrameRecord,
    LauncherRecord,
    ProcessRecord,
    ReportRecord,
    RunRecord,
    ThreadExceptionRecord,
    ThreadRecord,
    to_dict,
    to_sparse_dict,
)

START = 1_769_869_501.0
SITE = CallSite("/home/me/project/train.py", 88, "train_func")
GONE = 2**22 + 1  # above the largest pid that Linux gives


def exception(text: str = "loss is nan", kind: str = "ValueError") -> ExceptionRecord:
    trace = ("Traceback (most recent call last):", f'  File "{SITE.file}", line 88, in train_func', f"{kind}: {text}")
    return ExceptionRecord(kind, text, SITE, trace)


@dataclass
class MadeRun:
    """A run being written under `root`; each method leaves what a real process would at that moment."""

    root: Path
    world_size: int = 2
    mode: str = "torchrun"
    paths: layout.RunPaths = field(init=False)
    exits: list[ExitRecord] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.paths = layout.create_run(self.root)

    def started(self, rank: int, pid: int = GONE, attempt: int = 0, create_time: float = START) -> None:
        paths = self.paths.rank(rank)
        layout.make_private(paths.directory)
        record = ProcessRecord(
            rank, rank, self.world_size, pid, create_time, socket.gethostname(), attempt, "/nowhere.sock", "train.py"
        )
        writer.write_record(paths.process, record)

    def reported(
        self,
        rank: int,
        index: int = 0,
        metrics: dict[str, Any] | None = None,
        checkpoint: CheckpointRecord | None = None,
        attempt: int = 0,
        **context: Any,
    ) -> None:
        whole = {"world_size": self.world_size, "world_rank": rank, "experiment_name": "exp", **context}
        report = ReportRecord(
            index, START + 10 + index, attempt, whole, metrics or {"loss": 0.5}, checkpoint, SITE, interval=1.0
        )
        writer.append_line(self.paths.rank(rank).reports, codec.dumps(to_dict(report)))

    def snapshot(self, rank: int, index: int = 0) -> Path:
        """An empty snapshot directory, to be filled before `kept`."""
        directory = self.paths.rank(rank).checkpoints / str(index)
        directory.mkdir(parents=True)
        return directory

    def kept(self, rank: int, index: int = 0) -> CheckpointRecord:
        directory = self.paths.rank(rank).checkpoints / str(index)
        files = tuple(
            FileEntry(path.relative_to(directory).as_posix(), path.stat().st_size)
            for path in sorted(directory.rglob("*"))
            if path.is_file()
        )
        return CheckpointRecord("/tmp/tmpcheckpoint", f"checkpoints/{index}", files)

    def in_parts(self, state: dict[str, Any], index: int = 0, attempts: tuple[int, int] = (0, 0)) -> tuple[Path, Path]:
        """`state` as ranks 0 and 1 report it with torch.distributed.checkpoint: rank 0 has the description.

        The state needs two tensors; rank 1 has one of them.
        """
        import torch.distributed.checkpoint as dcp

        zero, one = self.snapshot(0, index), self.snapshot(1, index)
        dcp.save(state, storage_writer=dcp.FileSystemWriter(zero / "state", thread_count=2), no_dist=True)
        (one / "state").mkdir()
        (zero / "state" / "__0_1.distcp").rename(one / "state" / "__0_1.distcp")
        for rank, attempt in enumerate(attempts):
            self.reported(rank, index, checkpoint=self.kept(rank, index), attempt=attempt)
        return zero / "state", one / "state"

    def died(self, rank: int, error: ExceptionRecord, pid: int = GONE, attempt: int = 0, time: float = 0.0) -> None:
        """The rank's own account of its end."""
        writer.write_record(self.paths.rank(rank).core, CoreRecord(START + 20 + time, attempt, pid, error))

    def stood(self, rank: int, *frames: FrameRecord, waiting_in: str | None = None) -> None:
        """What the rank did when the launcher ended it, beside what another thread of it did."""
        waiting = ThreadRecord("loader", frames=(FrameRecord("/home/me/project/loader.py", 5, "load"),))
        threads = (ThreadRecord("MainThread", True, frames, waiting_in), waiting)
        record = CoreRecord(START + 20, 0, GONE + rank, None, "ended", threads)
        writer.write_record(self.paths.rank(rank).core, record)
        self.ended(rank, None, "SIGTERM", caused=True, pid=GONE + rank)

    def thread_ended(
        self,
        rank: int,
        error: ExceptionRecord,
        thread: str = "loader",
        report: int | None = None,
        attempt: int = 0,
        time: float = 0.0,
    ) -> None:
        """A thread of the rank ended with `error`, which the rank outlived."""
        record = ThreadExceptionRecord(START + 15 + time, attempt, GONE, thread, error, report)
        writer.append_line(self.paths.rank(rank).exceptions, codec.dumps(to_sparse_dict(record)))

    def ended(
        self,
        rank: int,
        exit_code: int | None = 0,
        signal: str | None = None,
        caused: bool = False,
        attempt: int = 0,
        pid: int = GONE,
    ) -> None:
        """The launcher's account of a rank's end; the order of calls is the order of deaths."""
        order = len(self.exits)
        self.exits.append(ExitRecord(rank, attempt, pid, START + 20 + order, order, exit_code, signal, caused))

    def write(
        self,
        ended: bool = True,
        exit_code: int | None = 0,
        stopped: str | None = None,
        attempt: int = 0,
        launcher: LauncherRecord | None = None,
        in_test: bool = False,
    ) -> Run:
        """Write run.json and read the whole run back."""
        record = RunRecord(
            id=self.paths.id,
            argv=("train.py", "--lr", "0.1"),
            cwd="/home/me/project",
            mode=self.mode,
            started=START,
            world_size=self.world_size,
            nproc_per_node=self.world_size,
            attempt=attempt,
            launcher=None if in_test else launcher or this_process_as_launcher(alive=False),
            exits=tuple(self.exits),
            ended=START + 30 if ended else None,
            exit_code=exit_code if ended else None,
            stopped=stopped,
        )
        writer.write_record(self.paths.record, record)
        return load_run(self.paths)


def this_process_as_launcher(alive: bool = True, control: str = "/nowhere.sock") -> LauncherRecord:
    """A launcher that is this process, or one that is gone."""
    pid = os.getpid() if alive else GONE
    created = psutil.Process().create_time()
    return LauncherRecord(pid, created, socket.gethostname(), control, {"0": 5678, "1": 5679})
