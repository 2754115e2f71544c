"""Real Ray Train workers on a Ray cluster of two nodes: ranks like any other, with no edit of the script."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from raytrain_debug.dap.session import Session
from raytrain_debug.postmortem.verdict import verdict
from raytrain_debug.run import channel, layout
from raytrain_debug.run.reader import load_run
from tests import versions
from tests.conftest import TARGETS, free_base_port, wait_for
from tests.dap_vscode import DebugSession, VsCode

STEPS = TARGETS / "ray_steps.py"
ATTEMPTS = TARGETS / "ray_attempts.py"
PLAIN = TARGETS / "ray_plain.py"
POLL = {"RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2"}  # seconds between the controller's looks at workers
LIMIT, LONGER = 7, 9  # seconds of every time limit of Ray's and torch's, and of a pause
pytestmark = pytest.mark.timeout(240)


@dataclass(frozen=True)
class RayCluster:
    """A cluster of two nodes; `apart`, the second sees neither the driver's sockets nor the directory `own`."""

    address: str
    apart: bool
    own: Path
    shared: Path


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    own, shared = tmp_path_factory.mktemp("own"), tmp_path_factory.mktemp("shared")
    process = subprocess.Popen(
        [sys.executable, TARGETS / "ray_cluster.py", own, layout.runtime_directory()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    words = process.stdout.readline().split()
    assert len(words) == 2, "the cluster did not start"
    yield RayCluster(words[0], words[1] == "apart", own, shared)
    process.stdin.close()
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        process.wait()


@pytest.fixture
def start(cluster, launch, request):
    """`start("script.py", ...)` launches a script on the cluster, in a directory that the other node does not see."""

    def begin(*arguments, env=None):
        cwd = cluster.own / request.node.name
        cwd.mkdir(exist_ok=True)
        shared = cluster.shared / request.node.name
        shared.mkdir(exist_ok=True)
        return launch("--ray", *arguments, cwd=cwd, env={"RAY_ADDRESS": cluster.address, **POLL, **(env or {})})

    return begin


@pytest.fixture
def shared(cluster, request):
    """A directory that both nodes see."""
    directory = cluster.shared / request.node.name
    directory.mkdir(exist_ok=True)
    return directory


def command(job, *arguments):
    done = subprocess.run(
        [sys.executable, "-m", "raytrain_debug", *arguments], cwd=job.cwd, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def as_json(job, *arguments):
    return json.loads(command(job, *arguments, "--json"))


def listening(pid):
    """The TCP addresses at which a process takes connections."""
    connections = psutil.Process(pid).net_connections("inet")
    return {tuple(each.laddr) for each in connections if each.status == psutil.CONN_LISTEN}


def relay():
    """The process of the actor through which the other node is reached."""
    return next(each.pid for each in psutil.process_iter(["cmdline"]) if "ray::Relay" in " ".join(each.info["cmdline"]))


def line_of(target, text):
    return next(number for number, line in enumerate(target.read_text().splitlines(), 1) if text in line)


def test_ranks_on_two_nodes_are_looked_at_debugged_and_recorded(start, shared, cluster):
    limits = {
        f"RAY_TRAIN_{name}_TIMEOUT_S": str(LIMIT) for name in ("WORKER_HEALTH_CHECK", "COLLECTIVE", "REPORT_BARRIER")
    }
    job = start(STEPS, "2", shared, LIMIT, env=limits)
    job.wait_state("dormant", (0, 1))
    wait_for(
        lambda: all(rank.report_count for rank in job.run.ranks), 60, "reports, which come over from the other node"
    )
    [there] = job.run.record.launcher.relays
    there = int(there)
    here = 1 - there
    assert job.status()[there]["state"] == "dormant"

    groups = as_json(job, "stacks")["groups"]
    assert sorted(rank for group in groups for rank in group["ranks"]) == [0, 1]
    assert {group["frames"][0]["function"] for group in groups} == {"train"}
    values = as_json(job, "print", "rank")["groups"]
    assert sorted((each["ranks"], each["value"]) for each in values) == [([0], 0), ([1], 1)]
    has = as_json(job, "print", "__import__('ray').__version__")["groups"]
    assert [(each["ranks"], each["value"]) for each in has] == [([0, 1], versions.under_test()["ray"])]
    shown = command(job, "attach", "--rank", str(there), "-c", "w", "-c", "p rank")
    assert STEPS.name in shown
    assert shown.splitlines()[-1] == str(there)
    ports = {pid: listening(pid) for pid in (job.status()[there]["pid"], relay())}
    assert len(ports[relay()]) == 1, "the port of every actor of Ray's"

    in_collective, in_report = line_of(STEPS, "all_reduce(value)"), line_of(STEPS, '"total": total')
    session = job.session(there)
    for line, function in ((in_collective, "step"), (in_report, "train")):
        session.set_breakpoint(str(STEPS), line, condition=f"__rank__ == {there}")
        assert session.wait_for_stop(20) is not None
        frame = session.stack()[0]
        assert (frame.name, frame.line) == (function, line)
        assert session.evaluate("__rank__", frame).value == str(there)
        assert session.training_thread().name.startswith("TrainingThread")
        assert (job.status()[there]["state"], job.status()[here]["state"]) == ("paused", "dormant")
        assert {pid: listening(pid) for pid in ports} == ports
        time.sleep(LONGER)
        waits = {tuple(each["ranks"]): each["waiting_in"] for each in as_json(job, "stacks")["groups"]}
        assert waits == {(there,): "breakpoint", (here,): "all_reduce" if function == "step" else "report"}
        session.clear_breakpoints()
        session.resume()
    session.disconnect()
    wait_for(lambda: job.status()[there]["state"] == "dormant", 10, "a dormant rank")
    addresses, gates = zip(*listening(job.process.pid), strict=True)
    assert set(addresses) <= {"127.0.0.1", "::1"}
    assert set(gates) == {job.base_port, job.base_port + 1}

    # Nobody debugs: every limit is what it was.
    for attempt, place in enumerate(("report", "collective")):
        late = shared / f"late-{place}-1"
        late.touch()
        wait_for(lambda attempt=attempt: job.status().get(0, {}).get("attempt") == attempt + 1, 60, "a new attempt")
        late.unlink()
        job.wait_state("dormant", (0, 1))
    assert "Timeout" in job.run.rank(0).core_of(0).exception.type
    assert job.run.rank(0).core_of(1).exception.where.line == in_collective

    (shared / "go").touch()
    assert job.wait() == 0, job.output
    elsewhere = job.run.record.launcher.relays.keys() if cluster.apart else ()
    for rank in job.run.ranks:
        last = rank.last_report
        first = next(each for each in rank.reports if each.attempt == 2)
        assert rank.report_count == last.index + 1 == first.index + last.metrics["index"] + 1
        assert (last.context["world_rank"], last.context["world_size"]) == (rank.rank, 2)
        assert last.where.file == str(STEPS)
        assert last.where.function == "train"
        if str(rank.rank) not in elsewhere:
            assert (rank.snapshot / "model.pt").stat().st_size > 0
    verdict = as_json(job, "postmortem")["verdict"]
    assert verdict["state"] == "finished"
    assert not job.paths.errors.exists(), job.paths.errors.read_text()


def test_a_failed_worker_is_a_new_attempt_which_its_debugger_follows(start, shared, cluster):
    job = start("--workers", "2", ATTEMPTS, shared)
    job.wait_state("dormant", (0, 1))
    line = line_of(ATTEMPTS, "# a breakpoint goes here")
    configuration = {"name": "rank 1", "connect": {"host": "127.0.0.1", "port": job.base_port + 1}}
    session = DebugSession(VsCode(job.cwd), configuration, {str(ATTEMPTS): [line]})
    session.start()
    for attempt in (0, 1):
        session.wait_attached_again(attempt + 1)
        stop = session.wait_stopped()
        assert (stop.line, session.evaluate("attempt")) == (line, str(attempt))
        assert {rank["attempt"] for rank in job.status().values()} == {attempt}
        (shared / f"go-{attempt}").touch()
        session.continue_()
        if attempt == 0:
            assert session.wait_stopped().reason == "exception"
            session.continue_()
    assert session.wait_stopped().line == 1 + line_of(ATTEMPTS, "raytrain_debug.breakpoint")
    assert session.evaluate("rank") == "1"
    session.continue_()
    session.wait_ended()
    assert job.wait() == 0, job.output
    assert "the driver goes on" in job.output
    assert "rank 1 failed: RuntimeError: planted in the first attempt" in session.console

    ends = {(end.rank, end.attempt): end for end in job.run.record.exits}
    assert {key: end.exit_code for key, end in ends.items()} == {(0, 0): None, (1, 0): 1, (0, 1): 0, (1, 1): 0}
    assert ends[0, 0].caused
    for rank in job.run.ranks:
        assert [(each.attempt, each.metrics["attempt"]) for each in rank.reports] == [(0, 0), (1, 1), (1, 1)]
    failed, waited = job.run.rank(1).core_of(0), job.run.rank(0).core_of(0)
    assert failed.exception.message == "planted in the first attempt"
    assert failed.exception.where.line == line_of(ATTEMPTS, "raise RuntimeError")
    assert failed.thread.frames[-1].locals["rank"].value == 1
    assert waited.thread.name.startswith("TrainingThread")
    assert waited.thread.frames[-1].line == line_of(ATTEMPTS, "time.sleep(600)")
    judged = verdict(job.run)
    assert judged.state == "finished"
    assert [(each.rank, each.attempt) for each in judged.earlier] == [(1, 0)]
    assert not job.paths.errors.exists(), job.paths.errors.read_text()


def test_f5_stops_every_worker_and_shift_f5_ends_the_job(cluster, shared, request):
    workspace = cluster.own / request.node.name
    workspace.mkdir()
    base_port = free_base_port(2)
    command = ["configure", PLAIN, "--ray", "--workers", "2", "--base-port", str(base_port), "--", "2", shared]
    subprocess.run([sys.executable, "-m", "raytrain_debug", *command], cwd=workspace, check=True, capture_output=True)
    first, after = line_of(PLAIN, "rank = ray.train"), line_of(PLAIN, "while not")  # after breakpoint()
    with VsCode(workspace, env={"RAY_ADDRESS": cluster.address, **POLL}) as code:
        sessions = code.start_compound("Ray Train: ray_plain.py (2 ranks)", breakpoints={str(PLAIN): [first]})
        for rank, session in enumerate(sessions.values()):
            assert session.wait_stopped(60).line == first
            assert session.evaluate("__rank__") == str(rank)
            session.continue_()
            stop = session.wait_stopped()
            assert (stop.function, stop.line) == ("train", after)
            assert session.evaluate("turn") == "3"
        [driver] = [
            each for each in psutil.Process(code.tasks[0].process.pid).children() if str(PLAIN) in each.cmdline()
        ]
        code.stop()
        wait_for(lambda: not driver.is_running(), 30, "the end of the job")


def test_without_launch_the_driver_is_the_launcher(cluster, shared, request):
    cwd = cluster.own / request.node.name
    cwd.mkdir()
    environment = {"RAYTRAIN_DEBUG": "1", "RAY_ADDRESS": cluster.address, "PYTHONUNBUFFERED": "1", **POLL}
    log = cwd / "log"
    driver = subprocess.Popen(
        [sys.executable, PLAIN, "2", shared],
        cwd=cwd,
        env={**os.environ, **environment},
        stdout=log.open("w"),
        stderr=-2,
    )
    try:

        def waiting():
            runs = layout.list_runs(cwd / layout.ROOT_NAME)
            record = load_run(runs[0]).record if runs else None
            if record is None or len(record.launcher.ports) < 2:
                return None
            ranks = channel.ask(record.launcher.socket, {"op": "status"})["ranks"]
            return record if all(rank["state"] == "waiting" for rank in ranks.values()) else None

        record = wait_for(waiting, 60, "two ranks that wait at breakpoint()")
        assert f"attach --rank 1 --run {record.id}" in log.read_text()
        for rank, port in record.launcher.ports.items():
            session = Session("127.0.0.1", port, f"rank {rank}")
            session.attach({}, timeout=20)
            assert session.wait_for_stop(20) is not None
            assert session.evaluate("rank", session.stack()[0]).value == rank
            session.disconnect()
        (shared / "go").touch()
        assert driver.wait(60) == 0, log.read_text()
    finally:
        driver.kill()
        driver.wait()
    run = load_run(layout.find_run(None, cwd / layout.ROOT_NAME))
    assert [rank.last_report.metrics["rank"] for rank in run.ranks] == [0, 1]
    assert verdict(run).state == "finished"
