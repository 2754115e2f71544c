"""Ranks that were set in motion and do not come back: whether to wait longer for them, and what keeps them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from raytrain_debug.across.hang import Ended, ranks_in_words, sentence
from raytrain_debug.across.movement import Movement
from raytrain_debug.across.stacks import Sample

_LOOK = 0.25  # seconds between two looks
_STILL = 0.5  # seconds in one place of a collective after which a rank waits there

Look = Callable[[], tuple[Sample, Sequence[Ended]]]
"""All ranks of the job, attached or not, and those of them that have ended."""


class Watch:
    """Looks at ranks that are on their way, from when they are set in motion until the prompt waits no longer."""

    def __init__(self, look: Look, cwd: str, patience: float) -> None:
        """`patience` is for how long (seconds) a rank may be late once others are back, or others keep it waiting."""
        self.pause = _LOOK
        self._look = look
        self._cwd = cwd
        self._patience = patience
        self._movement = Movement()
        self._blocked_since: float | None = None
        self._back_since: float | None = None

    def came_back(self, now: float) -> None:
        """A rank has come to stand at `now`, seconds of any clock."""
        self._back_since = now

    def why_not_wait(self, away: Collection[int], focus: Collection[int], now: float, late: bool = False) -> str | None:
        """Why the ranks `away` are not back, when they are `late` or will not be back for long; else None."""
        sample, ended = self._look()
        away = [rank for rank in away if not _stands(sample, rank)]
        if not away:
            return None  # they have just come back
        self._movement.look(sample, now)
        blocked = {rank for rank in away if _waits_for_peers(sample, rank) and self._still(rank, now)}
        if blocked != set(away):
            self._blocked_since = None
            late = late or (self._back_since is not None and now - self._back_since >= self._patience)
        else:
            self._blocked_since = now if self._blocked_since is None else self._blocked_since
            late = late or now - self._blocked_since >= self._patience or not _others(sample)
        return what_keeps(sample, ended, away, focus, self._cwd) if late else None

    def _still(self, rank: int, now: float) -> bool:
        return now - self._movement.since.get(rank, now) >= _STILL


def what_keeps(
    sample: Sample, ended: Sequence[Ended], away: Collection[int], focus: Collection[int], cwd: str = ""
) -> str:
    """`rank 2 waits in all_reduce at train.py:88 for ranks not in focus (rank 1); rank 3 is in load at data.py:12`."""
    parts = []
    if waiting := [rank for rank in sorted(away) if _waits_for_peers(sample, rank)]:
        parts.append(sentence(_only(sample, waiting), cwd=cwd) + _for_whom(sample, ended, focus))
    if others := sentence(_only(sample, [rank for rank in away if rank not in waiting]), cwd=cwd):
        parts.append(others)
    if unseen := sorted(set(away) - set(sample.ranks) - set(sample.silent)):
        parts.append(f"{ranks_in_words(unseen)} cannot be asked where {'it is' if len(unseen) == 1 else 'they are'}")
    return "; ".join(parts)


def _for_whom(sample: Sample, ended: Sequence[Ended], focus: Collection[int]) -> str:
    """Whoever is not in a collective itself may be who the others wait for."""
    absent = [rank for rank in sample.ranks if not _waits_for_peers(sample, rank)] + list(sample.silent)
    outside = [rank for rank in absent if rank not in focus]
    parts = [f"ranks not in focus ({ranks_in_words(outside)})"] if outside else []
    if standing := [rank for rank in absent if rank in focus and _stands(sample, rank)]:
        parts.append(f"{ranks_in_words(standing)}, which {'stands' if len(standing) == 1 else 'stand'}")
    if gone := [each.rank for each in ended]:
        parts.append(f"{ranks_in_words(gone)}, which {'has' if len(gone) == 1 else 'have'} ended")
    return f" for {' and '.join(parts)}" if parts else ""


def _waits_for_peers(sample: Sample, rank: int) -> bool:
    return rank in sample.ranks and sample.ranks[rank].state == "running" and sample.ranks[rank].training.peers


def _stands(sample: Sample, rank: int) -> bool:
    return rank in sample.ranks and sample.ranks[rank].state != "running"


def _others(sample: Sample) -> bool:
    """Whether a rank runs that could end the wait of those in collectives; of one that is silent nobody knows."""
    return bool(sample.silent) or any(
        not _stands(sample, rank) and not _waits_for_peers(sample, rank) for rank in sample.ranks
    )


def _only(sample: Sample, ranks: Collection[int]) -> Sample:
    return Sample(
        {rank: each for rank, each in sample.ranks.items() if rank in ranks},
        {rank: why for rank, why in sample.silent.items() if rank in ranks},
    )
