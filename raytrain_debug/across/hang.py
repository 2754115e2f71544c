"""What a hang is, told from all ranks' stacks: one sentence, and what else a person should know about it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from raytrain_debug.across.movement import Movement
from raytrain_debug.across.stacks import RankStacks, Sample, Stack
from raytrain_debug.run.words import counted

# Point-to-point: two ranks of one exchange are in different ones of these.
_POINT_TO_POINT = ("send", "recv", "isend", "irecv", "batch_isend_irecv")

_DEFAULT_GROUP = "0"  # as the flight recorder numbers it


@dataclass(frozen=True)
class Hang:
    """Ranks that do not move. `sentence` is the verdict; `notes` say what it comes from, where that can be told."""

    seconds: float
    sentence: str
    notes: tuple[str, ...]
    sample: Sample


@dataclass(frozen=True)
class Ended:
    """A rank that has ended while others go on, in words: "has returned (exit code 0)"."""

    rank: int
    how: str


@dataclass
class HangDetector:
    """Decides, sample by sample, that no rank has moved for `after` seconds. Tells each hang once.

    A rank that is debugged or waits for a debugger stops the clock. A rank that has ended, or does not answer, does
    not move; when every rank has, there is nothing to tell.
    """

    after: float
    cwd: str = ""
    _movement: Movement = field(default_factory=Movement)
    _told: bool = False

    def look(
        self,
        sample: Sample,
        now: float,
        ended: Sequence[Ended] = (),
        reports: Mapping[int, int] | None = None,
        held: bool = False,
    ) -> Hang | None:
        """Take a sample of time `now`; a Hang when one has just been going on for long enough."""
        moved = self._movement.look(sample, now)
        held = held or any(rank.state != "running" for rank in sample.ranks.values())
        if moved or held or not self._movement.since:
            self._told = False
        if held:
            for rank in self._movement.since:
                self._movement.since[rank] = self._movement.idle_since[rank] = now
        if held or self._told or not self._movement.since:
            return None
        since = self._movement.since if _waits_for_peers(sample) else self._movement.idle_since
        seconds = now - max(since.values())
        if seconds < self.after:
            return None
        self._told = True
        return Hang(seconds, sentence(sample, ended, self.cwd), notes(sample, ended, reports or {}), sample)


def _waits_for_peers(sample: Sample) -> bool:
    """Whether some rank waits for others: one that then loops at one line for long is what they wait for."""
    return any(rank.training.peers or rank.pending for rank in sample.ranks.values())


def sentence(sample: Sample, ended: Sequence[Ended] = (), cwd: str = "") -> str:
    """`ranks 0, 2, 3 wait in all_reduce at train.py:88; rank 1 is in load_batch at data.py:12`."""
    parts: dict[tuple[bool, str, str], list[int]] = {}
    for rank in sample.ranks.values():
        text = _doing(rank, cwd)
        parts.setdefault((not rank.training.peers, text[0], text[1]), []).append(rank.rank)
    for number, why in sample.silent.items():
        parts.setdefault((True, f"gives {why}", f"give {why}"), []).append(number)
    for each in ended:
        parts.setdefault((True, each.how, each.how.replace("has ", "have ", 1)), []).append(each.rank)
    told = sorted(parts.items(), key=lambda item: (item[0][0], -len(item[1]), item[1]))
    return "; ".join(f"{ranks_in_words(ranks)} {one if len(ranks) == 1 else many}" for (_, one, many), ranks in told)


def notes(sample: Sample, ended: Sequence[Ended] = (), reports: Mapping[int, int] | None = None) -> tuple[str, ...]:
    """What explains the hang, one sentence each."""
    found: list[str] = []
    if ended and _waits_for_peers(sample):
        names = ranks_in_words([each.rank for each in ended])
        found.append(f"{names} will not take part in what the others wait for")
    collectives = _by(sample, _collective)
    if len(collectives) > 1:
        parts = ", ".join(f"{ranks_in_words(ranks)} in {name}" for name, ranks in collectives.items())
        found.append(f"ranks are in different collectives ({parts}): none of these can complete")
    found += _behind(sample)
    difference = report_difference(reports or {})
    # Ranks stopped around a report differ by one and nothing is wrong with that.
    if difference is not None and (ended or spread(reports or {}) > 1):
        found.append(difference)
    return tuple(found)


def report_difference(reports: Mapping[int, int]) -> str | None:
    """A warning when ranks have made different numbers of reports, by rank; None when they agree."""
    counts: dict[int, list[int]] = {}
    for rank, count in sorted(reports.items()):
        counts.setdefault(count, []).append(rank)
    if len(counts) < 2:
        return None
    parts = "; ".join(
        f"{ranks_in_words(ranks)} {'has' if len(ranks) == 1 else 'have'} made {counted(count, 'report')}"
        for count, ranks in sorted(counts.items(), reverse=True)
    )
    return f"{parts}: with num_workers > 0 ray.train.report is a barrier, and different counts hang or fail there"


def spread(reports: Mapping[int, int]) -> int:
    """How many reports the rank with the most has made more than the rank with the fewest."""
    return max(reports.values(), default=0) - min(reports.values(), default=0)


def ranks_in_words(ranks: Sequence[int]) -> str:
    """`rank 1`, `ranks 0, 2, 3`, `ranks 0-63`: ranges where three or more follow each other."""
    ordered = sorted(ranks)
    parts: list[str] = []
    start = 0
    for at, rank in enumerate(ordered):
        if at + 1 < len(ordered) and ordered[at + 1] == rank + 1:
            continue
        if at - start >= 2:
            parts.append(f"{ordered[start]}-{rank}")
        else:
            parts += [str(each) for each in ordered[start : at + 1]]
        start = at + 1
    return f"rank{'' if len(ordered) == 1 else 's'} {', '.join(parts)}"


def place_in_words(file: str, line: int, cwd: str) -> str:
    """`data.py:12` for a file below `cwd`, else its whole path; native code has no line (0)."""
    below = cwd.rstrip(os.sep) + os.sep
    name = file[len(below) :] if cwd and file.startswith(below) else file
    return f"{name}:{line}" if line else name


def _doing(rank: RankStacks, cwd: str) -> tuple[str, str]:
    """What a rank does, for one rank and for several."""
    stack = rank.training
    place = stack.place
    at = f" at {place_in_words(place.file, place.line, cwd)}" if place is not None else ""
    if stack.waiting_in is not None:
        return f"waits in {stack.waiting_in}{at}", f"wait in {stack.waiting_in}{at}"
    inside = f" in {place.function}" if place is not None else " in no Python code"
    under_way = f" with {rank.pending[0][1]} under way" if rank.pending else ""
    return f"is{inside}{at}{under_way}", f"are{inside}{at}{under_way}"


def _collective(stack: Stack) -> str | None:
    label = stack.waiting_in
    if not stack.peers or label is None or label.split()[0] in _POINT_TO_POINT:
        return None
    return label


def _by(sample: Sample, key: Callable[[Stack], str | None]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for rank in sample.ranks.values():
        name = key(rank.training)
        if name is not None:
            found.setdefault(name, []).append(rank.rank)
    return found


def _behind(sample: Sample) -> list[str]:
    """Ranks that have begun fewer collectives of the default group, which all ranks share, than others."""
    counts: dict[int, list[int]] = {}
    for rank in sample.ranks.values():
        if (count := rank.started.get(_DEFAULT_GROUP)) is not None:
            counts.setdefault(count, []).append(rank.rank)
    if len(counts) < 2:
        return []
    parts = ", ".join(
        f"{ranks_in_words(ranks)} {'has' if len(ranks) == 1 else 'have'} begun {count}"
        for count, ranks in sorted(counts.items())
    )
    return [f"collectives of the default process group: {parts}"]
