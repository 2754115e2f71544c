"""`postmortem --serve` and `--shell`: a run that has ended, opened for an editor or at a prompt."""

from __future__ import annotations

import asyncio
import shutil
import socket
import sys
import threading
from collections.abc import Callable
from functools import partial

from raytrain_debug.across.hang import ranks_in_words
from raytrain_debug.across.stacks import Sample
from raytrain_debug.cli import console
from raytrain_debug.cli.prompt.completion import complete
from raytrain_debug.cli.prompt.reader import StandardInput, TerminalInput
from raytrain_debug.cli.prompt.terminal import Terminal
from raytrain_debug.cli.prompt.view import View
from raytrain_debug.dap.dead_session import DeadSession
from raytrain_debug.dap.group import Group
from raytrain_debug.dap.postmortem_server import Address, Server
from raytrain_debug.dap.session import Session
from raytrain_debug.errors import PortTaken, RunNotFound, UsageError
from raytrain_debug.launcher import peers, ports
from raytrain_debug.postmortem.dead_job import dead_job
from raytrain_debug.run.reader import Run

_HOST = "127.0.0.1"


def serve(load: Callable[[], DeadSession], port: int, once: bool) -> int:
    """Serve debuggers on `port` (0: any free one) of loopback until Ctrl-C, or (`once`) until the last has left."""
    console.note("opening the run")
    load().close()  # what is wrong with the run is told now, not to the first debugger
    listeners = _listeners(port)
    server = Server(load, _is_ours)

    def ready() -> None:
        # The VS Code task's problem matcher waits for these words.
        console.note(f"post-mortem ready on {_HOST}:{listeners[0].getsockname()[1]}")

    try:
        asyncio.run(server.serve(listeners, once, ready))
    except KeyboardInterrupt:
        pass
    return 0


def shell(run: Run, ranks: tuple[int, ...] | None, unsafe: bool) -> int:
    """The prompt of `attach` on dead ranks: those asked for, or (None) the one that failed first."""
    chosen = ranks if ranks is not None else _most_telling(run)
    sessions = {
        rank: Session(*serve_in_background(partial(_look_at, run, rank, unsafe)), f"rank {rank}") for rank in chosen
    }
    several = len(sessions) > 1
    width = shutil.get_terminal_size().columns
    cwd = run.record.cwd if run.record is not None else None
    views = {rank: View(each, each.name, cwd, width, relative=several) for rank, each in sessions.items()}
    group = Group(sessions, lambda rank: None)
    terminal = Terminal(group, views, lambda: (Sample({}, {}), ()), dead=True)
    for session in sessions.values():
        session.attach()
    terminal.begin(pause=())
    if sys.stdin.isatty() and sys.stdout.isatty():
        console.note(f"{ranks_in_words(group.ranks)} of run {run.paths.id}, dead; h lists the commands, q leaves")
        history = run.paths.directory.parent.parent / "history"
        return terminal.run(TerminalInput(lambda text: complete(terminal.view, text), history))
    return terminal.run(StandardInput())


def _look_at(run: Run, rank: int, unsafe: bool) -> DeadSession:
    return DeadSession(dead_job(run, (rank,)), unsafe)


def _most_telling(run: Run) -> tuple[int, ...]:
    focus = dead_job(run).focus
    if focus is None:
        raise RunNotFound(f"no rank left anything in {run.paths.directory}")
    return (focus.rank.rank,)


def serve_in_background(load: Callable[[], DeadSession]) -> Address:
    """Serve this process's own debugger; where. The server ends with the process."""
    listeners = _listeners(0)
    server = Server(load, _is_ours)
    threading.Thread(target=lambda: asyncio.run(server.serve(listeners)), name="postmortem", daemon=True).start()
    return _HOST, listeners[0].getsockname()[1]


def _is_ours(local: Address, remote: Address) -> bool:
    """Only processes of this user may look: values of a training run are theirs alone."""
    return peers.is_ours(peers.find_peer(local, remote))


def _listeners(port: int) -> list[socket.socket]:
    if port == 0:
        # One address only: the other family may not have the same port free.
        listener = socket.create_server((_HOST, 0))
        listener.setblocking(False)
        return [listener]
    if not 0 < port < 65536:
        raise UsageError(f"there is no port {port}", "choose one in 1..65535, or 0 for any that is free")
    try:
        return ports.bind_ports(_HOST, port, [0])[0]
    except PortTaken as error:
        raise PortTaken(
            str(error), "end that process, or choose another port: --serve PORT (0 takes any that is free)"
        ) from None
