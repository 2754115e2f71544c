"""Sees that no rank of this node has moved for a while, tells what they stand in, and keeps that in the run.

A thread of the launcher: it asks ranks over their control channels, and waits for those that do not answer.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from raytrain_debug.across.ask import Address, ask_all
from raytrain_debug.across.hang import Ended, Hang, HangDetector, report_difference, spread
from raytrain_debug.across.stacks import fold, read_sample, stacks_of
from raytrain_debug.across.threads import in_words, thread_ends
from raytrain_debug.launcher.host import Host
from raytrain_debug.launcher.job import Job, RankState
from raytrain_debug.run import writer
from raytrain_debug.run.reader import tail_reports, thread_exceptions
from raytrain_debug.run.records import CallSite, HangRecord, StackGroup

_SLOWEST, _FASTEST = 5.0, 0.2  # seconds between looks
_LOOKS = 10  # in the time after which a hang is told
_PATIENCE = 2.0  # seconds for a rank to answer


@dataclass(frozen=True)
class _Ranks:
    """The ranks of this node as the launcher knows them at one moment."""

    addresses: tuple[Address, ...]
    ended: tuple[Ended, ...]
    held: bool


class HangWatch:
    """`after` is in seconds. `tell` gets each hang once, `warn` a sentence; both are called in the watch's thread."""

    def __init__(
        self,
        host: Host,
        job: Job,
        after: float,
        tell: Callable[[Hang, Sequence[Ended]], None],
        warn: Callable[[str], None],
    ) -> None:
        self._host = host
        self._job = job
        self._after = after
        self._tell = tell
        self._warn = warn
        self._detector = HangDetector(after, os.getcwd())
        self._apart_since: float | None = None  # since when reports have been more than one apart
        self._warned = False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="raytrain_debug hang watch", daemon=True)

    def start(self) -> None:
        """Watch from now on."""
        self._thread.start()

    def close(self, succeeded: bool) -> None:
        """The job is over; when it `succeeded`, its ranks should have made the same number of reports."""
        self._over.set()
        self._thread.join(_PATIENCE)
        if succeeded:
            self._warn_of(self._reports())

    def _run(self) -> None:
        period = min(max(self._after / _LOOKS, _FASTEST), _SLOWEST)
        while not self._over.wait(period):
            try:
                self._look()
            except Exception as error:
                if not self._over.is_set():
                    self._warn(f"the hang watch has stopped: {type(error).__name__}: {error}")
                return

    def _look(self) -> None:
        ranks = self._host.run(self._ranks)
        sample = read_sample(ask_all(ranks.addresses, {"op": "stacks"}, _PATIENCE))
        reports = self._reports()
        now = time.monotonic()
        if self._over.is_set() or self._host.run(self._ranks) != ranks:
            return  # it changed while we looked: what we saw is of no one moment
        hang = self._detector.look(sample, now, ranks.ended, reports, ranks.held)
        if hang is not None:
            hang = replace(hang, notes=(*self._ended_threads(), *hang.notes))
            self._record(hang)
            self._tell(hang, ranks.ended)
        self._compare(reports, now)

    def _ranks(self) -> _Ranks:
        """In the event loop."""
        here = [rank for rank in self._job.ranks.values() if rank.pid is not None]
        alive = [rank for rank in here if rank.exit is None]
        return _Ranks(
            addresses=tuple(
                Address(rank.rank, rank.control, rank.pid_here) for rank in alive if rank.control is not None
            ),
            ended=tuple(Ended(rank.rank, _how(rank)) for rank in here if rank.exit is not None),
            held=self._job.held_elsewhere
            or any(rank.paused or rank.waiting is not None or rank.control is None for rank in alive),
        )

    def _reports(self) -> dict[int, int]:
        return {number: tail_reports(self._job.paths.rank(number), 0)[0] for number in sorted(self._job.ranks)}

    def _ended_threads(self) -> list[str]:
        """What ended threads of the ranks in this attempt: a rank may wait for what such a thread was to bring."""
        attempt = self._job.record.attempt
        ends = thread_ends(
            (number, record)
            for number in sorted(self._job.ranks)
            for record in thread_exceptions(self._job.paths.rank(number))
            if record.attempt == attempt
        )
        return in_words(ends, os.getcwd())

    def _compare(self, reports: dict[int, int], now: float) -> None:
        """Warn when ranks have been more than one report apart for as long as a hang takes to be told."""
        if spread(reports) < 2:
            self._apart_since = None
        elif self._apart_since is None:
            self._apart_since = now
        elif now - self._apart_since >= self._after:
            self._warn_of(reports)

    def _warn_of(self, reports: dict[int, int]) -> None:
        difference = report_difference(reports)
        if difference is not None and not self._warned:
            self._warned = True
            self._warn(difference)

    def _record(self, hang: Hang) -> None:
        groups = [
            StackGroup(
                group.ranks,
                group.waiting_in,
                tuple(CallSite(each.file, each.line, each.function) for each in group.frames),
            )
            for group in fold(stacks_of(hang.sample))
        ]
        record = HangRecord(
            time=time.time(),
            seconds=hang.seconds,
            attempt=self._job.record.attempt,
            verdict=hang.sentence,
            notes=hang.notes,
            groups=tuple(groups),
            silent={str(rank): why for rank, why in hang.sample.silent.items()},
        )
        try:
            writer.write_record(self._job.paths.hang, record)
        except OSError:
            pass  # the run may lie on a full disk; the hang is told all the same


def _how(rank: RankState) -> str:
    end = rank.exit
    if end is None or end.signal is not None:
        return f"has been ended by {end.signal}" if end is not None else "has ended"
    return f"has {'returned' if end.exit_code == 0 else 'failed'} (exit code {end.exit_code})"
