"""The launcher of a Ray job, as a controller and ranks see it; and a worker that loses its launcher. No Ray here."""

from __future__ import annotations

import socket
import subprocess
import sys
import time

import pytest

from raytrain_debug.errors import ControlError
from raytrain_debug.launcher.gateway import Gateway
from raytrain_debug.launcher.host import Host
from raytrain_debug.launcher.job import Job
from raytrain_debug.launcher.node_ports import NodePorts
from raytrain_debug.launcher.ray_job import RayJob
from raytrain_debug.run import channel, codec, layout
from raytrain_debug.run.fault import read_fault
from raytrain_debug.run.records import LauncherRecord, RunRecord
from raytrain_debug.shim.ray_controller import Link
from raytrain_debug.shim.settings import Settings
from tests.conftest import free_base_port, wait_for

RANK = """
import sys
from raytrain_debug.run.records import CallSite
from raytrain_debug.shim.rank import Rank
from raytrain_debug.shim.settings import Identity, Settings

rank = Rank(Settings(sys.argv[1], sys.argv[2], 0, mode="ray"), Identity(0, 0, 1, 0), "train.py")
rank.start()
print("waits", flush=True)
print("a client came:", rank.wait_for_client(None, "breakpoint"), flush=True)
print("goes on, held:", rank.timeouts._held, flush=True)
sys.stdin.read()
"""

# What a Ray worker leaves on its stderr.
LOG = """
[2026-11-29 16:49:56,057 W 10 10] (worker) something else
Fatal Python error: Segmentation fault

Current thread 0x00007fb8bd7fb6c0 (most recent call first):
  File "/job/train.py", line 9 in train
  File "/venv/lib/python3.11/site-packages/ray/train/v2/_internal/execution/worker_group/worker.py", line 152 in train_fn_with_final_checkpoint_flush
  File "/venv/lib/python3.11/site-packages/raytrain_debug/shim/ray_internals.py", line 90 in observed
  File "/usr/lib/python3.11/threading.py", line 982 in run

[2026-11-29 16:50:03,219 E 10 77] logging.cc:118: Stack trace:
"""  # noqa: E501


class Launcher:
    def __init__(self, directory):
        self.paths = layout.create_run(directory / layout.ROOT_NAME)
        launcher = LauncherRecord(0, 0.0, socket.gethostname(), "")
        self.job = Job(
            self.paths, RunRecord(self.paths.id, ("train.py",), ".", "ray", time.time(), 0, launcher=launcher)
        )
        self.host = Host(self.job, layout.socket_path(self.paths.id, "launcher"))
        self.socket = str(self.host.socket_path)
        self.host.start()
        self.said = []
        gateway = Gateway(self.job, self.said.append, self.said.append)
        self.base_port = free_base_port(4)
        gates = NodePorts(self.host, gateway, "127.0.0.1", self.base_port, self.said.append)
        settings = Settings(str(self.paths.directory), self.socket, 0, mode="ray")
        RayJob(self.host, self.job, gates, settings, None, self.said.append)

    def controller(self, on_hold=lambda on: None):
        return Link(self.socket, on_hold)

    def rank(self, number, pid, node=None, **more):
        """The lifeline of a rank."""
        lifeline = socket.socket(socket.AF_UNIX)
        lifeline.connect(self.socket)
        hello = {"op": "hello", "rank": number, "pid": pid, "attempt": 0, "control": f"/nowhere/{pid}", "node": node}
        hello |= more
        lifeline.sendall(codec.dumps(hello).encode() + b"\n")
        wait_for(lambda: self.state(number)["pid"] == pid and self.state(number)["state"] != "starting", 5, "hello")
        return lifeline

    def state(self, number):
        return channel.ask(self.socket, {"op": "status"})["ranks"].get(str(number), {})

    def exits(self):
        return [(end.rank, end.attempt, end.exit_code, end.signal, end.caused) for end in self.job.record.exits]


@pytest.fixture
def launcher(tmp_path):
    made = Launcher(tmp_path)
    yield made
    made.host.stop()


def begin(link, pids, restarts_left=0):
    size = max(pids) + 1
    return link.ask(
        {
            "event": "begin",
            "world_size": size,
            "pids": {str(rank): pid for rank, pid in pids.items()},
            "restarts_left": restarts_left,
        }
    )


def test_ports_are_open_before_workers_can_say_hello(launcher):
    link = launcher.controller()
    answer = begin(link, {0: 10, 1: 11})
    assert answer["settings"]["attempt"] == 0
    assert answer["settings"]["wait"] == [0, 1]
    assert answer["script"] == "train.py"
    for rank in (0, 1):
        assert launcher.state(rank)["state"] == "starting"
        socket.create_connection(("127.0.0.1", launcher.base_port + rank), 2).close()
    assert f"gateway ready on 127.0.0.1:{launcher.base_port}-{launcher.base_port + 1}" in launcher.said[0]
    assert begin(link, {0: 20})["settings"]["attempt"] == 1
    assert launcher.state(1) == {}
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", launcher.base_port + 1), 2)


def test_ends_of_workers_are_told_by_themselves_by_the_controller_or_by_their_lifelines(launcher):
    link = launcher.controller()
    begin(link, {0: 10, 1: 11, 2: 12}, restarts_left=1)
    lifelines = [launcher.rank(number, 10 + number) for number in range(3)]
    lifelines[0].sendall(b'{"event": "ended", "exit_code": 1}\n')
    wait_for(lambda: launcher.state(0)["state"] == "failed", 5, "the end of rank 0")
    assert launcher.host.run(lambda: launcher.job.will_restart(launcher.job.rank(0)))
    lifelines[1].close()
    wait_for(lambda: launcher.state(1)["state"] == "failed", 5, "the end of rank 1")
    link.ask({"event": "stop", "restart": True})
    lifelines[2].close()
    wait_for(lambda: launcher.state(2)["state"] == "stopped", 5, "the end of rank 2")
    assert launcher.exits() == [(0, 0, 1, None, False), (1, 0, None, None, False), (2, 0, None, "SIGKILL", True)]


def test_a_worker_of_another_node_is_reached_at_its_stand_in(launcher):
    link = launcher.controller()
    begin(link, {0: 10, 1: 11})
    launcher.rank(0, 10)
    launcher.rank(1, 11, node="elsewhere")
    wait_for(lambda: launcher.job.record.launcher.relays, 5, "relays")
    assert launcher.job.record.launcher.relays == {"1": "/nowhere/11"}


def test_a_fatal_signal_is_told_by_the_workers_log(launcher, tmp_path):
    link = launcher.controller()
    begin(link, {0: 10, 1: 11})
    (tmp_path / "worker.err").write_text(LOG)
    fault = launcher.paths.rank(0).fault(0)
    layout.make_private(fault.parent)
    first = launcher.rank(0, 10, log=str(tmp_path / "worker.err"), fault=str(fault))
    second = launcher.rank(1, 11, log=str(tmp_path / "absent"), fault=str(launcher.paths.rank(1).fault(0)))
    for number, lifeline in enumerate((first, second)):
        lifeline.close()
        wait_for(lambda number=number: launcher.state(number)["state"] == "failed", 5, "the end of a rank")
    assert launcher.exits() == [(0, 0, None, "SIGSEGV", False), (1, 0, None, None, False)]
    [thread] = read_fault(fault, 0, 10).threads
    assert (thread.name, thread.is_main) == ("TrainingThread", True)
    assert [(frame.function, frame.line) for frame in thread.frames] == [
        ("train_fn_with_final_checkpoint_flush", 152),
        ("train", 9),
    ]


def test_the_controller_hears_when_ranks_are_held(launcher):
    heard = []
    link = launcher.controller(heard.append)
    begin(link, {0: 10})
    lifeline = launcher.rank(0, 10)
    lifeline.sendall(b'{"event": "waiting", "reason": "breakpoint", "where": null}\n')
    wait_for(lambda: heard == [True], 5, "hold")
    assert link.held
    lifeline.sendall(b'{"event": "running"}\n')
    wait_for(lambda: heard == [True, False], 5, "its end")


def test_a_controller_that_loses_its_launcher_holds_nothing(launcher):
    heard = []
    link = launcher.controller(heard.append)
    begin(link, {0: 10})
    launcher.host.stop()
    wait_for(lambda: heard == [False], 5, "the end of all holds")
    with pytest.raises(ControlError, match="gone"):
        link.ask({"event": "stop"})
    launcher.host.stop = lambda: None


def test_one_fit_at_a_time(launcher):
    link = launcher.controller()
    with pytest.raises(ControlError, match="another fit"):
        launcher.controller()
    link.close()

    def free():
        try:
            return launcher.controller()
        except ControlError:
            return None

    assert begin(wait_for(free, 5, "the next fit"), {0: 10})["settings"]["attempt"] == 0


def test_a_taken_port_moves_the_ranks_elsewhere(launcher):
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", launcher.base_port + 1))
        holder.listen()
        begin(launcher.controller(), {0: 10, 1: 11})
    assert launcher.state(1)["port"] not in (None, launcher.base_port + 1)
    assert any("is taken by" in text for text in launcher.said)


def test_a_ray_worker_goes_on_when_its_launcher_dies(tmp_path):
    paths = layout.create_run(tmp_path / layout.ROOT_NAME)
    path = layout.socket_path(paths.id, "launcher")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        rank = subprocess.Popen(
            [sys.executable, "-c", RANK, paths.directory, path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        lifeline, _ = listener.accept()
        try:
            assert rank.stdout.readline() == "waits\n"
            lifeline.sendall(b'{"op": "hold", "on": true}\n')
            lifeline.close()
            assert rank.stdout.readline() == "a client came: False\n"
            assert rank.stdout.readline() == "goes on, held: False\n"
            time.sleep(0.2)
            assert rank.poll() is None
            rank.stdin.close()
            assert rank.wait(10) == 0
        finally:
            rank.kill()
            rank.wait()
            path.unlink()
    assert not paths.errors.exists()
