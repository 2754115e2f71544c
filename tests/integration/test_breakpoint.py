"""`raytrain_debug.breakpoint()` and `breakpoint()` in the ranks of a real job, and without `launch`."""

import subprocess
import sys
import time

import pytest

from raytrain_debug.dap.session import Session
from tests.conftest import TARGETS, wait_for

SCRIPT = TARGETS / "breakpoints.py"
DONE = ["rank 0 done [1.0, 1.0]", "rank 1 done [1.0, 1.0]"]


def finished(job):
    assert job.wait() == 0, job.output
    assert all(line in job.output for line in DONE), job.output


def test_one_rank_stops_where_the_condition_holds_and_the_others_wait_without_timing_out(launch):
    job = launch("--nproc-per-node", "2", SCRIPT, "one-rank", "2")
    status = job.wait_state("waiting", (1,))
    assert status[0]["state"] == "dormant"
    assert status[1]["where"] == {"file": str(SCRIPT), "line": 15, "function": "visit"}
    assert "rank 1 waits for a debugger" in job.output
    assert "python -m raytrain_debug attach --rank 1" in job.output
    time.sleep(4)  # twice the process group's timeout, which rank 0 spends in the collective
    session = job.session(1)
    assert session.wait_for_stop(20) is not None
    frame = session.stack()[0]
    assert frame.name == "visit"
    assert session.evaluate("i, __rank__", frame).value == "(3, 1)"
    session.disconnect()
    finished(job)


def test_skip_and_times_count_the_hits(launch):
    job = launch("--nproc-per-node", "2", SCRIPT, "counted")
    job.wait_state("waiting", (1,))
    session = job.session(1)
    assert session.wait_for_stop(20) is not None
    assert session.evaluate("i", session.stack()[0]).value == "2"
    session.disconnect()
    finished(job)


def test_plain_breakpoint_stops_the_rank_that_calls_it(launch):
    job = launch("--nproc-per-node", "2", SCRIPT, "builtin")
    job.wait_state("waiting", (1,))
    session = job.session(1)
    assert session.wait_for_stop(20) is not None
    assert session.evaluate("i, __rank__", session.stack()[0]).value == "(3, 1)"
    session.disconnect()
    finished(job)


@pytest.mark.parametrize(
    ("kind", "env"),
    [("one-rank", {"RAYTRAIN_DEBUG": "0"}), ("builtin", {"RAYTRAIN_DEBUG": "0", "PYTHONBREAKPOINT": "0"}),
     ("builtin", {"PYTHONBREAKPOINT": "0"})],
)  # fmt: skip
def test_switched_off_breakpoints_do_nothing(launch, kind, env):
    job = launch("--nproc-per-node", "2", SCRIPT, kind, env=env)
    finished(job)
    assert "waits for a debugger" not in job.output


def test_an_already_attached_debugger_stops_at_once(launch):
    job = launch("--nproc-per-node", "2", "--wait", "1", SCRIPT, "one-rank")
    session = job.session(1)
    assert session.wait_for_stop(30) is not None
    assert session.stack()[0].name == "visit"
    session.disconnect()
    finished(job)


ALONE = """
import raytrain_debug

def work(n):
    total = 0
    for i in range(n):
        raytrain_debug.breakpoint(rank=0, when=i == 3)
        total += i
    return total

print("total", work(6))
"""


def test_without_launch_the_process_hosts_its_own_debugger(tmp_path):
    (tmp_path / "alone.py").write_text(ALONE)
    process = subprocess.Popen(
        [sys.executable, "alone.py"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        said = [process.stderr.readline() for _ in range(3)]
        assert "rank 0 waits for a debugger at alone.py:7 in work" in said[0]
        port = int(said[2].rpartition(":")[2])
        session = Session("127.0.0.1", port, "rank 0")
        session.attach(timeout=20)
        assert session.wait_for_stop(20) is not None
        assert session.evaluate("i", session.stack()[0]).value == "3"
        session.disconnect()
        out, err = process.communicate(timeout=20)
        assert process.returncode == 0, err
        assert out == "total 15\n"
        assert err == "", "nothing more is said at the end"
    finally:
        process.kill()
    listed = subprocess.run(
        [sys.executable, "-m", "raytrain_debug", "runs"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert "alone.py" in listed.stdout


def test_without_launch_attach_finds_the_run(tmp_path):
    (tmp_path / "alone.py").write_text(ALONE)
    process = subprocess.Popen([sys.executable, "alone.py"], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    try:
        wait_for(lambda: "waits" in process.stderr.readline(), 20, "the announcement")
        attach = [sys.executable, "-m", "raytrain_debug", "attach", "--rank", "0", "-c", "p i, total"]
        done = subprocess.run(attach, cwd=tmp_path, capture_output=True, text=True, timeout=30, check=False)
        assert (done.returncode, done.stdout.strip()) == (0, "(3, 3)"), done.stderr
        assert process.wait(20) == 0
    finally:
        process.kill()
