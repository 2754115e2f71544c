"""`compare`: what differs between ranks of a report, between reports of a rank, and between runs."""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from raytrain_debug.cli import console
from raytrain_debug.cli.postmortem import allow_imports, chosen_ranks
from raytrain_debug.errors import UsageError
from raytrain_debug.run.layout import find_run
from raytrain_debug.run.reader import Run, load_run

DIFFERS = 3
"""The exit code when what was compared differs."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument(
        "runs", metavar="RUN", nargs="*", help="one run, to compare its ranks or reports (latest), or two runs"
    )
    parser.add_argument("--run-root", metavar="DIR", type=Path, help="where runs are recorded (.raytrain_debug)")
    parser.add_argument("--rank", metavar="RANKS", default="all", help="these ranks only, e.g. 0,2-3 (all)")
    parser.add_argument(
        "--report", metavar="INDEX", type=int, help="at this report (the newest whose checkpoint all ranks still keep)"
    )
    parser.add_argument(
        "--reports",
        metavar="A,B",
        help="two reports of a rank (the first, if no --rank is given); of two runs, one of each",
    )
    parser.add_argument("--rtol", metavar="R", type=_tolerance, default=0.0, help="let b differ from a by R * |a| (0)")
    parser.add_argument("--atol", metavar="A", type=_tolerance, default=0.0, help="let b differ from a by A (0)")
    parser.add_argument("--no-metrics", action="store_true", help="compare checkpoints only")
    parser.add_argument("--no-tensors", action="store_true", help="compare metrics only")
    parser.add_argument("--json", action="store_true", help="print strict JSON")
    parser.add_argument(
        "--unsafe-load",
        action="store_true",
        help="load checkpoints that safe loading refuses; this runs code from them: only for files that you trust",
    )


def run(args: argparse.Namespace) -> int:
    """Compare, and say by the exit code whether anything differs."""
    from raytrain_debug.postmortem import compare
    from raytrain_debug.postmortem.differences import Tolerance

    if len(args.runs) > 2:
        raise UsageError(f"{len(args.runs)} runs are too many to compare", "name one or two")
    reports = _pair(args.reports) if args.reports is not None else None
    if reports is not None and args.report is not None:
        raise UsageError("--report and --reports exclude each other", "give one of them")
    runs = [load_run(find_run(name, args.run_root), last=1) for name in args.runs or [None]]
    ranks = chosen_ranks(runs[0], args.rank)
    chosen_ranks(runs[-1], args.rank)  # the other one must have them too
    if args.unsafe_load:
        for each in runs:
            allow_imports(each)
    options = compare.Options(
        not args.no_tensors, not args.no_metrics, args.unsafe_load, Tolerance(args.rtol, args.atol)
    )
    if len(runs) == 2:
        at = reports or (args.report, args.report)
        found = compare.compare_runs(runs[0], runs[1], at, ranks, options)
    elif reports is not None:
        numbers = ranks if ranks is not None else _first_rank(runs[0])
        found = tuple(compare.compare_reports(runs[0], rank, *reports, options) for rank in numbers)
    else:
        found = (compare.compare_ranks(runs[0], args.report, ranks, options),)
    if args.json:
        console.print_json(compare.to_json(found))
    else:
        from raytrain_debug.render import compare as view

        console.show(*view.render(found))
    return DIFFERS if any(each.differs for each in found) else 0


def _first_rank(run: Run) -> tuple[int, ...]:
    """The lowest rank that reported, or else the lowest one."""
    reported = [rank.rank for rank in run.ranks if rank.report_count] or [rank.rank for rank in run.ranks]
    return tuple(reported[:1] or [0])


def _pair(text: str) -> tuple[int, int]:
    parts = [part.strip() for part in text.split(",")]
    if len(parts) != 2 or not all(part.isdecimal() for part in parts):
        raise UsageError(f"{text!r} does not name two reports", "write them as 3,9")
    return int(parts[0]), int(parts[1])


def _tolerance(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not value >= 0 or math.isinf(value):
        raise argparse.ArgumentTypeError(f"{text} is no tolerance: a number of 0 or more, such as 1e-3")
    return value
