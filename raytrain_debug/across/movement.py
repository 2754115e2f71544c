"""Whether ranks move: two looks at the same rank compared, and for how long it has stood where it stands."""

from __future__ import annotations

from dataclasses import dataclass, field

from raytrain_debug.across.stacks import RankStacks, Sample

_IDLE = 0.02  # seconds of CPU time that a thread which waits in one place may use between two looks all the same


def stands(before: RankStacks, now: RankStacks) -> bool:
    """Whether the training thread was at the same place in the same collective both times."""
    return before.mark == now.mark and before.state == now.state and before.started == now.started


def idles(before: RankStacks, now: RankStacks) -> bool:
    """Whether, standing there, it did next to nothing; a loop that is always seen at one line works all the same."""
    if len(before.work) != 2 or len(now.work) != 2:
        return True
    (seconds_before, sleeps_before), (seconds, sleeps) = before.work, now.work
    return seconds - seconds_before <= _IDLE and sleeps == sleeps_before


@dataclass
class Movement:
    """Follows ranks over samples. `since` has the time at which each was first seen where it stands."""

    since: dict[int, float] = field(default_factory=dict)
    idle_since: dict[int, float] = field(default_factory=dict)
    _last: dict[int, RankStacks | str] = field(default_factory=dict)

    def look(self, sample: Sample, now: float) -> set[int]:
        """Take a sample of time `now` (seconds of any clock); the ranks that moved since the last one."""
        seen: dict[int, RankStacks | str] = {**sample.ranks, **{rank: "silent" for rank in sample.silent}}
        moved = set()
        for rank, current in seen.items():
            before = self._last.get(rank)
            if not _same(before, current):
                moved.add(rank)
                self.since[rank] = self.idle_since[rank] = now
            elif isinstance(before, RankStacks) and isinstance(current, RankStacks) and not idles(before, current):
                self.idle_since[rank] = now
        for rank in set(self.since) - set(seen):
            del self.since[rank], self.idle_since[rank]
            moved.add(rank)
        self._last = seen
        return moved


def _same(before: RankStacks | str | None, now: RankStacks | str) -> bool:
    if isinstance(before, RankStacks) and isinstance(now, RankStacks):
        return stands(before, now)
    return before == now
