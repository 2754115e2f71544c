"""A rank that is to let a debugger in and says nothing: when that is worth a word, and which.

A rank that is only slow to load the debugger has taken the request, and is given much longer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from raytrain_debug.across.ask import is_stopped, silence

TAKES = 2.0  # seconds for a rank to take the request, as `stacks` gives it for an answer
LOADS = 60.0  # seconds for it to load the debugger and begin a session, on a machine that is busy


async def watch(pid: int | None, taken: asyncio.Event, tell: Callable[[str], None]) -> None:
    """Call `tell(why)` once when the rank is silent, and `tell("")` when it is no more. Ends when it is cancelled.

    `taken` is set when the rank has taken the request; `pid` is its process, None when that is elsewhere.
    """
    told = await _is_late(taken)
    if told:
        tell(silence(pid, TAKES))
        await taken.wait()
        tell("")
    loop = asyncio.get_running_loop()
    began, told = loop.time(), False
    while True:
        await asyncio.sleep(TAKES)
        late = loop.time() - began >= LOADS
        silent = late or is_stopped(pid)
        if silent != told:
            tell(silence(pid, LOADS if late else TAKES) if silent else "")
        told = silent


async def _is_late(taken: asyncio.Event) -> bool:
    try:
        await asyncio.wait_for(taken.wait(), TAKES)
    except asyncio.TimeoutError:
        return True
    return False
