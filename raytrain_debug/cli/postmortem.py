"""`postmortem`: how a run ended, its last reports, contexts and checkpoints."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from raytrain_debug.cli import console
from raytrain_debug.editor.configurations import DEFAULT_POSTMORTEM_PORT
from raytrain_debug.errors import NotInRun
from raytrain_debug.postmortem.findings import Findings, examine, to_json
from raytrain_debug.postmortem.overview import script_of
from raytrain_debug.run import nodes
from raytrain_debug.run.layout import find_run
from raytrain_debug.run.ranks import format_ranks, parse_ranks
from raytrain_debug.run.reader import Run, load_run

if TYPE_CHECKING:
    from raytrain_debug.dap.dead_session import DeadSession


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument(
        "run_names",
        metavar="RUN",
        nargs="*",
        help="a run's id, the start of one, or a path (latest); the runs of all nodes of a job are read as one",
    )
    parser.add_argument("--run-root", metavar="DIR", type=Path, help="where runs are recorded (.raytrain_debug)")
    parser.add_argument("--rank", metavar="RANKS", default="all", help="show these ranks only, e.g. 0,2-3 (all)")
    parser.add_argument(
        "--report", metavar="INDEX", type=int, help="show the report of that index and its checkpoint (the last ones)"
    )
    parser.add_argument("--json", action="store_true", help="print strict JSON")
    parser.add_argument("--no-tensors", action="store_true", help="list checkpoint files without opening them")
    parser.add_argument(
        "--unsafe-load",
        action="store_true",
        help="load checkpoints that safe loading refuses; this runs code from them: only for files that you trust",
    )
    parser.add_argument(
        "--html", metavar="FILE", help="write all of it to FILE, as one page for a browser (- for stdout)"
    )
    opening = parser.add_mutually_exclusive_group()
    opening.add_argument(
        "--serve",
        nargs="?",
        type=int,
        const=DEFAULT_POSTMORTEM_PORT,
        metavar="PORT",
        help="open the run for an editor's debugger on PORT (%(const)s) of this machine; 0 takes any free port",
    )
    opening.add_argument(
        "--shell", action="store_true", help="open ranks (the one that failed first) at the prompt of attach"
    )
    parser.add_argument(
        "--once", action="store_true", help="end --serve when its debugger has left (used by the VS Code task)"
    )


def run(args: argparse.Namespace) -> int:
    """Show the post-mortem, or open it for a debugger."""
    if args.serve is not None:
        return _serve(args)
    if args.shell:
        return _shell(args)
    found = _found(args)
    ranks = chosen_ranks(found, args.rank)
    if args.unsafe_load:
        allow_imports(found)
    findings = examine(found, ranks, tensors=not args.no_tensors, unsafe=args.unsafe_load, report=args.report)
    if args.report is not None and all(each.report is None for each in findings.ranks):
        raise _no_report(findings)
    if args.json:
        console.print_json(to_json(findings))
    elif args.html is not None:
        from raytrain_debug.cli import page

        page.write(findings, args.html, tensors=not args.no_tensors, unsafe=args.unsafe_load)
    else:
        from raytrain_debug.render import postmortem

        console.show(*postmortem.render(findings, time.time()))
    return 0


def _found(args: argparse.Namespace) -> Run:
    """The run that is asked for, or the runs of a job's nodes as one."""
    return nodes.join([load_run(find_run(name, args.run_root), last=1) for name in args.run_names or [None]])


def _serve(args: argparse.Namespace) -> int:
    from raytrain_debug.cli import serving

    return serving.serve(lambda: _dead_session(args), args.serve, args.once)


def _shell(args: argparse.Namespace) -> int:
    from raytrain_debug.cli import serving

    found = _found(args)
    if args.unsafe_load:
        allow_imports(found)
    return serving.shell(found, chosen_ranks(found, args.rank), args.unsafe_load)


def _dead_session(args: argparse.Namespace) -> DeadSession:
    """A debugger's look at the run that is the one to look at now."""
    from raytrain_debug.dap.dead_session import DeadSession
    from raytrain_debug.postmortem.dead_job import dead_job

    found = _found(args)
    if args.unsafe_load:
        allow_imports(found)
    return DeadSession(dead_job(found, chosen_ranks(found, args.rank)), args.unsafe_load)


def _no_report(findings: Findings) -> NotInRun:
    counts = [each.rank.report_count for each in findings.ranks]
    last = max(counts, default=0) - 1
    there = f"reports go from 0 to {last}" if last >= 0 else "nothing was reported"
    return NotInRun(f"no rank has a report {findings.index}", there)


def chosen_ranks(run: Run, text: str) -> tuple[int, ...] | None:
    """The ranks that `text` names, None for all. Raises UsageError, and NotInRun when one left nothing here."""
    size = run.record.world_size if run.record is not None else None
    ranks = parse_ranks(text, size) if text != "all" else None
    missing = set(ranks or ()) - {rank.rank for rank in run.ranks}
    if missing:
        present = format_ranks(rank.rank for rank in run.ranks) or "none"
        raise NotInRun(
            f"rank {format_ranks(missing)} left nothing in {run.paths.directory}", f"ranks recorded here: {present}"
        )
    return ranks


def allow_imports(run: Run) -> None:
    """Let pickles find the modules that the training script could import: those beside it and in its directory."""
    record = run.record
    if record is not None:
        script = Path(record.cwd, script_of(run) or "")
        sys.path += [os.fspath(script.parent), record.cwd]
