"""What commands on live ranks share: which run, which ranks, asking them all, and looking again and again."""

from __future__ import annotations

import argparse
import os
import socket
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raytrain_debug.across.ask import Address, ask_all
from raytrain_debug.across.hang import Ended
from raytrain_debug.cli import console
from raytrain_debug.dap.asking import ask_through_gateway
from raytrain_debug.errors import ControlError, DapError, RunNotFound, RunNotLive, UsageError
from raytrain_debug.postmortem.liveness import liveness
from raytrain_debug.run import layout
from raytrain_debug.run.ranks import parse_ranks
from raytrain_debug.run.reach import gateway_of
from raytrain_debug.run.reader import Rank, Run, load_run

_AT_ONCE = 32  # connections to other machines

Answers = dict[int, dict[str, Any] | ControlError]


@dataclass(frozen=True)
class Live:
    """A run that is at work: the ranks that can be asked, and what to say of the others that were meant."""

    run: Run
    addresses: tuple[Address, ...]
    elsewhere: dict[int, tuple[str, int]]  # ranks of other machines: host and port of their gateways
    absent: dict[int, ControlError]
    ended: tuple[Ended, ...]
    token: str | None = None

    @property
    def cwd(self) -> str:
        """Where the job was started."""
        return self.run.record.cwd if self.run.record is not None else ""

    def ask(self, request: dict[str, Any], timeout: float) -> Answers:
        """Each rank's answer, or why there is none."""
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            far = {
                rank: pool.submit(ask_through_gateway, host, port, request, timeout, self.token)
                for rank, (host, port) in self.elsewhere.items()
            }
            near = ask_all(self.addresses, request, timeout)
        return {**self.absent, **near, **{rank: _result(future) for rank, future in far.items()}}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options that these commands share."""
    parser.add_argument("--ranks", metavar="RANKS", default="all", help="0,2-3 or all (default %(default)s)")
    parser.add_argument(
        "--run", dest="run_name", metavar="RUN", help="a run's id, a unique start of it, or its directory (newest live)"
    )
    parser.add_argument("--run-root", type=Path, metavar="DIR", help="where runs are kept (./.raytrain_debug)")
    parser.add_argument(
        "--timeout", type=positive, default=2.0, metavar="SECONDS", help="for each rank to answer (default %(default)s)"
    )
    parser.add_argument(
        "--token", help="what launch was given with --token, for ranks on other machines (RAYTRAIN_DEBUG_TOKEN)"
    )
    parser.add_argument("--json", action="store_true", help="print strict JSON")


def positive(text: str) -> float:
    """An option's number of seconds."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e6:
        raise argparse.ArgumentTypeError(f"{text} is no number of seconds above 0")
    return seconds


def find_live(args: argparse.Namespace) -> Live:
    """The ranks that the options name, in the run they name or the newest live one; raises RunNotLive, UsageError."""
    root = args.run_root or layout.default_root()
    paths = layout.find_run(args.run_name, root) if args.run_name else _newest_live(root)
    token = args.token or os.environ.get("RAYTRAIN_DEBUG_TOKEN")
    return look_at(load_run(paths, last=0), parse_ranks(args.ranks), token)


def look_at(run: Run, wanted: Sequence[int] | None = None, token: str | None = None) -> Live:
    """The ranks of a run, or those `wanted`; raises RunNotLive, and UsageError for one that it does not have."""
    name = run.paths.id
    if not liveness(run).anything:
        raise RunNotLive(f"run {name} has ended", f"see what it left with: python -m raytrain_debug postmortem {name}")
    here = {rank.rank: rank for rank in run.ranks}
    far = _elsewhere(run)
    relays = run.record.launcher.relays if run.record is not None and run.record.launcher is not None else {}
    numbers = sorted({*here, *far})
    if wanted is not None and (unknown := sorted(set(wanted) - set(numbers))):
        raise UsageError(f"run {name} has no rank {unknown[0]}", f"its ranks are 0 to {max(numbers, default=0)}")
    meant = numbers if wanted is None else wanted
    addresses: list[Address] = []
    reachable: dict[int, tuple[str, int]] = {}
    absent: dict[int, ControlError] = {}
    ended: list[Ended] = []
    for number in meant:
        place, rank = far.get(number), here.get(number)
        process = rank.process if rank is not None else None
        if isinstance(place, ControlError):
            absent[number] = place
        elif place is not None:
            reachable[number] = place
        elif rank is not None and (end := how_it_ended(rank)) is not None:
            ended.append(Ended(number, end))
        elif str(number) in relays:
            addresses.append(Address(number, relays[str(number)]))
        elif process is None:
            absent[number] = ControlError("it has not started yet")
        elif process.host != socket.gethostname():
            absent[number] = ControlError(f"it runs on {process.host}: ask there")
        else:
            addresses.append(Address(number, process.control, process.pid))
    return Live(run, tuple(addresses), reachable, absent, tuple(ended), token)


def _elsewhere(run: Run) -> dict[int, tuple[str, int] | ControlError]:
    """The ranks of other nodes: where their gateways are, or why they cannot be reached from here."""
    record = run.record
    if record is None or record.nnodes < 2 or record.launcher is None:
        return {}
    here = {rank.rank for rank in run.ranks if str(rank.rank) not in record.launcher.hosts}
    found: dict[int, tuple[str, int] | ControlError] = {}
    for rank in set(range(record.world_size)) - here:
        try:
            found[rank] = gateway_of(record, rank)
        except RunNotFound as error:
            found[rank] = ControlError(error.remedy.splitlines()[0])
    return found


def _result(future: Future[dict[str, Any]]) -> dict[str, Any] | ControlError:
    try:
        return future.result()
    except (ControlError, DapError) as error:
        return ControlError(str(error))


def how_it_ended(rank: Rank) -> str | None:
    """ "has returned (exit code 0)", for a rank whose newest process has ended and is recorded so."""
    end = rank.last_exit
    if end is None or (rank.process is not None and rank.process.pid != end.pid):
        return None
    if end.signal is not None:
        return f"has been ended by {end.signal}"
    return f"has {'returned' if end.exit_code == 0 else 'failed'} (exit code {end.exit_code})"


def repeat(picture: Callable[[], Sequence[Any]], interval: float) -> int:
    """Show `picture()` every `interval` seconds until the run ends or the person has had enough (Ctrl-C); exit code 0.

    In a terminal it is drawn in place; in a pipe or file each one that differs from the last is printed. Raises
    RunNotLive when the run has ended before the first.
    """
    shown = 0

    def next_picture() -> Sequence[Any]:
        nonlocal shown
        parts = picture()
        shown += 1
        return parts

    try:
        (_redraw if sys.stdout.isatty() else _reprint)(next_picture, interval)
    except KeyboardInterrupt:
        pass
    except RunNotLive as over:
        if not shown:
            raise
        console.note(str(over))
    return 0


def _redraw(picture: Callable[[], Sequence[Any]], interval: float) -> None:
    from rich.console import Console, Group
    from rich.live import Live as Display

    with Display(console=Console(highlight=False, emoji=False), auto_refresh=False) as display:
        while True:
            display.update(Group(*picture()), refresh=True)
            time.sleep(interval)


def _reprint(picture: Callable[[], Sequence[Any]], interval: float) -> None:
    last = ""
    while True:
        text = console.rendered(*picture())
        if text != last:
            sys.stdout.write(text)
            sys.stdout.flush()
        last = text
        time.sleep(interval)


def _newest_live(root: Path) -> layout.RunPaths:
    runs: Iterable[layout.RunPaths] = reversed(layout.list_runs(root))
    for paths in runs:
        if liveness(load_run(paths, last=0)).anything:
            return paths
    return layout.find_run(None, root)


def interval_argument(parser: argparse.ArgumentParser, name: str, default: float, summary: str) -> None:
    """Add an option `NAME [SECONDS]` for looking again and again."""
    parser.add_argument(name, type=positive, nargs="?", const=default, metavar="SECONDS", help=summary)
