"""Where the ranks of one `fit()` meet: each step is taken by all, and a rank that will not come is named at once.

Waits have no limit: somebody may be thinking at a breakpoint. They end when the others come, or when one cannot.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from raytrain_debug.errors import RanksDiffer
from raytrain_debug.run import codec
from raytrain_debug.run.ranks import name_ranks
from raytrain_debug.run.records import CallSite, from_dict, to_dict
from raytrain_debug.run.words import counted
from raytrain_debug.shim.faithful.peers import Peer, is_alive, this_process
from raytrain_debug.shim.faithful.store import SignedStore

REPORT = "ray.train.report"

_SHORTEST, _LONGEST = 0.001, 0.05  # seconds between two looks at the store
_ROLL_CALL = 0.5  # seconds between two looks whether the others are alive
_GRACE = 10.0  # seconds in which torchrun ends a rank whose peer has died
_ANSWER, _REFUSAL = b"=", b"!"


@dataclass(frozen=True)
class Call:
    """A call that all ranks make together: `reports` counts those of this rank, this one included."""

    name: str
    where: CallSite | None = None
    reports: int = 0

    @property
    def text(self) -> str:
        """`ray.train.report (its report 3) at train.py:12`."""
        number = f" (its report {self.reports})" if self.name == REPORT else ""
        place = f" at {_place(self.where)}" if self.where is not None else ""
        return f"{self.name}{number}{place}"


@dataclass(frozen=True)
class Standing:
    """What a rank says of itself: the last step it came to, and how its training function has ended, if it has.

    `failed` when it has ended in a way that lets torchrun end the whole job.
    """

    rank: int
    step: int = 0
    call: Call = field(default_factory=lambda: Call("fit"))
    ended: str = ""
    failed: bool = False


class Meeting:
    """This rank among the `size` ranks of one `fit()`. To be used by one thread at a time.

    `say` prints a line to the user.
    """

    def __init__(self, store: SignedStore, rank: int, size: int, say: Callable[[str], None]) -> None:
        self._store = store
        self._size = size
        self._say = say
        self._standing = Standing(rank)
        self._neighbours: dict[int, Peer] = {}  # the other ranks on this machine
        self._ends_seen = 0
        self._told: set[int] = set()  # ranks that are known to have failed
        self._given_up: float | None = None  # when this rank stops waiting for one that is dead
        self._kind = self._kind_before = ""  # of this step and the one before: equal on all ranks, or they differ

    @property
    def rank(self) -> int:
        return self._standing.rank

    def begin(self, value: bytes) -> bytes:
        """The first step: get to know the others; rank 0's `value`."""
        own = codec.dumps(to_dict(this_process())).encode()
        peers = self.gather(Call("fit"), own, lambda parts: b"\n".join(parts)).split(b"\n")
        known = {rank: from_dict(Peer, codec.loads(text)) for rank, text in enumerate(peers)}
        machine = known[self.rank].machine
        self._neighbours = {rank: peer for rank, peer in known.items() if rank != self.rank and peer.machine == machine}
        return self.share(Call("fit"), value)

    def share(self, call: Call, value: bytes = b"") -> bytes:
        """Wait until all ranks make this call; rank 0's `value`. Raises RanksDiffer."""
        self._arrive(call, call.name)
        return self._meet(lambda: value)

    def gather(self, call: Call, part: bytes, combine: Callable[[list[bytes]], bytes]) -> bytes:
        """Wait until all ranks make this call; what rank 0's `combine` makes of all parts. Raises RanksDiffer."""
        step = self._standing.step + 1
        if self.rank:
            self._store.put(f"{step}/{self.rank}", part)
        self._arrive(call, f"{call.name} with parts")
        return self._meet(
            lambda: combine([part, *(self._store.take(f"{step}/{rank}") for rank in range(1, self._size))])
        )

    def end(self, how: str, failed: bool) -> None:
        """Tell the others that this rank's training function has ended: they wait for it no more."""
        self._stand(replace(self._standing, ended=how, failed=failed))
        self._store.count("ended", 1)

    def see_all_end(self) -> None:
        """Wait until no rank's training function runs any more, which is when `fit()` returns on a cluster."""
        pause = _SHORTEST
        while self._store.count("ended") < self._size:
            for rank, peer in self._neighbours.items():
                if not is_alive(peer) and not self._standing_of(rank).ended:
                    return  # it will not tell any more
            time.sleep(pause)
            pause = min(1.5 * pause, 10 * _LONGEST)

    def is_first(self, what: str) -> bool:
        """True for the first rank that asks for `what`."""
        return self._store.count(what, 1) == 1

    def _arrive(self, call: Call, kind: str) -> None:
        self._kind, self._kind_before = kind, self._kind
        self._stand(Standing(self.rank, self._standing.step + 1, call))
        step = self._standing.step
        self._store.count(f"{step}/{kind}", 1)
        self._store.count(f"{step}/all", 1)

    def _meet(self, result: Callable[[], bytes]) -> bytes:
        step = self._standing.step
        if self.rank:
            self._wait(lambda: self._store.has(f"{step}/result"))
            answer = self._store.take(f"{step}/result")
            if answer[:1] == _REFUSAL:
                raise RanksDiffer(answer[1:].decode())
            return answer[1:]
        self._wait(lambda: self._store.count(f"{step}/all") == self._size)
        if self._store.count(f"{step}/{self._kind}") < self._size:
            error = _differ(different_calls(self._standings()))
            self._store.put(f"{step}/result", _REFUSAL + str(error).encode())
            raise error
        try:
            value = result()
        except Exception as error:  # the others must not wait for what rank 0 cannot give
            told = str(error) if isinstance(error, RanksDiffer) else f"rank 0: {type(error).__name__}: {error}"
            self._store.put(f"{step}/result", _REFUSAL + told.encode("utf-8", "replace"))
            raise
        self._store.put(f"{step}/result", _ANSWER + value)
        self._forget(step - 1)  # all are here, so all have seen what came of the step before
        return value

    def _wait(self, done: Callable[[], bool]) -> None:
        pause, next_roll_call = _SHORTEST, time.monotonic() + _ROLL_CALL
        while not done():
            self._look_for_ends()
            if time.monotonic() >= next_roll_call:
                self._call_the_roll()
                next_roll_call = time.monotonic() + _ROLL_CALL
            time.sleep(pause)
            pause = min(1.5 * pause, _LONGEST)

    def _look_for_ends(self) -> None:
        """Notice ranks whose training function has ended before it came to this step."""
        ends = self._store.count("ended")
        if ends == self._ends_seen:
            return
        standings = self._standings()
        missing = [each for each in standings if each.ended and each.step < self._standing.step]
        if any(not each.failed for each in missing):
            raise _differ(will_not_come(standings, self._standing))
        for each in missing:
            self._tell(each.rank, f"rank {each.rank} {each.ended}")
        self._ends_seen = ends

    def _call_the_roll(self) -> None:
        """Notice ranks on this machine that have died without a word, and give up when torchrun does not end us."""
        for rank, peer in self._neighbours.items():
            if rank in self._told or is_alive(peer):
                continue
            standing = self._standing_of(rank)
            if not standing.ended and standing.step < self._standing.step:
                self._tell(rank, f"rank {rank} (pid {peer.pid}) has died {_after(standing)}")
                self._given_up = time.monotonic() + _GRACE
        if self._given_up is not None and time.monotonic() > self._given_up:
            dead = [
                replace(each, ended="has died") if each.rank in self._told and not each.ended else each
                for each in self._standings()
            ]
            raise _differ(will_not_come(dead, self._standing))

    def _tell(self, rank: int, what: str) -> None:
        if rank not in self._told:
            self._told.add(rank)
            self._say(f"{what}; this rank waits for it in {self._standing.call.text}")

    def _standings(self) -> list[Standing]:
        return [self._standing_of(rank) for rank in range(self._size)]

    def _standing_of(self, rank: int) -> Standing:
        key = f"rank/{rank}"
        return from_dict(Standing, codec.loads(self._store.take(key))) if self._store.has(key) else Standing(rank)

    def _stand(self, standing: Standing) -> None:
        self._standing = standing
        self._store.put(f"rank/{self.rank}", codec.dumps(to_dict(standing)).encode())

    def _forget(self, step: int) -> None:
        for key in ("all", self._kind_before):
            self._store.delete_count(f"{step}/{key}")
        for key in ("result", *(str(rank) for rank in range(1, self._size))):
            self._store.delete(f"{step}/{key}")


def will_not_come(standings: Sequence[Standing], waiting: Standing) -> str:
    """`rank 1 has returned from its training function after 2 reports, and rank 0 waits for it in ...`."""
    missing = [each for each in standings if each.ended and each.step < waiting.step]
    parts = [f"rank {each.rank} {each.ended} {_after(each)}" for each in missing[:3]]
    if len(missing) > 3:
        parts.append(f"so have {len(missing) - 3} more")
    return f"{', '.join(parts)}; rank {waiting.rank} waits in {waiting.call.text}. {_counts(standings)}"


def different_calls(standings: Sequence[Standing]) -> str:
    """`ranks make different calls: rank 0 ray.train.report at ..., ranks 1-3 ray.train.collective.barrier at ...`."""
    by_text: dict[str, list[int]] = {}
    for each in standings:
        by_text.setdefault(each.call.text, []).append(each.rank)
    parts = [f"{name_ranks(ranks)} {text}" for text, ranks in by_text.items()]
    return f"ranks make different calls: {', '.join(parts)}. {_counts(standings)}"


def _counts(standings: Sequence[Standing]) -> str:
    by_count: dict[int, list[int]] = {}
    for each in standings:
        by_count.setdefault(each.call.reports, []).append(each.rank)
    parts = [f"{count} by {name_ranks(ranks)}" for count, ranks in sorted(by_count.items())]
    return f"Calls of ray.train.report so far: {', '.join(parts)}"


def _differ(text: str) -> RanksDiffer:
    return RanksDiffer(f"{text}. Every rank has to make these calls equally often: on a cluster the others hang")


def _after(standing: Standing) -> str:
    return f"after {counted(standing.call.reports, 'report')}"


def _place(where: CallSite) -> str:
    return f"{os.path.basename(where.file)}:{where.line} in {where.function}"
