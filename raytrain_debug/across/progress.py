"""How far each rank of a live job has come and what it does now; ranks that are alike in one row, the oldest first."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from raytrain_debug.across.movement import Movement
from raytrain_debug.across.stacks import RankStacks, Sample

_STILL = 2.0  # seconds in one place before ranks can be said to wait for others
ENDED = ("finished", "failed", "stopped", "lost")  # the states of a rank that is no more


@dataclass(frozen=True)
class RankProgress:
    """One rank at one moment. Rates are per second; ages in seconds, `age` since its last report; sizes in bytes.

    None stands for what cannot be told: no report yet, no torch, another machine. `silent` is why it does not answer,
    when it does not.
    """

    rank: int
    state: str
    now: RankStacks | None = None
    still: float = 0.0
    reports: int | None = None
    age: float | None = None
    report_rate: float | None = None
    collective_rate: float | None = None
    rss: int | None = None
    gpu_memory: int | None = None
    silent: str = ""


@dataclass(frozen=True)
class Row:
    """Ranks that are in the same state at the same place with as many reports.

    `remark` tells why they stand out, as those do too that do not answer.
    """

    members: tuple[RankProgress, ...]
    remark: str = ""

    @property
    def ranks(self) -> tuple[int, ...]:
        """Their numbers."""
        return tuple(member.rank for member in self.members)

    @property
    def silent(self) -> str:
        """Why they do not answer, when they do not."""
        return self.members[0].silent


@dataclass
class Follower:
    """Turns samples that follow each other into movement and rates."""

    movement: Movement = field(default_factory=Movement)
    _started: dict[int, int] = field(default_factory=dict)
    _at: float | None = None
    rates: dict[int, float] = field(default_factory=dict)

    def look(self, sample: Sample, now: float) -> None:
        """Take a sample of time `now`, in seconds of a clock that never jumps."""
        self.movement.look(sample, now)
        started = {rank: sum(each.started.values()) for rank, each in sample.ranks.items() if each.started}
        passed = 0.0 if self._at is None else now - self._at
        self.rates = {
            rank: max(count - self._started[rank], 0) / passed
            for rank, count in started.items()
            if rank in self._started and passed > 0
        }
        self._started, self._at = started, now

    def still(self, rank: int, now: float) -> float:
        """For how long the rank has stood where it stands."""
        return now - self.movement.since.get(rank, now)


def rate_of(intervals: Iterable[float | None]) -> float | None:
    """Reports per second, from the seconds between them; None when there are none."""
    known = [interval for interval in intervals if interval is not None and interval > 0]
    return len(known) / sum(known) if known else None


def reports_behind(reports: int | None, most: int) -> int:
    """How many reports a rank that has made `reports` lags behind one that has made `most`; 0 for a lag of one, which
    ranks that take turns always show, and for a rank whose reports are not known."""
    lag = most - reports if reports is not None else 0
    return lag if lag > 1 else 0


def rows(ranks: Iterable[RankProgress]) -> list[Row]:
    """The ranks in rows: those that do not answer, others that stand out, then by the oldest sign of progress."""
    everyone = list(ranks)
    groups: dict[tuple[object, ...], list[RankProgress]] = {}
    for rank in everyone:
        groups.setdefault(_alike(rank), []).append(rank)
    most = max((rank.reports for rank in everyone if rank.reports is not None), default=0)
    some_wait = any(rank.now is not None and rank.now.training.peers and rank.still >= _STILL for rank in everyone)
    holds_up = _is_gone if any(rank.silent for rank in everyone) else _holds_up
    made = [Row(tuple(members), _remark(members, most, some_wait, holds_up)) for members in groups.values()]
    return sorted(made, key=_urgency)


def _urgency(row: Row) -> tuple[object, ...]:
    return not row.silent, not row.remark, -max(_oldest(member) for member in row.members), row.ranks


def _alike(rank: RankProgress) -> tuple[object, ...]:
    if rank.now is None:
        return (rank.state, rank.reports, rank.silent)
    stack = rank.now.training
    return (rank.state, rank.reports, stack.waiting_in, stack.place if stack.waiting_in or rank.still >= _STILL else "")


def _oldest(rank: RankProgress) -> float:
    return max(rank.age or 0.0, rank.still)


def _remark(members: list[RankProgress], most: int, some_wait: bool, holds_up: Callable[[RankProgress], bool]) -> str:
    first = members[0]
    behind = reports_behind(first.reports, most)
    if behind and not first.silent:
        return f"{behind} reports behind"
    if some_wait and all(holds_up(member) for member in members):
        return "others wait for it" if len(members) == 1 else "others wait for them"
    return f"{behind} reports behind" if behind else ""


def _holds_up(rank: RankProgress) -> bool:
    """Whether others that wait can only wait for it: it has ended, or has been elsewhere for a while."""
    if rank.now is None:
        return _is_gone(rank)
    return rank.still >= _STILL and rank.now.state == "running" and not rank.now.training.peers


def _is_gone(rank: RankProgress) -> bool:
    """Whether it does nothing at all; where such a rank is, one that works is not to blame for others that wait."""
    return bool(rank.silent) or rank.state in ENDED
