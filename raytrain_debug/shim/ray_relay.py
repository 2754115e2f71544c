"""Reaches ranks on other Ray nodes through Ray: an actor on each such node, which opens no port.

On its node the actor connects to the Unix sockets of ranks, and has one of its own in the launcher's place. The
controller's process, which is on the launcher's node, does the reverse: a socket for each rank, at which the launcher
and the commands find it, and connections to the launcher. Between the two, bytes travel as calls of the actor.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import threading
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raytrain_debug.run import codec, layout
from raytrain_debug.run.channel import MAX_LINE
from raytrain_debug.shim import ray_internals, ray_mirror

_CHUNK = 256 * 1024  # bytes of a connection that are sent in one call
_START = 60.0  # seconds for an actor to start
_PERIOD = 2.0  # seconds between looks at what a rank has recorded
_LAST_NEWS = 10.0  # seconds for the rest of it


class Relay:
    """The actor on a rank's node; it knows connections by number. Its methods do not raise for one that has ended."""

    def __init__(self) -> None:
        self._streams: dict[int, tuple[asyncio.StreamReader, asyncio.StreamWriter]] = {}
        self._numbers = itertools.count()
        self._called: asyncio.Queue[int] = asyncio.Queue()
        self._server: asyncio.Server | None = None

    async def listen(self, run_id: str) -> tuple[str, str]:
        """Be the launcher for the ranks of this node; the socket's path, and the node's name."""
        layout.remove_dead_sockets()
        path = layout.socket_path(run_id, f"relay-{os.getpid()}")
        self._server = await _listen(path, self._accept)
        return str(path), socket.gethostname()

    async def accepted(self) -> int:
        """The next rank that calls its launcher."""
        return await self._called.get()

    async def connect(self, path: str) -> int | None:
        """Call a rank; None when it does not answer."""
        try:
            return self._keep(*await asyncio.open_unix_connection(path))
        except OSError:
            return None

    async def receive(self, number: int) -> bytes:
        """What the other side says next; empty once it has ended."""
        try:
            return await self._streams[number][0].read(_CHUNK)
        except (KeyError, OSError):
            return b""

    async def send(self, number: int, data: bytes) -> None:
        """Say something to the other side."""
        try:
            writer = self._streams[number][1]
            writer.write(data)
            await writer.drain()
        except (KeyError, OSError):
            pass

    async def close(self, number: int) -> None:
        """End a connection."""
        stream = self._streams.pop(number, None)
        if stream is not None:
            stream[1].close()

    async def ended(self, log: str | None, fault: str) -> None:
        """A rank of this node has gone: keep what its log tells of the reason."""
        try:
            ray_internals.keep_fault(log, fault)
        except OSError:
            pass

    async def take_over(self, run: str, rank: int, pieces: list[ray_mirror.Piece]) -> None:
        """A rank that is about to start here has recorded these."""
        own = ray_mirror.run_on_this_node(run)
        if str(own) != run:
            await asyncio.to_thread(ray_mirror.bring, pieces, layout.RunPaths(own).rank(rank).directory, {})

    async def news(self, directory: str, known: ray_mirror.Stamps) -> list[ray_mirror.Piece]:
        """What a rank has recorded beyond `known`."""
        return await asyncio.to_thread(ray_mirror.news, directory, known)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._called.put_nowait(self._keep(reader, writer))

    def _keep(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> int:
        number = next(self._numbers)
        self._streams[number] = reader, writer
        return number


@dataclass(frozen=True)
class _Node:
    """A node with a relay; `socket` stands for the launcher there."""

    actor: Any
    socket: str
    name: str


class Relays:
    """The launcher's end of all relays of a `fit()`, with an event loop in a thread of its own."""

    def __init__(self, launcher: str, run: str) -> None:
        self._launcher = launcher
        self._run = layout.RunPaths(Path(run))
        self._nodes: dict[str, _Node] = {}  # by Ray's id
        self._servers: list[asyncio.Server] = []
        self._paths: list[Path] = []  # their sockets
        self._mirrors: list[_Mirror] = []
        self._taken_over: dict[int, ray_mirror.Stamps] = {}  # by rank
        self._numbers = itertools.count()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="raytrain_debug relays", daemon=True).start()

    def open(self, node: str) -> str:
        """Have a relay on that node; the socket at which its ranks find the launcher. Raises Ray's errors."""
        if node not in self._nodes:
            import ray
            from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

            strategy = NodeAffinitySchedulingStrategy(node, soft=False)
            options = {"num_cpus": 0, "scheduling_strategy": strategy, "max_concurrency": 10_000}
            actor: Any = ray.remote(Relay).options(**options).remote()
            path, name = ray.get(actor.listen.remote(self._run.id), timeout=_START)
            self._nodes[node] = _Node(actor, path, name)
            self._loop.call_soon_threadsafe(self._spawn, self._take_calls(self._nodes[node]))
        return self._nodes[node].socket

    def hand_over(self, node: str, rank: int) -> None:
        """Give that node what a rank that is about to start there has recorded so far. Raises Ray's errors."""
        import ray

        known: ray_mirror.Stamps = {}
        directory = self._run.rank(rank).directory
        while pieces := ray_mirror.earlier(str(directory), known):
            ray.get(self._nodes[node].actor.take_over.remote(str(self._run.directory), rank, pieces), timeout=_START)
            known |= {piece.name: piece.stamp for piece in pieces}
        self._taken_over[rank] = ray_mirror.counted(known)

    def bring(self) -> None:
        """Bring all that ranks have recorded so far."""
        asyncio.run_coroutine_threadsafe(self._bring_all(), self._loop).result(_LAST_NEWS)

    def close(self) -> None:
        """End the actors, and all connections through them, once what ranks have recorded is here."""
        import ray

        try:
            self.bring()
        finally:
            for node in self._nodes.values():
                ray.kill(node.actor)
            for path in self._paths:
                path.unlink(missing_ok=True)
            self._loop.call_soon_threadsafe(self._loop.stop)

    # Event loop thread.

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(_until_the_end(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _take_calls(self, node: _Node) -> None:
        """Connect every rank that calls its launcher to it."""
        while True:
            self._spawn(self._lifeline(node, await node.actor.accepted.remote()))

    async def _lifeline(self, node: _Node, number: int) -> None:
        reader, writer = await asyncio.open_unix_connection(self._launcher)
        hello, rest = await _first_line(lambda: node.actor.receive.remote(number))
        message = codec.loads(hello)
        rank = int(message["rank"])
        message["control"] = await self._stand_in(node.actor, str(message["control"]), rank)
        message["node"] = node.name
        writer.write(codec.dumps(message).encode() + b"\n" + rest)
        known = self._taken_over.get(rank, {})
        mirror = _Mirror(node.actor, str(message["directory"]), self._run.rank(rank).directory, known)
        self._mirrors.append(mirror)

        async def at_end() -> None:
            writer.write(b'{"event":"gone"}\n')
            await node.actor.ended.remote(message.get("log"), message.get("fault"))
            await mirror.bring()

        following = asyncio.create_task(_until_the_end(mirror.follow()))
        try:
            await _join(node.actor, number, reader, writer, at_end)
        finally:
            following.cancel()
            self._mirrors.remove(mirror)

    async def _stand_in(self, actor: Any, control: str, rank: int) -> str:
        """A socket here for a rank's control socket there."""

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            number = await actor.connect.remote(control)
            if number is None:
                writer.close()
            else:
                await _join(actor, number, reader, writer)

        path = layout.socket_path(self._run.id, f"rank{rank}-via{os.getpid()}-{next(self._numbers)}")
        self._servers.append(await _listen(path, lambda *stream: _until_the_end(serve(*stream))))
        self._paths.append(path)
        return str(path)

    async def _bring_all(self) -> None:
        await asyncio.gather(*(mirror.bring() for mirror in self._mirrors), return_exceptions=True)


class _Mirror:
    """What one rank records there, here; nothing to do where both see the same directory."""

    def __init__(self, actor: Any, there: str, here: Path, known: ray_mirror.Stamps) -> None:
        self._actor = actor
        self._there = there
        self._here = here
        self._known = dict(known)
        self._lock = asyncio.Lock()

    async def follow(self) -> None:
        """Bring what is new, again and again."""
        while self._there != str(self._here):
            await self.bring()
            await asyncio.sleep(_PERIOD)

    async def bring(self) -> None:
        """Bring what is new."""
        while self._there != str(self._here):
            async with self._lock:
                pieces = await self._actor.news.remote(self._there, self._known)
                await asyncio.to_thread(ray_mirror.bring, pieces, self._here, self._known)
            if not pieces:
                return


async def _nothing() -> None:
    pass


async def _join(
    actor: Any,
    number: int,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    at_end: Callable[[], Awaitable[None]] = _nothing,
) -> None:
    """Pass bytes on, both ways, until each side has ended; `at_end` is done before this side hears of the other's."""

    async def there() -> None:
        while data := await reader.read(_CHUNK):
            await actor.send.remote(number, data)
        await actor.close.remote(number)

    async def back() -> None:
        try:
            while data := await actor.receive.remote(number):
                writer.write(data)
                await writer.drain()
            await at_end()
        finally:
            writer.close()

    await asyncio.gather(there(), back())


async def _listen(path: Path, serve: Callable[..., Awaitable[None]]) -> asyncio.Server:
    path.unlink(missing_ok=True)
    server = await asyncio.start_unix_server(serve, os.fspath(path), limit=MAX_LINE)
    os.chmod(path, 0o600)  # its directory is ours alone
    return server


async def _first_line(receive: Callable[[], Awaitable[bytes]]) -> tuple[bytes, bytes]:
    data = b""
    while b"\n" not in data:
        more = await receive()
        if not more or len(data) > MAX_LINE:
            raise ConnectionResetError("a rank went before it had said hello")
        data += more
    line, _, rest = data.partition(b"\n")
    return line, rest


async def _until_the_end(work: Coroutine[Any, Any, None]) -> None:
    """Do `work` until a connection, a node or Ray ends: there is nobody to tell, and nothing else to do."""
    try:
        await work
    except Exception:
        pass
