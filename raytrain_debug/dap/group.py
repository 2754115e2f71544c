"""The sessions of many ranks driven together: all asked at once, and each followed on its way to where it stands.

One thread drives a group. A rank that is on its way is followed in a thread of its own, into its next attempt too.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from queue import SimpleQueue
from typing import TypeVar

from raytrain_debug.dap.session import Session
from raytrain_debug.errors import DapError, RankEnded, RaytrainDebugError

_RETRY = 0.1  # seconds after which a rank that refused to say where it stands is asked again

T = TypeVar("T")


class Group:
    """Sessions by rank. `on_change()` is called, in any thread, when a rank has come to stand or has ended."""

    def __init__(self, sessions: Mapping[int, Session], attach_again: Callable[[int], object]) -> None:
        """`attach_again(rank)` attaches a rank's session to its next attempt, and raises DapError when it cannot."""
        self.sessions = dict(sorted(sessions.items()))
        self.on_change: Callable[[], None] = lambda: None
        self._attach_again = attach_again
        self._changed = threading.Condition()
        self._further: dict[int, Callable[[], bool]] = {}
        self._way: dict[int, int] = dict.fromkeys(self.sessions, 0)  # how often each was set in motion
        self._moving: set[int] = set()
        self._attaching: set[int] = set()
        self._arrived: set[int] = set()
        self._lost: dict[int, RankEnded] = {}
        for session in self.sessions.values():
            session.on_change = partial(self._changed_in, session)

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(self.sessions)

    @property
    def moving(self) -> set[int]:
        """The ranks that are on their way."""
        with self._changed:
            return set(self._moving)

    @property
    def attaching(self) -> set[int]:
        """Those that are on their way into their next attempt."""
        with self._changed:
            return set(self._attaching)

    @property
    def has_news(self) -> bool:
        """Whether a rank has come to stand, or has ended, that nobody has asked about yet."""
        with self._changed:
            return bool(self._arrived or self.ends())

    def each(self, functions: Mapping[int, Callable[[], T]]) -> dict[int, T | RaytrainDebugError]:
        """Call the function of each rank, all at the same time: what it returned, or the error it raised.

        After a KeyboardInterrupt they go on, and nobody hears of what they return.
        """
        attaching = self.attaching
        answers: SimpleQueue[tuple[int, T | BaseException]] = SimpleQueue()

        def call(rank: int, function: Callable[[], T]) -> None:
            try:
                if rank in attaching:
                    raise DapError("it starts anew and is not attached yet")
                answers.put((rank, function()))
            except BaseException as error:
                answers.put((rank, error))

        if len(functions) == 1:
            call(*next(iter(functions.items())))
        else:
            for item in functions.items():
                threading.Thread(target=call, args=item, name=f"rank {item[0]}", daemon=True).start()
        found: dict[int, T | RaytrainDebugError] = {}
        while len(found) < len(functions):
            rank, answer = answers.get()
            if isinstance(answer, BaseException) and not isinstance(answer, RaytrainDebugError):
                raise answer
            found[rank] = answer
        return dict(sorted(found.items()))

    def follow(self, rank: int, further: Callable[[], bool] = lambda: False) -> None:
        """`rank` was set in motion. Where only a step has ended, `further()` may set it in motion again (True)."""
        with self._changed:
            self._way[rank] += 1
            self._further[rank] = further
            self._arrived.discard(rank)
            if rank not in self._moving:
                self._begin(rank, self._accompany)

    def restart(self, rank: int) -> None:
        """Attach to the next attempt of a rank that has ended, and follow it there."""
        with self._changed:
            self._further[rank] = lambda: False
            self._attaching.add(rank)
            self._begin(rank, self._bring_back)

    def wait(self, condition: Callable[[], bool], timeout: float | None = None) -> bool:
        """Wait until `condition()`, asked whenever a rank has changed; False when `timeout` seconds went by first."""
        with self._changed:
            return self._changed.wait_for(condition, timeout)

    def arrivals(self) -> tuple[int, ...]:
        """The ranks that have come to stand since this was last asked."""
        with self._changed:
            arrived, self._arrived = self._arrived, set()
        return tuple(rank for rank in sorted(arrived) if self.sessions[rank].stop is not None)

    def ends(self) -> dict[int, RankEnded]:
        """The ranks whose sessions are over, and why."""
        with self._changed:
            over = dict(self._lost)
            for rank, session in self.sessions.items():
                if rank not in self._attaching and session.ended is not None:
                    over.setdefault(rank, RankEnded(session.ended))
            return over

    def drop(self, ranks: Iterable[int]) -> None:
        """Have no more to do with ranks that have ended, or were never attached."""
        with self._changed:
            for rank in ranks:
                self.sessions.pop(rank, None)
                self._arrived.discard(rank)
                self._lost.pop(rank, None)

    def disconnect(self, timeout: float = 5.0) -> None:
        """Detach from all ranks, which go on at full speed; as `Session.disconnect`."""
        threads = [
            threading.Thread(target=session.disconnect, args=(timeout,), daemon=True)
            for session in self.sessions.values()
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    # Inside

    def _begin(self, rank: int, way: Callable[[int], None]) -> None:
        self._moving.add(rank)
        threading.Thread(target=way, args=(rank,), name=f"rank {rank} on its way", daemon=True).start()

    def _accompany(self, rank: int) -> None:
        """Follow a rank until it stands or has ended. Runs in a thread of its own."""
        session = self.sessions[rank]
        while True:
            way, further = self._way[rank], self._further[rank]
            try:
                stop = session.wait_for_stop()
                if stop is None or way != self._way[rank] or (stop.reason == "step" and further()):
                    continue
            except RankEnded:
                break
            except RaytrainDebugError:
                if session.stop is None:
                    time.sleep(_RETRY)
                    continue
            with self._changed:
                if way != self._way[rank]:
                    continue  # it was set in motion again just now
                self._moving.discard(rank)
                self._arrived.add(rank)
                self._changed.notify_all()
            self.on_change()
            return
        self._leave(rank)

    def _bring_back(self, rank: int) -> None:
        try:
            self._attach_again(rank)
        except RaytrainDebugError as error:
            self._lost[rank] = error if isinstance(error, RankEnded) else RankEnded(str(error))
            self._leave(rank)
            return
        with self._changed:
            self._attaching.discard(rank)
            self._changed.notify_all()
        self._accompany(rank)

    def _leave(self, rank: int) -> None:
        with self._changed:
            self._moving.discard(rank)
            self._attaching.discard(rank)
        self._tell()

    def _changed_in(self, session: Session) -> None:
        # A stop is told by who follows the rank, once it is known to be the end of its way.
        if session.ended is not None:
            self._tell()

    def _tell(self) -> None:
        with self._changed:
            self._changed.notify_all()
        self.on_change()
