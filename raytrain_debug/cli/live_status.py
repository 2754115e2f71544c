"""`status --watch`: a live table of what ranks do and how far they have come."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from typing import Any

from raytrain_debug.across.ask import is_silence
from raytrain_debug.across.progress import ENDED, Follower, RankProgress, rate_of, rows
from raytrain_debug.across.stacks import Sample, read_sample
from raytrain_debug.cli import gathering
from raytrain_debug.errors import RunNotLive, UsageError
from raytrain_debug.postmortem.overview import command_of
from raytrain_debug.postmortem.status import RankStatus, RunStatus, gather
from raytrain_debug.run.layout import find_run
from raytrain_debug.run.reader import Run, load_run

_INTERVALS = 8  # reports that a rate is taken from
_PATIENCE = 1.0  # seconds for a rank to answer


def watch(args: argparse.Namespace) -> int:
    """Show the table until the run or the person ends it."""
    if args.json:
        raise UsageError("--watch is for people", "write status --json as often as it is needed")
    paths = find_run(args.run_name, args.run_root)
    follower = Follower()

    def picture() -> Sequence[Any]:
        from raytrain_debug.render import live as view

        run = load_run(paths, last=_INTERVALS)
        status = gather(run)
        if status.verdict.state != "running":
            raise RunNotLive(status.verdict.sentence or f"run {paths.id} has ended")
        live = gathering.look_at(run, token=os.environ.get("RAYTRAIN_DEBUG_TOKEN"))
        sample = read_sample(live.ask({"op": "stacks"}, _PATIENCE))
        now = time.monotonic()
        follower.look(sample, now)
        cwd = run.record.cwd if run.record is not None else ""
        return view.render(rows(_progress(status, sample, follower, now)), _head(run, status), cwd)

    return gathering.repeat(picture, args.watch)


def _progress(status: RunStatus, sample: Sample, follower: Follower, now: float) -> list[RankProgress]:
    clock = time.time()
    found = []
    for rank in status.ranks:
        last = rank.last_report
        recorded = status.run.rank(rank.rank)
        found.append(
            RankProgress(
                rank=rank.rank,
                state=rank.state,
                now=sample.ranks.get(rank.rank),
                still=follower.still(rank.rank, now),
                reports=rank.reports,
                age=None if last is None else max(clock - last.time, 0.0),
                report_rate=rate_of(report.interval for report in recorded.reports) if recorded is not None else None,
                collective_rate=follower.rates.get(rank.rank),
                rss=_rss(rank),
                gpu_memory=None if last is None else last.process.gpu_memory,
                silent=why if is_silence(why := sample.silent.get(rank.rank, "")) else "",
            )
        )
    return found


def _head(run: Run, status: RunStatus) -> str:
    return f"run {run.paths.id}; {command_of(run)}; {len(status.ranks)} ranks; Ctrl-C ends this, not the job"


def _rss(rank: RankStatus) -> int | None:
    import psutil

    if rank.pid is None or rank.state in ENDED or getattr(rank, "node", None):
        return None
    try:
        return int(psutil.Process(rank.pid).memory_info().rss)
    except psutil.Error:
        return None
