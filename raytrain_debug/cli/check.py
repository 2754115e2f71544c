"""`check`: what in a script will break on its way to real workers, or comes from old API, without running it."""

from __future__ import annotations

import argparse
from pathlib import Path

from raytrain_debug.cli import console
from raytrain_debug.errors import UsageError
from raytrain_debug.run.layout import default_root, find_run
from raytrain_debug.run.reader import load_run

FOUND = 3
"""The exit code when something was found."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("script", metavar="SCRIPT", type=Path, help="the training script; it is read, not run")
    parser.add_argument(
        "--run",
        dest="run_name",
        metavar="RUN",
        help="look at the records of this run too (the newest one of the script, where there is one)",
    )
    parser.add_argument("--run-root", metavar="DIR", type=Path, help="where runs are recorded (.raytrain_debug)")
    parser.add_argument("--ignore", metavar="RULE", action="append", default=[], help="leave a rule out; repeatable")
    parser.add_argument("--json", action="store_true", help="print strict JSON")


def run(args: argparse.Namespace) -> int:
    """Examine the script, and say by the exit code whether anything was found."""
    from raytrain_debug.check.examine import examine, latest_run, to_json
    from raytrain_debug.check.rules import RULES

    known = {rule.id for rule in RULES}
    unknown = sorted(set(args.ignore) - known)
    if unknown:
        raise UsageError(f"there is no rule {unknown[0]!r}", f"the rules are {', '.join(sorted(known))}")
    root = args.run_root or default_root()
    looked_at = load_run(find_run(args.run_name, root)) if args.run_name else latest_run(args.script, root)
    done = examine(args.script, looked_at, frozenset(args.ignore))
    if args.json:
        console.print_json(to_json(done))
    else:
        from raytrain_debug.render import check as view

        console.show(*view.render(done))
    return FOUND if done.findings else 0
