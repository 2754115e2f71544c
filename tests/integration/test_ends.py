"""However a job ends, nothing of it is left, everybody is told, and the post-mortem says who was first."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys

import pexpect
import psutil
import pytest

from raytrain_debug.run import layout
from raytrain_debug.run.reader import load_run
from tests.conftest import TARGETS, free_base_port, wait_for
from tests.dap_vscode import DebugSession, VsCode

ENDS = TARGETS / "ends.py"


def vscode_session(job, rank):
    configuration = {"name": f"rank {rank}", "connect": {"host": "127.0.0.1", "port": job.base_port + rank}}
    session = DebugSession(VsCode(job.cwd), configuration, {})
    session.start()
    session.request("setExceptionBreakpoints", {"filters": []})
    return session


def postmortem(cwd):
    return json.loads(postmortem_text(cwd, "--json"))


def postmortem_text(cwd, *options):
    command = [sys.executable, "-m", "raytrain_debug", "postmortem", *options]
    return subprocess.run(command, cwd=cwd, capture_output=True, check=True, timeout=30, text=True).stdout


def assert_nothing_is_left(cwd, pids, base_port):
    wait_for(lambda: not any(map(psutil.pid_exists, pids)), 20, f"the end of {pids}")
    for rank in range(2):
        with socket.socket() as each:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            each.bind(("127.0.0.1", base_port + rank))
    run = layout.find_run(None, cwd / layout.ROOT_NAME)
    assert [each.name for each in layout.runtime_directory().iterdir() if each.name.startswith(run.id)] == []


# How rank 1 ends; what the verdict is; what its client is told.
FIRST = {
    "raise": ({"kind": "exception", "exception": "Planted: by rank 1"}, "rank 1 failed: Planted: by rank 1"),
    "exit": ({"kind": "exit", "exit_code": 3}, "rank 1 exited with code 3"),
    "message": ({"kind": "exit", "exit_code": 1}, "rank 1 exited with code 1"),
    "SIGKILL": ({"kind": "signal", "signal": "SIGKILL"}, "rank 1 was killed by SIGKILL"),  # as the kernel's OOM killer
    "SIGSEGV": ({"kind": "signal", "signal": "SIGSEGV"}, "rank 1 was killed by SIGSEGV"),
}


@pytest.mark.parametrize("how", FIRST)
def test_the_rank_that_ended_first_is_named_and_all_clients_are_told(launch, how):
    verdict, told = FIRST[how]
    job = launch("--nproc-per-node", "2", ENDS, how)
    job.wait_state("dormant", (0, 1))
    sessions = [vscode_session(job, rank) for rank in range(2)]
    (job.cwd / "go").touch()
    assert job.wait(30) == 1
    for session in sessions:
        session.wait_ended()
    assert told in sessions[1].console
    assert "rank 0 was ended by the launcher (SIGTERM) because the job ended" in sessions[0].console
    found = postmortem(job.cwd)["verdict"]["first_failure"]
    assert found["rank"] == 1
    assert {key: found[key] for key in verdict} == verdict
    assert_nothing_is_left(job.cwd, job._seen, job.base_port)


def test_a_rank_that_fails_in_consequence_is_not_the_first(launch):
    job = launch("--nproc-per-node", "2", ENDS, "raise", "gloo")
    job.wait_output("rank 0 ready")
    job.wait_output("rank 1 ready")
    (job.cwd / "go").touch()
    assert job.wait() == 1
    assert postmortem(job.cwd)["verdict"]["first_failure"]["rank"] == 1


def test_a_rank_that_leaves_early_with_0_is_named_beside_the_one_it_left_alone(launch):
    job = launch("--nproc-per-node", "2", ENDS, "early", "gloo")
    job.wait_output("rank 0 ready")
    job.wait_output("rank 1 ready")
    (job.cwd / "go").touch()
    assert job.wait() == 1
    assert postmortem(job.cwd)["verdict"]["first_failure"]["rank"] == 0
    assert "ank 1 had left with exit code 0" in postmortem_text(job.cwd)


@pytest.mark.parametrize("options", [("--nproc-per-node", "2"), ("--no-torchrun",)], ids=["torchrun", "single"])
@pytest.mark.parametrize("how", ["wait", "gil", "stubborn"])
def test_a_launcher_killed_by_9_takes_its_ranks_along(launch, options, how):
    job = launch(*options, ENDS, how)
    job.wait_output("rank 1 ready")
    job.wait_state("dormant", (0,))
    session = vscode_session(job, 0)
    (job.cwd / "go").touch()
    job.status()
    job.process.kill()
    session.wait_ended()
    wait_for(lambda: not any(map(psutil.pid_exists, job._seen)), 20, f"the end of {job._seen}")
    with socket.socket() as each:
        each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        each.bind(("127.0.0.1", job.base_port))
    assert postmortem(job.cwd)["verdict"]["first_failure"] is None
    # What is left of its sockets is nobody's, and goes when the next launch begins.
    again = launch("--no-torchrun", ENDS, "early", cwd=job.cwd)
    again.wait_output("ready")
    names = [each.name for each in layout.runtime_directory().iterdir()]
    assert not [name for name in names if name.startswith(job.run.paths.id) and again.run.paths.id not in name]
    assert again.wait() == 0


def test_sigterm_to_the_launcher_ends_the_job_and_says_so(launch):
    job = launch("--nproc-per-node", "2", ENDS, "wait")
    job.wait_state("dormant", (0, 1))
    session = vscode_session(job, 1)
    session.pause()
    session.wait_stopped()
    job.process.send_signal(signal.SIGTERM)
    assert job.wait(30) != 0
    session.wait_ended()
    assert "rank 1 was ended by the launcher (SIGTERM)" in session.console
    shown = postmortem(job.cwd)
    assert shown["verdict"]["first_failure"] is None
    assert shown["verdict"]["state"] == "stopped"
    assert_nothing_is_left(job.cwd, job._seen, job.base_port)


@pytest.mark.parametrize("options", [("--nproc-per-node", "2"), ("--no-torchrun",)], ids=["torchrun", "single"])
def test_ranks_that_save_their_work_at_sigterm_have_not_failed(launch, options):
    job = launch(*options, ENDS, "wait", "saves")
    job.wait_output("rank 1 ready")
    session = None if "--no-torchrun" in options else vscode_session(job, 1)
    job.process.send_signal(signal.SIGTERM)
    assert job.wait(30) != 0
    if session is not None:
        session.wait_ended()
        assert "rank 1 was ended by the launcher (it exited with code 7) because the job ended" in session.console
    shown = postmortem(job.cwd)
    assert (shown["verdict"]["state"], shown["verdict"]["first_failure"]) == ("stopped", None)
    assert {each["outcome"] for each in shown["ranks"]} == {"ended with the job"}


def test_a_rank_that_saves_its_work_because_another_one_failed_has_not_failed(launch):
    job = launch("--nproc-per-node", "2", ENDS, "raise", "saves")
    job.wait_output("rank 0 ready")
    job.wait_output("rank 1 ready")
    (job.cwd / "go").touch()
    assert job.wait(30) == 1
    shown = postmortem(job.cwd)
    assert shown["verdict"]["first_failure"]["rank"] == 1
    assert shown["ranks"][0]["outcome"] == "ended with the job"


class Shell:
    """An interactive shell in a terminal of its own."""

    def __init__(self, cwd):
        env = {**os.environ, "PS1": "$> ", "OMP_NUM_THREADS": "1"}
        command = ["--norc", "--noprofile", "--noediting"]
        self.bash = pexpect.spawn("bash", command, cwd=cwd, env=env, timeout=60, encoding="utf-8", dimensions=(50, 250))
        self.bash.expect_exact("$> ")

    def run(self, line):
        """What the terminal shows until the next prompt."""
        self.bash.sendline(line)
        self.bash.expect_exact("$> ")
        return self.bash.before.partition("\r\n")[2]

    def interrupt(self, line, until, times):
        """Run it, press Ctrl-C so often once it has printed `until`; the exit status."""
        self.bash.sendline(line)
        self.bash.expect(until)
        for _ in range(times):
            self.bash.sendintr()
        self.bash.expect_exact("$> ")
        return self.run("echo $?").strip()


@pytest.fixture
def shell(tmp_path):
    shell = Shell(tmp_path)
    yield shell
    shell.bash.close(force=True)


def ours(base_port, *options):
    return " ".join(
        [sys.executable, "-m", "raytrain_debug", "launch", "--base-port", str(base_port), *map(str, options)]
    )


@pytest.mark.parametrize("times", [1, 2], ids=["once", "twice"])
@pytest.mark.parametrize(
    ("options", "until"),
    [
        (("--nproc-per-node", "2", ENDS, "wait"), "rank 1 ready"),
        (("--nproc-per-node", "2", "--wait", "all", ENDS, "wait"), "rank 1 waits"),
        (("--no-torchrun", ENDS, "wait"), "rank 1 ready"),
        (("--no-torchrun", "--wait", "0", ENDS, "wait"), "rank 0 waits"),
    ],
    ids=["torchrun", "torchrun held", "single", "single held"],
)
def test_ctrl_c_ends_all_and_gives_the_terminal_back(shell, tmp_path, options, until, times):
    before, base_port = shell.run("stty -a"), free_base_port(2)
    status = shell.interrupt(ours(base_port, *options), until, times)
    assert status in ("1", "130")
    assert shell.run("stty -a") == before
    run = load_run(layout.find_run(None, tmp_path / layout.ROOT_NAME))
    assert_nothing_is_left(tmp_path, {end.pid for end in run.record.exits}, base_port)
    verdict = postmortem(tmp_path)["verdict"]
    assert (verdict["state"], verdict["first_failure"]) == ("stopped", None)


def test_ctrl_c_exits_with_the_status_that_torchrun_and_python_give(shell):
    for plain, options, until in (
        (f"torchrun --nproc-per-node 2 {ENDS} wait", ("--nproc-per-node", "2", ENDS, "wait"), "rank 1 ready"),
        (f"{sys.executable} {ENDS} wait", ("--no-torchrun", ENDS, "wait"), "rank 1 ready"),
    ):
        expected = shell.interrupt(plain, until, 1)
        assert shell.interrupt(ours(free_base_port(2), *options), until, 1) == expected
