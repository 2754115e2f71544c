"""One job on several nodes: network namespaces joined by a cable, and two launchers beside each other."""

import json
import os
import re
import shutil
import subprocess
import sys
import time

import pytest

from raytrain_debug.launcher import nodes, ports
from raytrain_debug.launcher.gateway import Gateway
from raytrain_debug.launcher.host import Host
from raytrain_debug.launcher.job import Job
from raytrain_debug.launcher.node_ports import NodePorts
from raytrain_debug.launcher.nodes import Group, Nodes
from raytrain_debug.run import layout
from raytrain_debug.run.reader import load_run
from raytrain_debug.run.records import LauncherRecord, RunRecord
from tests.conftest import TARGETS, free_base_port, wait_for
from tests.gateway_rig import Client

MEET = TARGETS / "meet.py"
TOKEN = "a long secret"
TIMEOUT = 6  # seconds, of the script's process group

needs_namespaces = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("unshare") is None,
    reason="needs root, ip (iproute2) and unshare (util-linux), to make network namespaces",
)


class Node:
    """A machine of its own, as far as network and host name go."""

    def __init__(self, number, directory):
        self.number = number
        self.name = f"node{number}"
        self.namespace = f"rtd-{os.getpid()}-{number}"
        self.address = f"10.77.0.{number + 1}"
        self.cwd = directory / self.name
        self.cwd.mkdir()
        self.hosts = directory / "hosts"
        self.log = self.cwd / "launch.log"
        self.process = None

    def ip(self, *arguments):
        subprocess.run(["ip", "-n", self.namespace, *arguments], check=True)

    def command(self, *arguments):
        enter = ["ip", "netns", "exec", self.namespace, "unshare", "--uts", "--mount", "sh", "-c"]
        become = f'hostname {self.name} && mount --bind {self.hosts} /etc/hosts && exec "$@"'
        return [*enter, become, "sh", sys.executable, *map(str, arguments)]

    def environment(self, token):
        mine = {"GLOO_SOCKET_IFNAME": "cable", "OMP_NUM_THREADS": "1"}
        others = {name: value for name, value in os.environ.items() if name != "RAYTRAIN_DEBUG_TOKEN"}
        return {**others, **mine, **({"RAYTRAIN_DEBUG_TOKEN": token} if token else {})}

    def run(self, *arguments, token=TOKEN):
        return subprocess.run(
            self.command("-m", "raytrain_debug", *arguments),
            cwd=self.cwd,
            env=self.environment(token),
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=60,
        )

    def launch(self, *arguments):
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                self.command("-m", "raytrain_debug", "launch", *arguments),
                cwd=self.cwd,
                env=self.environment(TOKEN),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def output(self):
        return self.log.read_text()

    def wait_output(self, text, timeout=60):
        def said():
            assert self.process.poll() is None or text in self.output, self.output
            return text in self.output

        wait_for(said, timeout, lambda: f"{self.name} to say {text!r}: {self.output}")

    def states(self):
        return {rank["rank"]: rank for rank in json.loads(self.run("status", "--json").stdout)["ranks"]}


@pytest.fixture
def two_nodes(tmp_path):
    """Two network namespaces and a cable between them."""
    (tmp_path / "hosts").write_text("127.0.0.1 localhost\n10.77.0.1 node0\n10.77.0.2 node1\n")
    both = [Node(0, tmp_path), Node(1, tmp_path)]
    try:
        for node in both:
            subprocess.run(["ip", "netns", "add", node.namespace], check=True)
        both[0].ip("link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", both[1].namespace)
        for node in both:
            node.ip("addr", "add", f"{node.address}/24", "dev", "cable")
            node.ip("link", "set", "lo", "up")
            node.ip("link", "set", "cable", "up")
        yield both
    finally:
        for node in both:
            if node.process is not None and node.process.poll() is None:
                os.killpg(node.process.pid, 15)
                try:
                    node.process.wait(10)
                except subprocess.TimeoutExpired:
                    os.killpg(node.process.pid, 9)
            subprocess.run(["ip", "netns", "del", node.namespace], check=False)


@needs_namespaces
def test_a_rank_on_another_node_is_seen_stopped_and_debugged_from_here(two_nodes):
    here, there = two_nodes
    torchrun = (
        "--nnodes",
        "2",
        "--nproc-per-node",
        "2",
        "--rdzv-backend",
        "c10d",
        "--rdzv-endpoint",
        "10.77.0.1:29400",
    )
    own = ("--base-port", "6000", "--host", "0.0.0.0")
    for node in two_nodes:
        # torchrun numbers nodes by their names, and on one machine by their pids.
        node.launch(*own, *torchrun, MEET, "40", "0.05", TIMEOUT)
    here.wait_output("rank 3 on node1 waits for a debugger at")
    waited_since = time.monotonic()
    there.wait_output("rank 3 waits for a debugger at")

    states = here.states()
    assert {rank: state["port"] for rank, state in states.items()} == {0: 6000, 1: 6001, 2: 6002, 3: 6003}
    assert {rank: state["node"] for rank, state in states.items()} == {0: None, 1: None, 2: "node1", 3: "node1"}
    assert states[3]["state"] == "waiting"
    assert states[3]["where"]["file"] == str(MEET)

    for token, words in ((None, "wants a token"), ("another secret", "wants a token")):
        refused = here.run("attach", "--rank", "3", "-c", "p 1", token=token)
        assert refused.returncode == 1
        assert words in refused.stderr
        assert refused.stdout == ""
    assert here.states()[3]["state"] == "waiting", "the rank has noticed who was refused"

    # Longer than the process group's timeout: on both nodes the other ranks wait in a collective, and none fails.
    time.sleep(max(0.0, waited_since + TIMEOUT + 3 - time.monotonic()))
    done = here.run("attach", "--rank", "3", "-c", "p __rank__, step", "-c", "p __import__('socket').gethostname()")
    assert done.stdout == "(3, 5)\n'node1'\n"
    assert done.returncode == 0
    # A process of one's own machine and user needs no token.
    assert there.run("attach", "--rank", "2", "-c", "p __rank__", token=None).stdout == "2\n"

    for node in two_nodes:
        assert node.process.wait(60) == 0, node.output
        assert "fails now" not in node.output
    assert "rank 0 done 4" in here.output
    assert "rank 3 done 4" in there.output

    runs = [load_run(layout.find_run(None, node.cwd / layout.ROOT_NAME)) for node in two_nodes]
    assert [[rank.rank for rank in run.ranks] for run in runs] == [[0, 1], [2, 3]]
    assert runs[0].record.job == runs[1].record.job == runs[0].record.id
    assert [run.record.launcher.hosts for run in runs] == [
        {"2": "node1", "3": "node1"},
        {"0": "node0", "1": "node0"},
    ]


def test_two_nodes_on_one_machine_share_a_directory_and_wait_for_each_other(launch, tmp_path):
    endpoint = f"localhost:{free_base_port(1)}"
    base_port = free_base_port(8) + 1
    torchrun = ("--nnodes", "2", "--nproc-per-node", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint)
    with_log = [tmp_path / name for name in ("first", "second")]
    shared = tmp_path / "shared"
    shared.mkdir()
    # The port of rank 0 is somebody else's: with several nodes that comes to light when the job is about to run.
    bound = ports.bind_ports("127.0.0.1", base_port, [0])
    try:
        jobs = []
        for log in with_log:
            log.mkdir()
            jobs.append(
                launch("--run-root", shared, *torchrun, MEET, "40", "0.05", TIMEOUT, cwd=log, base_port=base_port)
            )
        jobs[0].wait_output("rank 3 on ")
        jobs[1].wait_output("rank 3 waits for a debugger")
    finally:
        ports.close_all(bound)
    assert f"port {base_port} is taken by" in jobs[0].output
    assert "are debugged on other ports" in jobs[0].output
    time.sleep(TIMEOUT + 1)

    def command(*arguments):
        line = [sys.executable, "-m", "raytrain_debug", *arguments, "--run-root", str(shared)]
        return subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=60)

    states = json.loads(command("status", "--json").stdout)["ranks"]
    assert [(each["rank"], each["state"]) for each in states] == [
        (0, "dormant"),
        (1, "dormant"),
        (2, "dormant"),
        (3, "waiting"),
    ]
    assert states[0]["port"] != base_port
    assert [each["port"] for each in states[2:]] == [base_port + 2, base_port + 3]
    runs = [load_run(run) for run in layout.list_runs(shared)]
    assert len(runs) == 2
    assert len({run.record.job for run in runs}) == 1
    (node_0,) = (run for run in runs if run.record.job == run.record.id)
    assert os.readlink(shared / "latest") == f"runs/{node_0.record.id}"
    done = command("attach", "--run", node_0.record.id, "--rank", "3", "-c", "p __rank__")
    assert done.stdout == "3\n"
    for job in jobs:
        assert job.wait() == 0
        assert "fails now" not in job.output
    assert re.search("rank 3 done 4", jobs[1].output)


class Launcher:
    """A launcher's part in a job of several nodes, without the job: ranks that only exist in its books."""

    def __init__(self, directory, node, store, of=2, token=None):
        self.paths = layout.create_run(directory / f"node{node}" / layout.ROOT_NAME)
        launcher = LauncherRecord(0, 0.0, f"name{node}", "", bind="127.0.0.1")
        record = RunRecord(self.paths.id, ("train.py",), ".", "torchrun", 0.0, of, nnodes=of, launcher=launcher)
        self.announced = []
        self.said = []
        self.met = []
        self.told = []
        self.job = Job(self.paths, record, announce=lambda rank: self.announced.append((rank.rank, rank.node)))
        self.host = Host(self.job, layout.socket_path(self.paths.id, "launcher"))
        self.host.start()
        self.rank = self.job.rank(node)
        self.rank.port, self.rank.pid, self.rank.send = 7000 + node, 100 + node, self.told.append
        self.nodes = Nodes(self.host, self.job, token, self.said.append, lambda: self.met.append(True))
        self.nodes.start()
        self.nodes.join(Group(store, node, of))

    def wait(self, reason="breakpoint"):
        def work():
            self.rank.waiting = reason
            self.job.changed(self.rank)

        self.host.run(work)

    def holds(self):
        return [message["on"] for message in self.told if message["op"] == "hold"]

    def elsewhere(self):
        return self.nodes.ask().result(5)

    def close(self):
        self.nodes.close()
        self.host.stop()


@pytest.fixture
def launchers(tmp_path):
    made = []

    def start(node, store, **options):
        made.append(Launcher(tmp_path, node, store, **options))
        return made[-1]

    yield start
    for each in made:
        each.close()


@pytest.fixture
def store():
    from torch.distributed import HashStore

    return HashStore()


def test_a_held_rank_holds_the_other_nodes_until_it_goes_on(launchers, store):
    first, second = launchers(0, store), launchers(1, store)
    wait_for(lambda: first.met and second.met, what="the launchers to meet")
    second.wait()
    wait_for(lambda: first.holds() == [True], what="the hold")
    wait_for(lambda: first.announced == [(1, "name1")], what="the announcement on node 0")
    assert first.elsewhere()[1]["state"] == "waiting"
    second.wait(None)
    wait_for(lambda: first.holds() == [True, False], what="the end of the hold")
    assert first.announced == [(1, "name1")]
    assert first.elsewhere()[1]["state"] == "starting"
    assert load_run(first.paths).record.launcher.ports == {"0": 7000, "1": 7001}


def test_a_node_that_died_holding_the_others_lets_go_of_them(launchers, store, monkeypatch):
    monkeypatch.setattr(nodes, "SILENT", 2.0)
    first, second = launchers(0, store), launchers(1, store)
    second.wait()
    wait_for(lambda: first.holds() == [True], what="the hold")
    time.sleep(3)
    assert first.holds() == [True], "a node that lives has been given up"
    second.nodes.close()  # as if killed: it takes nothing back
    wait_for(lambda: first.holds() == [True, False], 10, "the hold to end")


def test_a_node_with_another_token_is_not_believed(launchers, store):
    first, second = launchers(0, store, token="ours"), launchers(1, store, token="theirs")
    wait_for(lambda: first.said, what="the complaint")
    assert "node 1 was started with another token" in first.said[0]
    second.wait()
    time.sleep(1.5)
    assert first.holds() == []
    assert first.elsewhere() == {}
    assert len(first.said) == 1


def test_a_store_that_fails_leaves_the_ranks_their_timeouts(launchers, store):
    class Failing:
        broken = False

        def __getattr__(self, name):
            if self.broken:
                raise RuntimeError("the store has gone")
            return getattr(store, name)

    ours = Failing()
    first, second = launchers(0, ours), launchers(1, store)
    second.wait()
    wait_for(lambda: first.holds() == [True], what="the hold")
    ours.broken = True
    wait_for(lambda: first.holds() == [True, False], what="the end of the hold")
    assert first.said == []


def test_a_new_attempt_forgets_the_nodes_of_the_last(launchers, store):
    from torch.distributed import PrefixStore

    first, second = launchers(0, store), launchers(1, store)
    second.wait()
    wait_for(lambda: first.holds() == [True], what="the hold")
    assert set(first.elsewhere()) == {1}
    first.nodes.join(Group(PrefixStore("next", store), 0, 1))
    wait_for(lambda: first.holds() == [True, False], what="the end of the hold")
    assert first.elsewhere() == {}


def test_the_ports_of_a_node_follow_its_ranks(tmp_path):
    paths = layout.create_run(tmp_path / layout.ROOT_NAME)
    launcher = LauncherRecord(0, 0.0, "", "")
    job = Job(paths, RunRecord(paths.id, ("train.py",), ".", "torchrun", 0.0, 4, launcher=launcher))
    host = Host(job, layout.socket_path(paths.id, "launcher"))
    host.start()
    said = []
    base_port = free_base_port(4)
    gates = NodePorts(host, Gateway(job, said.append, said.append), "127.0.0.1", base_port, said.append)
    try:
        assert gates.follow([0, 1])
        assert not gates.follow([1, 0])
        assert str(gates) == f"127.0.0.1:{base_port}-{base_port + 1}"
        waiting = Client(base_port)
        waiting.request("initialize")
        waiting.send("attach")
        waiting.wait_event("output")
        assert gates.follow([1, 2])
        assert "rank 0 is on another node now" in waiting.wait_event("output")["body"]["output"]
        assert waiting.wait_event("terminated")["body"] == {}
        waiting.close()
        assert load_run(paths).record.launcher.ports == {"1": base_port + 1, "2": base_port + 2}
        ports.close_all(ports.bind_ports("127.0.0.1", base_port, [0]))
        assert said == []
    finally:
        host.stop()
