"""When an editor shall open a session for a rank: decided from what the launcher says of the ranks alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from raytrain_debug.across.progress import ENDED

RECONNECT = 3.0  # seconds in which a rank's client comes back by itself, once the rank has started anew

RankStatus = dict[str, Any]
"""A rank as the launcher describes it: `state`, `pid`, `port`, `attempt`, `client`, `where`."""


@dataclass(frozen=True)
class _Known:
    """A rank's attempt when it was last dealt with; `asked` while a session was asked for and no client has come."""

    attempt: int
    asked: bool


class Openings:
    """`wanted` are the ranks that get a session as soon as they are there (None for all), the others when they wait."""

    def __init__(self, wanted: tuple[int, ...] | None) -> None:
        self._wanted = wanted
        self._ranks: dict[int, RankStatus] = {}
        self._known: dict[int, _Known] = {}

    def update(self, ranks: dict[int, RankStatus]) -> dict[int, float]:
        """Take the launcher's news; the ranks to open a session for, each after its seconds if it `is_alone` then."""
        before, self._ranks = self._ranks, ranks
        delays = {rank: self._delay(rank, state, before.get(rank)) for rank, state in ranks.items()}
        return {rank: delay for rank, delay in delays.items() if delay is not None}

    def is_alone(self, rank: int) -> bool:
        """Whether the rank lives and nobody debugs it."""
        state = self._ranks.get(rank)
        if state is None:
            return False
        return state["client"] is None and state["port"] is not None and state["state"] not in ENDED

    def port(self, rank: int) -> int:
        """The port of a rank that `is_alone`."""
        return int(self._ranks[rank]["port"])

    def _delay(self, rank: int, state: RankStatus, before: RankStatus | None) -> float | None:
        known, attempt = self._known.get(rank), state["attempt"]
        if state["client"] is not None:
            self._known[rank] = _Known(attempt, asked=False)
            return None
        if state["pid"] is None or not self.is_alone(rank):
            return None
        waits = state["state"] == "waiting"
        if known is None:
            if not waits and self._wanted is not None and rank not in self._wanted:
                return None
            self._known[rank] = _Known(attempt, asked=True)
            return 0.0
        if not waits or known == _Known(attempt, asked=True):
            return None
        self._known[rank] = _Known(attempt, asked=True)
        if before is not None and before["client"] is not None and before["state"] == "waiting":
            return None  # its person has just closed the session: do not force another on them
        return 0.0 if known.attempt == attempt else RECONNECT
