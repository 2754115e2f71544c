"""`adapter`: the Debug Adapter Protocol on stdin and stdout, for editors; people have no use for it."""

from __future__ import annotations

import argparse
import asyncio
import os
from pathlib import Path

from raytrain_debug.dap.adapter import serve_standard_streams
from raytrain_debug.errors import RunNotLive
from raytrain_debug.postmortem.liveness import liveness
from raytrain_debug.run import layout
from raytrain_debug.run.layout import RunPaths
from raytrain_debug.run.reader import load_run


def configure(parser: argparse.ArgumentParser) -> None:
    """It has no options: all comes in the editor's requests."""


def run(args: argparse.Namespace) -> int:
    """Serve one editor; the exit code."""
    # The protocol has the real stdout to itself: whatever else would print goes to stderr.
    output = os.dup(1)
    os.dup2(2, 1)
    with open(0, "rb", buffering=0, closefd=False) as stdin, open(output, "wb", buffering=0) as stdout:
        asyncio.run(serve_standard_streams(find_live_run, stdin, stdout))
    return 0


def find_live_run(name: str | None, root: Path) -> RunPaths:
    """The live run of that name below `root`, or (None) the newest live one; raises RunNotFound, RunNotLive."""
    if name:
        found = layout.find_run(name, root)
        if not _lives(found):
            raise RunNotLive(f"run {found.id} has ended", "choose a live one, or look at it with postmortem")
        return found
    live = next(filter(_lives, reversed(layout.list_runs(root))), None)
    if live is None:
        raise RunNotLive(f"no run in {root} is alive", "start one with: python -m raytrain_debug launch SCRIPT")
    return live


def _lives(run: RunPaths) -> bool:
    return liveness(load_run(run, last=0)).launcher
