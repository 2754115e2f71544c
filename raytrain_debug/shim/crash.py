"""`launch --hold-on-crash`: a rank that raises stays alive at its exception until a debugger has looked at it."""

from __future__ import annotations

import sys
import threading
import time
from typing import TYPE_CHECKING

from raytrain_debug.shim import exceptions, frames

if TYPE_CHECKING:
    from raytrain_debug.shim.rank import Rank


# Before anybody is called: a rank that raises because another one has died is ended by then.
_SETTLE = 0.5


def hold(rank: Rank, error: BaseException) -> None:
    """Keep the rank, whose main thread `error` is about to end, until a client has come and gone; never raises.

    Without a client it takes the minutes that the settings say. Ctrl-C ends it at once, and so does `--hold-on-crash`
    left out: then nothing is held.
    """
    minutes = rank.settings.hold_on_crash
    if minutes is None or isinstance(error, KeyboardInterrupt):
        return
    try:
        with rank.guard("holding a crashed rank"):
            found = exceptions.positions_of(error.__traceback__)
            where = exceptions.last_user_site(found)
            frames.show_crashed(threading.get_ident(), found)
            time.sleep(_SETTLE)
            if rank.wait_for_client(where, "crash", minutes * 60 if minutes else None):
                rank.debugger.stop_at_exception(error)
            else:
                _say(f"raytrain_debug: rank {rank.identity.rank}: nobody came within {minutes:g} minutes; it ends now")
    except KeyboardInterrupt:
        pass  # the exception is what ends the rank


def _say(text: str) -> None:
    try:
        print(text, file=sys.stderr, flush=True)
    except (OSError, ValueError):
        pass
