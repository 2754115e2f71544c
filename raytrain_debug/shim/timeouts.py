"""Process-group timeouts that a debugger's pause does not use up.

A collective takes its timeout when it starts, so raising timeouts at the moment of a pause comes too late for one that
is already under way. Groups are therefore made without a limit in practice, and the limit the user asked for is kept
by this module's own clock, which stands still while some rank of the job is debugged. When it runs out, what waits
fails as it would have: a RuntimeError with gloo, whose connections are closed under it; an abort of the process with
NCCL, which is what its watchdog does. NCCL's heartbeat monitor watches that watchdog, a thread that no pause stops.

What is under way is seen by c10d.py. Where it sees nothing, timeouts are left as the user sets them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from raytrain_debug.shim.c10d import Call, ProcessGroups

_SLOWEST, _FASTEST = 5.0, 0.1  # seconds between two looks


@dataclass
class _Waiting:
    """Something that has not moved: what would tell that it has, and for how long our clock ran meanwhile."""

    mark: Any
    seconds: float = 0.0
    failed: bool = False


@dataclass
class CollectiveTimeouts:
    """The clock. `protect(place)` guards our own faults; `say` prints one line to the user.

    `later(seconds, function)` calls in the control thread, where `hold` and all that is private run.
    """

    protect: Callable[[str], Any]
    say: Callable[[str], None]
    later: Callable[[float, Callable[[], None]], None]
    _held: bool = False
    _waiting: dict[Any, _Waiting] = field(default_factory=dict)
    _last: float = 0.0
    _groups: ProcessGroups = field(init=False)

    def __post_init__(self) -> None:
        self._groups = ProcessGroups(self.protect, on_first_limit=self._start)

    def install(self) -> None:
        """Take over the timeouts of torch.distributed when, and only when, the user's code imports it."""
        import wrapt

        wrapt.register_post_import_hook(self._groups.patch, "torch.distributed.distributed_c10d")

    def hold(self, on: bool) -> None:
        """Stop the clock, or let it go on where it stood."""
        self._held = on
        with self.protect("process-group timeouts"):
            self._groups.limit_stores(not on)

    def _start(self) -> None:
        self._last = time.monotonic()
        self.later(0, self._look)

    def _look(self) -> None:
        with self.protect("process-group timeouts"):
            now = time.monotonic()
            passed, self._last = now - self._last, now
            self._advance(passed)
        self.later(min(_SLOWEST, max(_FASTEST, self._groups.shortest_limit / 20)), self._look)

    def _advance(self, passed: float) -> None:
        known, self._waiting = self._waiting, {}
        for key, mark in self._groups.under_way().items():
            waiting = known.get(key)
            if waiting is None or waiting.mark != mark:
                self._waiting[key] = _Waiting(mark)
                continue
            self._waiting[key] = waiting
            if self._held or waiting.failed:
                continue
            waiting.seconds += passed
            if waiting.seconds >= self._groups.shortest_limit:
                call = key if isinstance(key, Call) else self._groups.oldest_call(key)
                waiting.failed = waiting.seconds >= call.limit
                if waiting.failed:
                    self._fail(call, waiting.seconds)

    def _fail(self, call: Call, seconds: float) -> None:
        self.say(
            f"{call.what} has waited {seconds:.0f} s for another rank, the timeout of its process group "
            f"({call.limit * 1000:.0f} ms): it fails now, as it would without a debugger"
        )
        call.fail()
