"""A job of real Ray Train workers (`launch --ray`): what the controller of each `fit()` tells, and how ranks end there.

The controller, a process of Ray's on this node, keeps a connection to our control socket (shim/ray_controller.py is its
end of it): `{"op": "ray"}` first, then events, each answered by one line; `{"op": "hold", "on": true}` comes between.
The processes of ranks are Ray's children, so their deaths are told by the end of their lifelines.

Belongs to the launcher's event loop thread, but for `run`.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

from raytrain_debug.launcher import single
from raytrain_debug.launcher.host import Host
from raytrain_debug.launcher.job import Job, RankState, signal_name
from raytrain_debug.launcher.node_ports import NodePorts
from raytrain_debug.run import codec
from raytrain_debug.shim import ray_environment, ray_internals
from raytrain_debug.shim.settings import Settings

_FAULTS = {  # as faulthandler calls them
    "Segmentation fault": signal.SIGSEGV,
    "Aborted": signal.SIGABRT,
    "Bus error": signal.SIGBUS,
    "Floating-point exception": signal.SIGFPE,
    "Illegal instruction": signal.SIGILL,
}


class RayJob:
    """`settings` are those of every rank; `wait` the ranks that wait before training, None for all of them."""

    def __init__(
        self,
        host: Host,
        job: Job,
        ports: NodePorts,
        settings: Settings,
        wait: tuple[int, ...] | None,
        say: Callable[[str], None],
    ) -> None:
        self._host = host
        self._job = job
        self._ports = ports
        self._settings = settings
        self._wait = wait
        self._say = say
        self._attempt = -1
        self._controller: asyncio.StreamWriter | None = None
        self._held = False
        host.conversations["ray"] = self._converse
        host.lifeline_ended = self._lifeline_ended
        host.run(lambda: job.listeners.append(self._changed))

    @property
    def began(self) -> bool:
        """Whether workers have ever started."""
        return self._attempt >= 0

    async def _converse(
        self, hello: dict[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if self._controller is not None:
            writer.write(codec.dumps({"error": "another fit() of this script is being debugged"}).encode() + b"\n")
            await writer.drain()
            return
        self._controller = writer
        self._held = False
        try:
            self._send({"ok": True})
            self._tell_hold()
            while line := await reader.readline():
                self._send(await self._answer(codec.loads(line)))
        finally:
            self._controller = None
            self._job.stopping = True  # Ray ends the workers of a controller that is gone

    async def _answer(self, message: dict[str, Any]) -> dict[str, Any]:
        if message.get("event") == "begin":
            return await self._begin(message)
        if message.get("event") == "stop":
            self._job.stopping, self._job.restarting = True, bool(message.get("restart"))
            await self._host.dump_cores()
            return {"ok": True}
        return {"error": f"the launcher does not know {message.get('event')!r}"}

    async def _begin(self, message: dict[str, Any]) -> dict[str, Any]:
        """Workers exist: their ports are open, and the job knows of them, before they can say hello."""
        size = int(message["world_size"])
        pids = {int(rank): int(pid) for rank, pid in message["pids"].items()}
        ranks = list(range(size))
        if await asyncio.to_thread(self._ports.follow, ranks):
            self._say(f"gateway ready on {self._ports} (run {self._job.paths.id})")
        if len(pids) == size:
            self._attempt += 1
            self._job.attempt_started(self._attempt, size, pids, int(message["restarts_left"]))
        wait = tuple(ranks) if self._wait is None else self._wait
        settings = dataclasses.replace(self._settings, wait=wait, attempt=self._attempt)
        return {"settings": dataclasses.asdict(settings), "script": self._job.record.argv[0]}

    def _lifeline_ended(self, rank: RankState, hello: dict[str, Any]) -> None:
        if rank.exit is not None or rank.pid is None:
            return
        if rank.node is None and hello.get("log") and not self._job.stopping:
            try:
                ray_internals.keep_fault(hello["log"], hello["fault"])
            except OSError:
                pass
        self._job.ended(rank.pid, None, self._signal_of(rank))

    def _signal_of(self, rank: RankState) -> int | None:
        """What ended a rank that has not ended by itself; None when nobody can tell."""
        if self._job.stopping and not rank.gone:
            return signal.SIGKILL
        try:
            with open(self._job.paths.rank(rank.rank).fault(rank.attempt), encoding="utf-8") as file:
                headline = file.readline()
        except OSError:
            return None
        return next((number for words, number in _FAULTS.items() if words in headline), None)

    def _changed(self, rank: RankState) -> None:
        self._tell_hold()
        launcher = self._job.record.launcher
        if launcher is None or rank.control is None:
            return
        relays = {number: path for number, path in launcher.relays.items() if number != str(rank.rank)}
        if rank.node is not None:
            relays[str(rank.rank)] = rank.control
        if relays != launcher.relays:
            launcher = dataclasses.replace(launcher, relays=relays)
            self._job.record = dataclasses.replace(self._job.record, launcher=launcher)
            self._job.write()

    def _tell_hold(self) -> None:
        if self._controller is not None and self._job.held != self._held:
            self._held = self._job.held
            self._send({"op": "hold", "on": self._held})

    def _send(self, message: dict[str, Any]) -> None:
        if self._controller is not None:
            self._controller.write(codec.dumps(message).encode() + b"\n")


def why_no_worker(code: int) -> str:
    """What to say of a driver that ended with `code` (-n for signal n) before any worker had started."""
    if code == 0:
        return "no Ray Train worker has started: is it num_workers=0? Local mode is debugged with --no-torchrun"
    how = f"ended with exit code {code}" if code > 0 else f"was ended by {signal_name(-code)}"
    return f"the script {how} before a Ray Train worker had started: what it printed tells why"


def run(command: Sequence[str], host: Host, job: Job) -> int:
    """Run `python -u COMMAND`, the driver, to its end; its return code (-n for signal n)."""
    ray_environment.ask_for_callback()
    os.environ[ray_environment.LAUNCHER] = str(host.socket_path)
    return single.see_through(subprocess.Popen([sys.executable, "-u", *command]), host, job)
