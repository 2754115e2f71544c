"""The public API, cheap to import: nothing of torch, Ray or debugpy is loaded by it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raytrain_debug.postmortem.loaded import LoadedRun

__all__ = ["breakpoint", "enable", "load_run"]


def breakpoint(
    rank: int | Iterable[int] | None = None, when: Any = True, skip: int = 0, times: int | None = None
) -> None:
    """Stop here on these ranks and wait for a debugger.

    `rank` is a rank, several, or None for every rank; `when` is a condition (anything `bool()` takes, a one-element
    tensor too); the first `skip` times that it is reached with the condition true are passed over, and it stops at
    most `times` times. The other ranks go on to their next collective and wait there without timing out.
    RAYTRAIN_DEBUG=0 makes it do nothing. Raises UsageError for a `rank` that is no number.
    """
    from raytrain_debug.shim import breakpoints

    breakpoints.stop_here(sys._getframe(1), rank, when, skip, times)


def enable(base_port: int | None = None, run_root: str | os.PathLike[str] | None = None) -> None:
    """Record this process's reports and make it reachable for `attach`, without `launch`. Does nothing in a rank.

    It listens on `base_port` (default 5678, another when that is taken) + its rank; `run_root` is where the run is
    recorded (default .raytrain_debug). Raises PortTaken, UnsafeDirectory, OSError.
    """
    from raytrain_debug.shim import standalone

    standalone.enable(base_port, run_root)


def load_run(path: str | os.PathLike[str] | None = None) -> LoadedRun:
    """A recorded run, live or dead, to look at in Python: `load_run().ranks[1].reports[-1].metrics`.

    `path` is a run's directory, a directory of runs (.raytrain_debug), or a run's id or a unique start of it in
    .raytrain_debug; None is the newest run there. See docs/python.md. Raises RunNotFound.
    """
    from raytrain_debug.postmortem import loaded

    return loaded.load(None if path is None else os.fspath(path))
