"""`attach`: find ranks of a running job and open the debugger prompt on them."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from raytrain_debug.across.hang import Ended, ranks_in_words
from raytrain_debug.across.stacks import Sample, read_sample
from raytrain_debug.cli import console, gathering
from raytrain_debug.cli.prompt.completion import complete
from raytrain_debug.cli.prompt.merge import said_of_ranks
from raytrain_debug.cli.prompt.reader import StandardInput, TerminalInput, lines_of
from raytrain_debug.cli.prompt.terminal import Terminal
from raytrain_debug.cli.prompt.view import View
from raytrain_debug.dap.group import Group
from raytrain_debug.dap.session import Session
from raytrain_debug.errors import ControlError, RankEnded, RaytrainDebugError, RunNotFound, RunNotLive, UsageError
from raytrain_debug.postmortem.liveness import liveness
from raytrain_debug.run import channel, layout
from raytrain_debug.run.layout import RunPaths
from raytrain_debug.run.ranks import format_ranks, parse_ranks
from raytrain_debug.run.reach import gateway_of
from raytrain_debug.run.reader import load_run, read_record
from raytrain_debug.run.records import ExitRecord, LauncherRecord, RunRecord

STOPS_BY_ITSELF = 10.0
"""Seconds in which a rank that waits for a debugger has stopped for it."""
SETTLES = 0.2
"""Seconds to see whether a rank that did not wait stops by itself all the same: one that is just starting does."""
GIVEN_UP = 3.0
"""Seconds for which a rank that is said not to answer, which is after two, still keeps the others waiting."""
LOOKS_FOR = 1.0
"""Seconds for a rank to say what it does, while others are waited for."""
INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""


@dataclass(frozen=True)
class Target:
    """Ranks of a live run, and where the gateway of each is; `ended` are those that were meant and are no more."""

    run: RunPaths
    record: RunRecord
    launcher: LauncherRecord
    addresses: dict[int, tuple[str, int]]
    ended: dict[int, str]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--rank", metavar="RANKS", help="the rank to attach to, or several: 0,2-3 or all (not needed in a job of one)"
    )
    parser.add_argument(
        "--run", dest="run_name", metavar="RUN", help="a run's id, a unique start of it, or its directory (newest live)"
    )
    parser.add_argument("--run-root", type=Path, metavar="DIR", help="where runs are kept (./.raytrain_debug)")
    parser.add_argument(
        "--token", help="what launch was given with --token, for a rank on another machine (RAYTRAIN_DEBUG_TOKEN)"
    )
    parser.add_argument(
        "-c",
        dest="commands",
        action="append",
        metavar="CMD",
        help="carry out this command, print plainly, and leave; may be given again for more "
        "(exit code 1 if one fails or a rank is left out)",
    )


def run(args: argparse.Namespace) -> int:
    """Attach and open the prompt, or carry out `-c` commands; the exit code."""
    target = find_target(args.run_name, args.run_root or layout.default_root(), args.rank)
    token = args.token or os.environ.get("RAYTRAIN_DEBUG_TOKEN")
    sessions = {rank: Session(host, port, f"rank {rank}") for rank, (host, port) in target.addresses.items()}
    several = len(sessions) > 1
    width = 80 if args.commands else shutil.get_terminal_size().columns
    views = {
        rank: View(session, "it" if several else session.name, target.record.cwd, width, relative=several)
        for rank, session in sessions.items()
    }

    def attach_again(rank: int) -> None:
        _attach(sessions[rank], token)
        again = f"rank {rank} is attached again" if several else f"attached to rank {rank} again"
        terminal.notes.say(rank, f"{again}; it runs (Ctrl-C stops it)")

    group = Group(sessions, attach_again)
    terminal = Terminal(group, views, lambda: _look(target.run, token))
    try:
        running = _attach_all(group, target, token)
        terminal.begin(pause=running)
    except KeyboardInterrupt:
        group.disconnect(1.0)
        return INTERRUPTED
    if args.commands:
        left_out = len(group.ranks) < len(target.addresses) + len(target.ended)
        return _script(terminal, group, args.commands, left_out)
    if sys.stdin.isatty() and sys.stdout.isatty():
        names = ranks_in_words(group.ranks)
        console.note(f"attached to {names} of run {target.run.id}; h lists the commands, q leaves")
        history = target.run.directory.parent.parent / "history"
        return terminal.run(TerminalInput(lambda text: complete(terminal.view, text), history))
    return terminal.run(StandardInput())


def find_target(name: str | None, root: Path, ranks: str | None) -> Target:
    """The ranks to attach to, in the run named or (None) the newest live one under `root`.

    Raises RunNotFound, RunNotLive with how it ended, or UsageError when ranks are left out and there are several.
    """
    run = layout.find_run(name, root) if name else _newest_live(root)
    record = read_record(run.record, RunRecord)
    if record is None:
        raise RunNotFound(f"run {run.id} left no run.json that can be read")
    launcher = record.launcher
    if launcher is None or not liveness(load_run(run, last=0)).launcher:
        raise RunNotLive(f"run {run.id} {_how_it_ended(record)}", _remedy(run))
    present = tuple(sorted(int(each) for each in launcher.ports))
    if ranks is None and len(present) != 1:
        raise UsageError(f"run {run.id} has ranks {format_ranks(present)}", "choose with --rank N, or --rank all")
    wanted = parse_ranks(ranks or "all") or present
    addresses = {rank: gateway_of(record, rank) for rank in wanted}
    ended = {
        exit.rank: _how_rank_ended(exit)
        for exit in record.exits
        if exit.rank in addresses and exit.attempt == record.attempt
    }
    if len(ended) == len(addresses):
        rank = min(ended)
        raise RunNotLive(f"rank {rank} of run {run.id} {ended[rank]}", _remedy(run))
    return Target(run, record, launcher, {rank: addresses[rank] for rank in wanted if rank not in ended}, ended)


def _newest_live(root: Path) -> RunPaths:
    live = [run for run in layout.list_runs(root) if liveness(load_run(run, last=0)).launcher]
    if len(live) > 1:
        others = ", ".join(run.id for run in live[:-1])
        console.note(f"attaching to the newest live run, {live[-1].id}; --run chooses another: {others}")
    return live[-1] if live else layout.find_run(None, root)


def _attach_all(group: Group, target: Target, token: str | None) -> list[int]:
    """Attach to all ranks at once; those that do not stop by themselves. Raises DapError, RunNotLive when none lets us.

    One rank of several that does not, or does not answer, is named and left out.
    """
    states = _states(target)
    given_up = GIVEN_UP if len(group.ranks) > 1 else None

    def attach(rank: int) -> bool:
        _attach(group.sessions[rank], token, stop_on_entry=True, patience=given_up)
        patience = STOPS_BY_ITSELF if states.get(rank) == "waiting" else SETTLES
        return group.sessions[rank].wait_for_stop(patience) is not None

    answers = group.each({rank: partial(attach, rank) for rank in group.ranks})
    refused = {rank: answer for rank, answer in answers.items() if isinstance(answer, RaytrainDebugError)}
    if len(refused) == len(answers):
        error = next(iter(refused.values()))
        raise RunNotLive(str(error), _remedy(target.run)) if isinstance(error, RankEnded) else error
    reasons = {rank: f"rank {rank} {how}" for rank, how in target.ended.items()}
    reasons |= {rank: str(error) for rank, error in refused.items()}
    for reason in said_of_ranks(reasons):
        console.note(f"{reason}; left out")
    group.drop(refused)
    return [rank for rank, stands in answers.items() if stands is False]


def _attach(session: Session, token: str | None, stop_on_entry: bool = False, patience: float | None = None) -> None:
    options: dict[str, Any] = {"raytrainDebugStopOnEntry": stop_on_entry}
    if token:
        options["raytrainDebugToken"] = token
    session.attach(options, patience=patience)


def _script(terminal: Terminal, group: Group, commands: list[str], left_out: bool) -> int:
    try:
        return terminal.run_script(list(lines_of(commands))) or int(left_out)
    except KeyboardInterrupt:
        group.disconnect(1.0)
        return INTERRUPTED


def _states(target: Target) -> dict[int, str]:
    """The launcher's words for what ranks do now ("waiting", "dormant", ...); none when it does not say."""
    try:
        answer = channel.ask(target.launcher.socket, {"op": "status"}, 2.0)
        return {int(rank): str(each["state"]) for rank, each in answer["ranks"].items()}
    except (ControlError, KeyError, TypeError, ValueError):
        return {}


def _look(run: RunPaths, token: str | None) -> tuple[Sample, tuple[Ended, ...]]:
    """What all ranks of the run do at this moment, attached or not, and which have ended."""
    try:
        live = gathering.look_at(load_run(run, last=0), token=token)
    except RaytrainDebugError:
        return Sample({}, {}), ()
    return read_sample(live.ask({"op": "stacks"}, LOOKS_FOR)), live.ended


def _how_it_ended(record: RunRecord) -> str:
    if record.ended is None:
        return "has no live launcher"
    when = time.strftime("%H:%M:%S on %Y-%m-%d", time.localtime(record.ended))
    if record.stopped:
        return f"was stopped by {record.stopped} at {when}"
    return f"ended with exit code {record.exit_code} at {when}" if record.exit_code is not None else f"ended at {when}"


def _how_rank_ended(exit: ExitRecord) -> str:
    return f"was ended by {exit.signal}" if exit.signal else f"ended with exit code {exit.exit_code}"


def _remedy(run: RunPaths) -> str:
    return f"see what it left with: python -m raytrain_debug postmortem {run.id}"
