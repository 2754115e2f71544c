"""The launchers of one job on several nodes: where each other's ranks are, and that all wait while one is debugged.

They meet in the key-value store that torchrun's rendezvous has made for its agents (torch.distributed.Store), so
nothing more is opened for it, and it works where every gateway is on loopback. See `_Board` for what lies there.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from raytrain_debug.launcher import ports
from raytrain_debug.launcher.host import Host, describe
from raytrain_debug.launcher.job import Job, RankState
from raytrain_debug.run import codec
from raytrain_debug.run.records import CallSite, from_dict

PERIOD = 0.5  # seconds between looks at the store
MEETING = 10.0  # seconds in which all launchers have surely put something into the store
SILENT = 30.0  # seconds without a beat after which a node that holds the others is taken for dead

Ranks = dict[int, dict[str, Any]]
"""What `status` shows of ranks, by their number."""


@dataclass(frozen=True)
class Group:
    """The nodes of one attempt, as torchrun's agent has them: this is `node` of `nodes`, and they share `store`."""

    store: Any
    node: int
    nodes: int
    attempt: int = 0


class Nodes:
    """This node's launcher among the others.

    `say` tells the person at the launcher something; `when_met` is called once, when all have their ports open or
    long should have. Both in a thread of ours.
    """

    def __init__(
        self, host: Host, job: Job, token: str | None, say: Callable[[str], None], when_met: Callable[[], None]
    ) -> None:
        self._host = host
        self._job = job
        self._token = token
        self._say = say
        self._when_met = when_met
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        # torch's calls may be slow, and the main thread is torchrun's.
        self._thread = threading.Thread(target=self._run, name="raytrain_debug nodes", daemon=True)
        # The thread's own:
        self._board: _Board | None = None
        self._published: dict[str, Any] = {}
        self._version = 0
        self._links: dict[int, dict[str, Any]] = {}
        self._beats: dict[int, tuple[int, float]] = {}  # a holding node's last count, and when it was new
        self._said: set[str] = set()
        self._met = False
        self._deadline = 0.0
        # The event loop's own:
        self._announced: set[tuple[Any, ...]] = set()

    def start(self) -> None:
        """Answer `status` from now on; follow the other nodes once `join` has told of them."""
        self._host.elsewhere = self.ask
        self._thread.start()

    def join(self, group: Group) -> None:
        """An attempt begins in which these nodes take part. From any thread."""
        self._tasks.put(lambda: self._join(group))

    def ask(self) -> Future[Ranks]:
        """What the ranks of other nodes do now. From any thread."""
        answer: Future[Ranks] = Future()

        def look() -> None:
            if answer.set_running_or_notify_cancel():
                answer.set_result(self._ranks(self._board, states=True))

        self._tasks.put(look)
        return answer

    def close(self) -> None:
        """End the thread: a call of torch must not outlive the interpreter."""
        self._host.elsewhere = None
        self._tasks.put(None)
        self._thread.join(2)

    # Below: the thread.

    def _run(self) -> None:
        while True:
            try:
                task: Callable[[], None] | None = self._tasks.get(timeout=PERIOD)
            except queue.Empty:
                task = self._turn
            if task is None:
                return
            try:
                task()
            except Exception as error:
                self._lose(error)

    def _join(self, group: Group) -> None:
        self._board = _Board(group, self._token, self._refuse)
        self._deadline = time.monotonic() + MEETING
        self._published = {}
        self._version = 0
        self._links, self._beats = {}, {}
        self._host.run(lambda: self._hold(False))
        self._host.run(lambda: self._know({}))
        self._turn()

    def _turn(self) -> None:
        board = self._board
        mine = self._host.run(self._look) if board is not None else None
        if board is None or mine is None:
            return
        self._publish(board, mine)
        if self._follow(board) or (board.node == 0 and self._is_held(board)):
            ranks = self._ranks(board, states=board.node == 0)
            job = mine["link"]["job"] if board.node == 0 else self._links.get(0, {}).get("job")
            self._host.run(lambda: self._know(ranks, job, announce=board.node == 0))
        held = self._is_held(board)
        self._host.run(lambda: self._hold(held))
        if not self._met and (len(self._links) == board.others or time.monotonic() > self._deadline):
            self._met = True
            self._when_met()

    def _publish(self, board: _Board, mine: dict[str, Any]) -> None:
        for kind in ("state", "link"):
            if self._published.get(kind) != mine[kind]:
                board.write(kind, mine[kind])
                if kind == "link":
                    board.count("version", 1)
                self._published[kind] = mine[kind]
        if mine["link"]["held"]:
            board.count(f"beat/{board.node}", 1)

    def _follow(self, board: _Board) -> bool:
        """Read the others' links if one has changed; True if so."""
        version = board.count("version")
        if version == self._version:
            return False
        self._version = version
        self._links = board.read("link")
        return True

    def _is_held(self, board: _Board) -> bool:
        """Whether a rank of another node is held, by a launcher that lives."""
        now, held = time.monotonic(), False
        for node, link in self._links.items():
            if not link["held"]:
                self._beats.pop(node, None)
                continue
            beat = board.count(f"beat/{node}")
            if self._beats.get(node, (None,))[0] != beat:
                self._beats[node] = (beat, now)
            held = held or now - self._beats[node][1] < SILENT
        return held

    def _ranks(self, board: _Board | None, states: bool) -> Ranks:
        """The ranks of the other nodes, each with the address at which it can be debugged from here, if it can."""
        is_live = board is not None and states and self._host.run(self._look) is not None
        told = board.read("state") if board is not None and is_live else {}
        ranks: Ranks = {}
        for node, link in self._links.items():
            known = told.get(node) or {number: describe(RankState(int(number))) for number in link["ports"]}
            for number, rank in known.items():
                there = {"host": _reach(link), "port": link["ports"].get(number), "node": link["name"]}
                ranks[int(number)] = {**rank, **there}
        return ranks

    def _lose(self, error: Exception) -> None:
        """The store fails us: ranks here must not wait for what can no longer be heard."""
        if self._version == 0:
            self._once(f"the other nodes of this job cannot be followed: {type(error).__name__}: {error}")
        self._board, self._links = None, {}
        self._host.run(lambda: self._hold(False))

    def _refuse(self, node: int) -> None:
        self._once(
            f"node {node} was started with another token, or with none: its ranks cannot be reached from here\n"
            "  give the same --token (or RAYTRAIN_DEBUG_TOKEN) to launch on every node"
        )

    def _once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self._say(text)

    # Below: the event loop, called by the thread, which waits.

    def _look(self) -> dict[str, Any] | None:
        """What to publish of this node; None when its part of the attempt is over: the store ends with the agents."""
        job, launcher = self._job, self._job.record.launcher
        here = {str(number): rank for number, rank in sorted(job.ranks.items()) if rank.port is not None}
        ended = [rank.exit is not None for rank in here.values() if rank.pid is not None]
        if launcher is None or job.stopping or (ended and all(ended)):
            return None
        link = {
            "job": job.record.job or job.record.id,
            "name": launcher.host,
            "machine": _machine(),
            "loopback": ports.loopback_of(launcher.bind),
            "address": launcher.address,
            "ports": {number: rank.port for number, rank in here.items()},
            "held": job.held_here(),
        }
        return {"link": link, "state": {number: describe(rank) for number, rank in here.items()}}

    def _know(self, ranks: Ranks, job_id: str | None = None, announce: bool = False) -> None:
        """Take the others' ranks into the job's own record and answers, and tell of those that wait."""
        self._job.elsewhere = ranks
        self._job.write_ports(job_id)
        waiting = {
            (number, rank.get("pid"), repr(rank.get("where"))): _as_rank(number, rank)
            for number, rank in ranks.items()
            if announce and rank.get("state") == "waiting"
        }
        for key, rank in waiting.items():
            if key not in self._announced:
                self._job.announce(rank)
        self._announced = set(waiting)

    def _hold(self, held: bool) -> None:
        self._job.held_elsewhere = held
        self._job.tell_hold()


class _Board:
    """What lies in the store for the launchers, by node:

        raytrain_debug/link/<node>    what the others must know: addresses, ports, the ranks that are held
        raytrain_debug/state/<node>   what `status` shows of its ranks, read when somebody asks
        raytrain_debug/beat/<node>    counts on while a rank of it is held
        raytrain_debug/version        counts the changes of links: one number tells whether there is anything to read

    Links and states are signed with the token, if there is one: who can write into the store must not be able to have
    `attach` show our token to a machine of theirs. Of torch's store it uses set, get, add and check, which do not wait
    for other nodes.
    """

    def __init__(self, group: Group, token: str | None, on_forged: Callable[[int], None]) -> None:
        self.node = group.node
        self.others = group.nodes - 1
        self._store = group.store
        self._token = (token or "").encode()
        self._on_forged = on_forged

    def write(self, kind: str, value: dict[str, Any]) -> None:
        """Put this node's link or state there."""
        key, text = self._key(kind, self.node), codec.dumps(value)
        self._store.set(key, self._sign(key, text) + text)

    def read(self, kind: str) -> dict[int, dict[str, Any]]:
        """The links or states of the other nodes, by node; of those that have put one there, with our token."""
        found = {}
        for node in range(self.others + 1):
            key = self._key(kind, node)
            if node == self.node or not self._store.check([key]):
                continue
            text = self._store.get(key).decode()
            signature, text = text[:_SIGNATURE], text[_SIGNATURE:]
            if hmac.compare_digest(signature, self._sign(key, text)):
                found[node] = codec.loads(text)
            else:
                self._on_forged(node)
        return found

    def count(self, name: str, more: int = 0) -> int:
        """The counter of that name, after adding `more`."""
        return int(self._store.add(f"raytrain_debug/{name}", more))

    def _key(self, kind: str, node: int) -> str:
        return f"raytrain_debug/{kind}/{node}"

    def _sign(self, key: str, text: str) -> str:
        return hmac.new(self._token, f"{key} {text}".encode(), hashlib.sha256).hexdigest()


_SIGNATURE = 2 * hashlib.sha256().digest_size


def _reach(link: dict[str, Any]) -> str | None:
    """The address at which a node's gateway is reached from here; None when it is on another machine's loopback."""
    return str(link["loopback"] if link["machine"] == _machine() else link["address"]) or None


def _machine() -> str:
    """What two processes have in common when they share a loopback interface."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return f"{file.read().strip()}/{os.stat('/proc/self/ns/net').st_ino}"


def _as_rank(number: int, rank: dict[str, Any]) -> RankState:
    """A rank of another node as `Job.announce` takes it."""
    where = rank.get("where")
    return RankState(
        number,
        port=rank.get("port"),
        pid=rank.get("pid"),
        where=from_dict(CallSite, where) if where else None,
        node=rank.get("node"),
    )
