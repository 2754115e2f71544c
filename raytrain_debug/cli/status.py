"""`status`: a line for each rank of a run."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from raytrain_debug.cli import console, gathering
from raytrain_debug.postmortem.status import gather, to_json
from raytrain_debug.run.layout import find_run
from raytrain_debug.run.reader import load_run


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("run_name", metavar="RUN", nargs="?", help="a run's id, the start of one, or a path (latest)")
    parser.add_argument("--run-root", metavar="DIR", type=Path, help="where runs are recorded (.raytrain_debug)")
    parser.add_argument("--json", action="store_true", help="print strict JSON")
    gathering.interval_argument(
        parser, "--watch", 1.0, "a live table: what ranks do, how far they are, every SECONDS (1) until Ctrl-C"
    )


def run(args: argparse.Namespace) -> int:
    """Show the state of the run's ranks."""
    if args.watch is not None:
        from raytrain_debug.cli.live_status import watch

        return watch(args)
    status = gather(load_run(find_run(args.run_name, args.run_root), last=1))
    if args.json:
        console.print_json(to_json(status))
    else:
        from raytrain_debug.render import status as view

        console.show(*view.render(status, time.time()))
    return 0
