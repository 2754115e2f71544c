"""`runs`: the recorded runs, the newest last; `runs prune` removes old ones."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from raytrain_debug.cli import console
from raytrain_debug.errors import UsageError
from raytrain_debug.postmortem import pruning
from raytrain_debug.postmortem.overview import overview, to_json
from raytrain_debug.run.layout import default_root, list_runs


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument(
        "action",
        nargs="?",
        choices=("list", "prune"),
        default="list",
        metavar="prune",
        help="remove the runs that --keep and --older-than both give up; never one that is at work",
    )
    parser.add_argument("--keep", type=int, metavar="N", help="prune: keep the newest N runs")
    parser.add_argument("--older-than", metavar="AGE", help="prune: keep runs younger than that (12h, 7d, 2w)")
    parser.add_argument("--dry-run", action="store_true", help="prune: say what would be removed, and remove nothing")
    parser.add_argument("--run-root", metavar="DIR", type=Path, help="where runs are recorded (.raytrain_debug)")
    parser.add_argument("--json", action="store_true", help="print strict JSON")


def run(args: argparse.Namespace) -> int:
    """List the runs, or remove some; 1 when one could not be removed."""
    root = args.run_root or default_root()
    if args.action == "prune":
        return _prune(args, root)
    if args.keep is not None or args.older_than is not None or args.dry_run:
        raise UsageError("--keep, --older-than and --dry-run belong to runs prune", "write: runs prune --keep N")
    found = [overview(paths) for paths in list_runs(root)]
    if args.json:
        console.print_json(to_json(found))
    elif found:
        from raytrain_debug.render import runs

        console.show(runs.render(found, time.time()))
    else:
        console.show(f"no run is recorded in {root}")
    return 0


def _prune(args: argparse.Namespace, root: Path) -> int:
    if args.keep is None and args.older_than is None:
        raise UsageError("prune needs to know what to keep", "write --keep N, --older-than 7d, or both")
    if args.keep is not None and args.keep < 0:
        raise UsageError(f"--keep {args.keep} is less than none", "write 0 or more")
    older_than = pruning.parse_age(args.older_than) if args.older_than is not None else None
    done = pruning.prune(root, [overview(paths) for paths in list_runs(root)], args.keep, older_than, args.dry_run)
    if args.json:
        console.print_json(pruning.to_json(done))
    else:
        from raytrain_debug.render import runs

        console.show(*runs.render_pruning(done))
    return 1 if any(each.why.startswith("cannot") for each in done.runs) else 0
