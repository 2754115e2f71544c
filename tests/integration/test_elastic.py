"""Elastic restarts: each attempt has its records, its failure and its debug sessions, and a world that changes size."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys

from raytrain_debug.errors import RankEnded
from raytrain_debug.postmortem.verdict import verdict
from tests.conftest import TARGETS, free_base_port, wait_for
from tests.dap_vscode import DebugSession, VsCode

ELASTIC, MEMBERSHIP = TARGETS / "elastic.py", TARGETS / "membership.py"


def breakpoint_line(target):
    lines = target.read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith("# a breakpoint goes here"))


def vscode_session(job, rank, target):
    configuration = {"name": f"rank {rank}", "connect": {"host": "127.0.0.1", "port": job.base_port + rank}}
    return DebugSession(VsCode(job.cwd), configuration, {str(target): [breakpoint_line(target)]})


def test_a_client_follows_its_rank_through_three_attempts_whose_ends_are_kept_apart(launch):
    job = launch("--nproc-per-node", "2", "--max-restarts", "2", ELASTIC)
    job.wait_state("dormant", (0, 1))
    session = vscode_session(job, 1, ELASTIC)
    session.start()
    for attempt in range(3):
        session.wait_attached_again(attempt + 1)
        session.wait_stopped()
        assert session.evaluate("attempt") == str(attempt)
        assert {rank["attempt"] for rank in job.status().values()} == {attempt}
        (job.cwd / f"go-{attempt}").touch()
        with contextlib.suppress(RankEnded if attempt == 1 else ()):  # rank 0, killed now, may take it along at once
            session.continue_()
        if attempt == 0:
            assert session.wait_stopped().reason == "exception"  # VS Code stops at those that nobody catches
            session.continue_()
    session.wait_ended()
    assert job.wait() == 0, job.output
    assert "rank 1 failed: RuntimeError: planted in the first attempt" in session.console
    assert "rank 1 was ended by the launcher" in session.console
    assert "rank 1 finished" in session.console

    run = job.run
    judged = verdict(run)
    assert (judged.state, judged.attempt) == ("finished", 2)
    first, second = judged.earlier
    assert (first.rank, first.exception) == (1, "RuntimeError: planted in the first attempt")
    assert (second.rank, second.signal) == (0, "SIGKILL")
    assert [end.attempt for end in run.rank(1).exits] == [0, 1, 2]
    assert run.rank(1).core_of(0).exception.message == "planted in the first attempt"
    assert run.record.attempt == 2


def test_reports_of_all_attempts_are_kept_apart_in_one_numbering(launch):
    job = launch("--nproc-per-node", "1", "--max-restarts", "1", ELASTIC, "ray")
    job.wait_state("dormant")
    for attempt in range(2):
        wait_for(lambda attempt=attempt: job.run.rank(0) and job.run.rank(0).report_count == 2 * attempt + 2, 60)
        (job.cwd / f"go-{attempt}").touch()
        if attempt == 0:
            os.kill(job.status()[0]["pid"], signal.SIGKILL)
    assert job.wait() == 1  # the second attempt kills itself, and there is no third
    reports = job.run.rank(0).reports
    assert [(report.index, report.attempt) for report in reports] == [(0, 0), (1, 0), (2, 1), (3, 1)]
    shown = json.loads(postmortem(job))
    assert shown["verdict"]["attempt"] == 1


def postmortem(job):
    command = [sys.executable, "-m", "raytrain_debug", "postmortem", "--json"]
    return subprocess.run(command, cwd=job.cwd, capture_output=True, text=True, check=True, timeout=30).stdout


def test_a_node_that_joins_changes_the_world_and_makes_a_new_attempt(launch, tmp_path):
    base = free_base_port(5)
    conf = "last_call_timeout=1,join_timeout=60"
    options = ["--nnodes", "1:2", "--nproc-per-node", "1", "--rdzv-backend", "c10d", "--rdzv-id", "grows"]
    options += ["--rdzv-endpoint", f"127.0.0.1:{base + 4}", "--rdzv-conf", conf, "--monitor-interval", "0.1"]
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    # torch 2.13 hangs here without that: the node that was first does not tell the one that joins where its store is.
    env = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    first = launch(*options, MEMBERSHIP, cwd=tmp_path / "a", base_port=base, env=env)
    first.wait_output("rank 0 of 1")
    session = vscode_session(first, 0, MEMBERSHIP)
    session.start()
    assert session.wait_stopped().locals
    session.continue_()
    second = launch(*options, MEMBERSHIP, cwd=tmp_path / "b", base_port=base, env=env)
    first.wait_output("rank 0 of 2")
    second.wait_output("rank 1 of 2")
    session.wait_attached_again(2)
    session.wait_stopped()
    assert "WORLD_SIZE" in session.evaluate("os.environ['WORLD_SIZE'] == '2' and 'WORLD_SIZE'")
    session.disconnect()
    assert first.run.record.world_size == 2
    assert first.run.record.attempt == second.run.record.attempt == 1
    known = {"0": base, "1": base + 1}  # the launchers meet when the new attempt runs
    wait_for(lambda: first.run.record.launcher.ports == second.run.record.launcher.ports == known, 20, "all ports")
    for job in (first, second):
        (job.cwd / "stop").touch()
    assert first.wait() == second.wait() == 0, first.output + second.output
    judged = verdict(first.run)
    assert (judged.state, judged.attempt, judged.earlier) == ("finished", 1, ())
