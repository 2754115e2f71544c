"""The only way in for a debugger: owns each rank's port from before the rank exists until the run ends.

It decides who may talk to a rank (this user's processes, and who shows the token), which one client a rank has, and
whether the job ends with its last debugger. What is said is debug_session.py's.

Belongs to the launcher's event loop thread.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

from raytrain_debug.dap.stream import CHUNK, Stream
from raytrain_debug.launcher import peers
from raytrain_debug.launcher.debug_session import DebugSession
from raytrain_debug.launcher.job import Job

MAX_MESSAGE = 8 * 1024 * 1024  # bytes of one message of a client
MAX_WAITING = 32  # connections of a port, of one origin, that are not its one client yet
STOP_GRACE = 0.5  # seconds in which a client that left may come back before --stop-with-debugger ends the job
_SAME_NOTE = 10.0  # seconds for which a note is not repeated

# A client's machine may vanish without a word: seconds before the first question, between two, and how many.
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3))


@dataclass(eq=False)
class Gateway:
    """All ports of a node. `stop_job(reason)` ends the job; `log(text)` keeps what a person may want to know.

    Without `token` only processes of this user, on this machine, are let in; with one also who shows it from another
    machine, where a port is open to one.
    """

    job: Job
    stop_job: Callable[[str], None]
    log: Callable[[str], None]
    token: str | None = None
    stop_with_debugger: bool = False
    _servers: dict[int, list[asyncio.Server]] = field(default_factory=dict)
    _sessions: dict[int, DebugSession] = field(default_factory=dict)  # the one client of each rank
    _unclaimed: dict[tuple[int, bool], list[DebugSession]] = field(default_factory=dict)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _noted: dict[str, float] = field(default_factory=dict)

    async def open(self, bound: dict[int, list[socket.socket]]) -> None:
        """Accept clients on the bound sockets of each rank."""
        for rank, sockets in bound.items():
            self.job.rank(rank).port = sockets[0].getsockname()[1]
            self._servers[rank] = [
                await asyncio.start_server(self._acceptor(rank), sock=each, limit=CHUNK) for each in sockets
            ]

    def leave(self, ranks: Iterable[int], moved: bool = True) -> None:
        """Let go of the ports of these ranks, which are another node's now, and of their clients."""
        for rank in ranks:
            for server in self._servers.pop(rank, []):
                server.close()
            self.job.rank(rank).port = None
            if rank in self._sessions:
                self._sessions[rank].rank_ended(moved)

    async def close(self) -> None:
        """Tell every client that the run is over and let go of the ports."""
        self.leave(list(self._servers), moved=False)
        for session in [each for waiting in self._unclaimed.values() for each in waiting]:
            session.abort()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=2)
        for task in list(self._tasks):
            task.cancel()

    def claim(self, session: DebugSession) -> DebugSession | None:
        """Make `session` the one client of its rank; or return the client that is."""
        holder = self._sessions.get(session.rank.rank)
        if holder is None:
            self._sessions[session.rank.rank] = session
            self._forget_unclaimed(session)
            session.rank.client = session.client
            self.job.changed(session.rank)
        return holder

    def released(self, session: DebugSession, asked_to: bool) -> None:
        """`session` holds its rank no more; `asked_to` when its person ended it, not the rank or an error."""
        self._forget_unclaimed(session)
        if self._sessions.get(session.rank.rank) is not session:
            return
        del self._sessions[session.rank.rank]
        session.rank.client = None
        session.rank.paused = False
        self.job.changed(session.rank)
        if asked_to and self.stop_with_debugger and not self._sessions:
            asyncio.get_running_loop().call_later(STOP_GRACE, self._stop_if_left)

    def note(self, text: str) -> None:
        """Say something to the person at the launcher, the same thing not again and again."""
        now = time.monotonic()
        if now - self._noted.get(text, -_SAME_NOTE) < _SAME_NOTE:
            return
        if len(self._noted) > 100:
            self._noted.clear()
        self._noted[text] = now
        self.log(text)

    def _stop_if_left(self) -> None:
        if not self._sessions:
            self.stop_job("the debugger was stopped")

    def _forget_unclaimed(self, session: DebugSession) -> None:
        for sessions in self._unclaimed.values():
            if session in sessions:
                sessions.remove(session)

    def _acceptor(self, rank: int) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._tasks.add(task)
            try:
                await self._serve(rank, reader, writer)
            except asyncio.CancelledError:
                pass  # by `close`: asyncio would report it as unhandled
            finally:
                self._tasks.discard(task)

        return accept

    async def _serve(self, rank: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        needs_token = self._needs_token(rank, writer)
        if needs_token is None:
            writer.transport.abort()
            return
        connection: socket.socket = writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
        stream = Stream(reader, writer, "the debugger", MAX_MESSAGE)
        session = DebugSession(self, self.job.rank(rank), stream, needs_token)
        unclaimed = self._unclaimed.setdefault((rank, needs_token), [])
        unclaimed.append(session)
        while len(unclaimed) > MAX_WAITING:
            unclaimed.pop(0).abort()
        await session.run()

    def _needs_token(self, rank: int, writer: asyncio.StreamWriter) -> bool | None:
        """Whether who connects has to show the token; None when it is not let in at all.

        Decided before a byte is read: a process of this user needs none, one of another user of this machine gets
        nowhere even with it, and one of another machine is let in to show it.
        """
        local, remote = writer.get_extra_info("sockname"), writer.get_extra_info("peername")
        if not local or not remote:
            return None  # it has gone already
        peer = peers.find_peer(local[:2], remote[:2])
        if peers.is_ours(peer):
            return False
        if peer is None and self.token is not None and not peers.is_loopback(local[0]):
            return True
        if peer is None:
            self.note(f"refused a connection to rank {rank} from {remote[0]}: whose it is cannot be told")
        elif peer.inode:
            self.note(f"refused a connection to rank {rank} from user {peers.user_name(peer.uid)} of this machine")
        return None
