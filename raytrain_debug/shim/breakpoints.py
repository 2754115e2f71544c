"""`raytrain_debug.breakpoint()`: stop on some ranks, in the caller's frame, and wait there for a debugger."""

from __future__ import annotations

import os
import sys
import threading
import types
from collections.abc import Iterable
from typing import Any

from raytrain_debug.errors import UsageError
from raytrain_debug.shim import pydevd_signs
from raytrain_debug.shim import rank as rank_module
from raytrain_debug.shim.settings import Identity

# How often each call site has been reached with its condition true, and how often it has stopped.
_hits: dict[tuple[types.CodeType, int], int] = {}
_stops: dict[tuple[types.CodeType, int], int] = {}


def enabled() -> bool:
    """False when the user switched everything off with RAYTRAIN_DEBUG=0."""
    return os.environ.get("RAYTRAIN_DEBUG", "") != "0"


def stop_here(
    frame: types.FrameType,
    rank: int | Iterable[int] | None = None,
    when: Any = True,
    skip: int = 0,
    times: int | None = None,
) -> None:
    """Stop this rank at `frame` if it is one of `rank`, `when` is true, and `skip` and `times` leave it to.

    Raises UsageError for a `rank` that is no number, and what `bool(when)` raises.
    """
    if not enabled() or pydevd_signs.is_hidden(threading.current_thread()):
        return  # a thread of ours runs an expression or a `__repr__` of the user's: nothing could stop there
    here = rank_module.current()
    own = here.identity.rank if here is not None else Identity.from_environment().rank
    if not _is_meant(own, rank) or not bool(when):
        return
    site = (frame.f_code, frame.f_lasti)
    _hits[site] = _hits.get(site, 0) + 1
    if _hits[site] <= skip or (times is not None and _stops.get(site, 0) >= times):
        return
    _stops[site] = _stops.get(site, 0) + 1
    if here is None:
        from raytrain_debug.shim import standalone

        here = standalone.enable()
    if here is None:
        return  # a child of a rank: nobody can attach to it
    here.wait_for_client(rank_module.call_site(frame), "breakpoint")
    if here.debugger.client_is_ready():
        here.debugger.suspend(frame)


def breakpointhook(*args: Any, **kwargs: Any) -> None:
    """What plain `breakpoint()` does in a rank (sys.breakpointhook); its arguments are pdb's and mean nothing here."""
    stop_here(sys._getframe(1))


def _do_nothing(*args: Any, **kwargs: Any) -> None:
    pass


def install_breakpointhook() -> None:
    """Take over `breakpoint()`, unless the user chose another hook with PYTHONBREAKPOINT (PEP 553).

    Switched off it does nothing: pdb, which would come otherwise, ends a rank that has no terminal.
    """
    if "PYTHONBREAKPOINT" not in os.environ:
        sys.breakpointhook = breakpointhook if enabled() else _do_nothing


def _is_meant(own: int, wanted: int | Iterable[int] | None) -> bool:
    if wanted is None:
        return True
    ranks = [wanted] if isinstance(wanted, int) else list(wanted) if isinstance(wanted, Iterable) else None
    if ranks is None or not all(isinstance(each, int) for each in ranks):
        raise UsageError(f"breakpoint(rank={wanted!r}): a rank is a number", "write rank=1 or rank=[0, 2]")
    return own in ranks
