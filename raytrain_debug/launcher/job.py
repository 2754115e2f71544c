"""The job as the launcher knows it: each rank's process, state and end, and run.json that tells of them.

Everything here belongs to the launcher's event loop thread (launcher/host.py); nothing else touches a Job.
"""

from __future__ import annotations

import dataclasses
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from raytrain_debug.run import writer
from raytrain_debug.run.layout import RunPaths
from raytrain_debug.run.reader import read_record
from raytrain_debug.run.records import CallSite, CoreRecord, ExitRecord, RunRecord
from raytrain_debug.run.remedies import remedy_of


@dataclass
class RankState:
    """One rank, in its newest attempt; `node` names its machine when that is another one."""

    rank: int
    port: int | None = None
    pid: int | None = None
    attempt: int = 0
    control: str | None = None  # its control socket, once it has said hello
    client: str | None = None  # who debugs it
    paused: bool = False
    waiting: str | None = None  # why it waits for a client: "start", "breakpoint", "crash"
    where: CallSite | None = None
    exit: ExitRecord | None = None
    send: Callable[[dict[str, Any]], None] | None = None  # a line down its lifeline
    node: str | None = None
    gone: bool = False  # a relay has lost it, before anybody was ended; the rest of what it recorded is on its way

    @property
    def pid_here(self) -> int | None:
        """Its process, if that is one of this machine."""
        return self.pid if self.node is None else None

    @property
    def state(self) -> str:
        """The word `status` shows."""
        if self.exit is not None:
            return "finished" if self.exit.exit_code == 0 else "stopped" if self.exit.caused else "failed"
        if self.client is not None and self.waiting is None:
            return "paused" if self.paused else "attached"
        if self.waiting is not None:
            return "waiting"
        return "dormant" if self.control is not None else "starting"


@dataclass
class Job:
    """All ranks of this node. `changed` is called after each change of a rank, with the rank's number."""

    paths: RunPaths
    record: RunRecord
    announce: Callable[[RankState], None] = lambda rank: None
    ranks: dict[int, RankState] = field(default_factory=dict)
    listeners: list[Callable[[RankState], None]] = field(default_factory=list)
    stopping: bool = False
    ending: bool = False  # the workers of this attempt are being ended, whatever comes after it
    restarting: bool = False  # torchrun stops this attempt's workers in order to start the next
    stop_reason: str | None = None  # why we end the job ourselves
    restarts_left: int = 0
    held_elsewhere: bool = False  # a rank of another node is debugged or waits for a debugger
    elsewhere: dict[int, dict[str, Any]] = field(default_factory=dict)  # what `status` shows of other nodes' ranks
    complain: Callable[[str], None] = lambda text: None
    _complained: bool = False
    _stopped_by: str | None = None

    def rank(self, number: int) -> RankState:
        """The state of rank `number`, made when it is new."""
        if number not in self.ranks:
            self.ranks[number] = RankState(number)
        return self.ranks[number]

    def changed(self, rank: RankState) -> None:
        """Tell whoever follows this rank, and keep every rank's timeouts held while somebody debugs one."""
        for listener in list(self.listeners):
            listener(rank)
        self.tell_hold()

    @property
    def held(self) -> bool:
        """True while a rank is debugged or waits for a debugger, here or on another node."""
        return self.held_elsewhere or bool(self.held_here())

    def held_here(self) -> list[int]:
        """The ranks of this node that are debugged or wait for a debugger."""
        return [
            number
            for number, rank in sorted(self.ranks.items())
            if rank.exit is None and (rank.client is not None or rank.waiting is not None)
        ]

    _hold_told: bool = False

    def tell_hold(self) -> None:
        """Send the ranks `hold` when it has changed."""
        if self.held != self._hold_told:
            self._hold_told = self.held
            for rank in self.ranks.values():
                if rank.send is not None:
                    rank.send({"op": "hold", "on": self._hold_told})

    def attempt_started(self, attempt: int, world_size: int, pids: dict[int, int], restarts_left: int = 0) -> None:
        """The workers of `attempt` run: `pids` by rank."""
        self.restarts_left = restarts_left
        self.stopping = self.restarting = self.ending = False
        for number in self.ranks.keys() - pids.keys():
            del self.ranks[number]  # another node's now, or nobody's
        for number, pid in pids.items():
            rank = self.rank(number)
            if rank.pid == pid:
                continue  # it has said hello already
            self._renew(rank, pid, attempt)
        self.record = dataclasses.replace(self.record, attempt=attempt, world_size=world_size)
        self.write()
        for number in pids:
            self.changed(self.rank(number))

    def hello(self, message: dict[str, Any], send: Callable[[dict[str, Any]], None]) -> RankState:
        """A rank's shim has connected."""
        rank = self.rank(int(message["rank"]))
        if rank.pid != message["pid"]:
            self._renew(rank, int(message["pid"]), int(message["attempt"]))
        rank.control = str(message["control"])
        rank.node = message.get("node")
        rank.send = send
        if self.held:
            send({"op": "hold", "on": True})
        self.changed(rank)
        return rank

    def says(self, rank: RankState, message: dict[str, Any]) -> None:
        """A line from a rank's lifeline."""
        event = message.get("event")
        if event == "waiting":
            where = message.get("where")
            rank.waiting = str(message.get("reason"))
            rank.where = CallSite(**where) if where else None
            crashed_in_consequence = rank.waiting == "crash" and self._is_ending(rank.attempt)
            if rank.client is None and not crashed_in_consequence:
                self.announce(rank)
        elif event == "running":
            rank.waiting = rank.where = None
        elif event == "gone":
            rank.gone = not self.stopping
        elif event == "ended" and rank.pid is not None:
            self.ended(rank.pid, int(message["exit_code"]), None)  # its training has: the process may live on
            return
        self.changed(rank)

    def ended(self, pid: int, exit_code: int | None, signal_number: int | None) -> ExitRecord | None:
        """A rank's process has ended; None when it is not one of ours."""
        rank = next((each for each in self.ranks.values() if each.pid == pid and each.exit is None), None)
        if rank is None:
            return None
        record = ExitRecord(
            rank=rank.rank,
            attempt=rank.attempt,
            pid=pid,
            time=time.time(),
            order=len(self.record.exits),
            exit_code=exit_code,
            signal=None if signal_number is None else signal_name(signal_number),
            caused=self._is_caused(rank.attempt, exit_code, signal_number),
        )
        rank.exit = record
        if rank.control is not None and rank.node is None:
            Path(rank.control).unlink(missing_ok=True)  # a killed process leaves it
        rank.waiting = rank.where = rank.send = rank.control = None
        self.record = dataclasses.replace(self.record, exits=(*self.record.exits, record))
        self.write()
        self.changed(rank)
        return record

    def stopped_by(self, signal_name: str) -> None:
        """A signal has asked the launcher to end."""
        self.stopping, self._stopped_by = True, signal_name

    def finish(self, exit_code: int | None, stopped: str | None) -> None:
        """The job is over; `stopped` names the signal or the person that ended it, None when it ended by itself."""
        exits = self.record.exits
        if stopped is None and exit_code != 0:
            stopped = self._stopped_by
        if stopped is not None:
            exits = tuple(dataclasses.replace(each, caused=True) if each.signal else each for each in exits)
        self.record = dataclasses.replace(
            self.record, ended=time.time(), exit_code=exit_code, stopped=stopped, exits=exits
        )
        self.write()

    def will_restart(self, rank: RankState) -> bool:
        """True when torchrun starts a new attempt after this rank's end."""
        if rank.exit is None or rank.attempt != self.record.attempt:
            return False
        return self.restarting or (self.restarts_left > 0 and not self.stopping and rank.exit.exit_code != 0)

    def how_it_ended(self, rank: RankState) -> str:
        """One sentence for the client that was debugging the rank."""
        end = rank.exit
        if end is None:
            return f"rank {rank.rank} is gone"
        if end.caused:
            by = "Ray" if self.record.mode == "ray" and not self.stopping else "the launcher"
            how = end.signal or f"it exited with code {end.exit_code}"
            return f"rank {rank.rank} was ended by {by} ({how}) because the job ended"
        if end.signal is not None:
            return f"rank {rank.rank} was killed by {end.signal}"
        if end.exit_code == 0:
            return f"rank {rank.rank} finished"
        core = read_record(self.paths.rank(rank.rank).core, CoreRecord)
        if core is not None and core.pid == end.pid and core.exception is not None:
            error, where = core.exception, core.exception.where
            place = f" at {where.file}:{where.line} in {where.function}" if where else ""
            if error.type == "SystemExit":
                said = f": {error.message}" if error.message != str(end.exit_code) else ""
                return f"rank {rank.rank} exited with code {end.exit_code}{place}{said}"
            told = f"{error.type}: {error.message}"
            remedy = remedy_of(told)
            headline, line_end, rest = told.partition("\n")
            told = f"{headline}{place}{line_end}{rest}"
            return f"rank {rank.rank} failed: {told}" + (f"\n{remedy}" if remedy is not None else "")
        return f"rank {rank.rank} exited with code {end.exit_code}"

    def write(self) -> None:
        """Write run.json; a full or missing disk does not stop the job, and is said once."""
        try:
            writer.write_record(self.paths.record, self.record)
        except OSError as error:
            if not self._complained:
                self._complained = True
                self.complain(
                    f"cannot write to {self.paths.directory} ({error.strerror or error}): the job goes on, "
                    "but what becomes of it is not recorded"
                )

    def write_ports(self, job_id: str | None = None) -> None:
        """Record where the ranks are debugged: this node's, and those of other nodes that can be reached.

        `job_id` is what the runs of one job on several nodes have in common, once it is known.
        """
        assert self.record.launcher is not None
        here = {str(number): rank.port for number, rank in sorted(self.ranks.items()) if rank.port is not None}
        there = {
            str(number): rank
            for number, rank in sorted(self.elsewhere.items())
            if rank.get("host") and rank.get("port") and str(number) not in here
        }
        launcher = dataclasses.replace(
            self.record.launcher,
            ports=here | {number: int(rank["port"]) for number, rank in there.items()},
            hosts={number: str(rank["host"]) for number, rank in there.items()},
        )
        record = dataclasses.replace(self.record, launcher=launcher, job=self.record.job or job_id or "")
        if record != self.record:
            self.record = record
            self.write()

    def _renew(self, rank: RankState, pid: int, attempt: int) -> None:
        rank.pid, rank.attempt, rank.exit = pid, attempt, None
        rank.control = rank.waiting = rank.where = rank.send = None
        rank.paused = rank.gone = False

    def _is_caused(self, attempt: int, exit_code: int | None, signal_number: int | None) -> bool:
        """Whether a death is what comes of ending the workers: by their signal, or by what a script does at SIGTERM."""
        if exit_code:
            return self.stopping or self.ending
        return signal_number in (signal.SIGTERM, signal.SIGKILL, signal.SIGINT) and self._is_ending(attempt)

    def _is_ending(self, attempt: int) -> bool:
        """True when torchrun is taking this attempt's workers down: one has failed, or all are being stopped."""
        return (
            self.stopping
            or self.ending
            or any(each.attempt == attempt and (each.exit_code or each.signal) for each in self.record.exits)
        )


def signal_name(number: int) -> str:
    """SIGKILL for 9; `signal 99` for one that has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
