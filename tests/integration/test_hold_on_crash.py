"""`launch --hold-on-crash`: a rank that raises waits for a debugger, and then dies as it would have."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest

from tests.conftest import REPOSITORY, TARGETS, Launch, wait_for
from tests.integration.test_lifecycle import interpreter

BREAKS = TARGETS / "one_breaks.py"
DYING = TARGETS / "dying.py"
RAISES = 16  # the line of one_breaks.py


def crashed(job: Launch, rank: int) -> None:
    job.wait_output(f"rank {rank} has crashed, and waits for a debugger at")
    job.wait_state("waiting", (rank,))


def ask(job: Launch, *command: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "raytrain_debug", *command], cwd=job.cwd, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_rank_that_raises_waits_at_its_exception_while_the_others_wait_without_timing_out(launch):
    job = launch("--nproc-per-node", "2", "--hold-on-crash", BREAKS, "0")
    crashed(job, 1)
    assert "ValueError: rank 1 breaks" in job.output
    began = time.monotonic()
    session = job.session(1)
    stop = session.wait_for_stop(20)
    assert stop is not None
    assert (stop.reason, stop.text, stop.description) == ("exception", "ValueError", "rank 1 breaks")
    frames = session.stack()
    assert [(frame.name, frame.line) for frame in frames][:2] == [("step", RAISES), ("main", 24)]
    assert session.evaluate("rate", frames[0]).value.startswith("0.3")
    assert session.evaluate("number, rank", frames[1]).value == "(3, 1)"
    time.sleep(max(0.0, began + 4 - time.monotonic()))  # twice the timeout of the group that rank 0 waits in
    assert job.status()[0]["state"] == "dormant"
    session.disconnect()
    assert job.wait(30) == 1
    ends = {rank.rank: rank.last_exit for rank in job.run.ranks}
    assert (ends[1].exit_code, ends[1].signal) == (1, None)
    assert job.run.rank(1).core.exception.message == "rank 1 breaks"
    assert job.output.count("ValueError: rank 1 breaks") == 1
    assert "rank 0 has crashed" not in job.output


def test_stacks_and_print_see_the_rank_where_it_raised(launch):
    job = launch("--no-torchrun", "--hold-on-crash", DYING, "raise")
    crashed(job, 0)
    (group,) = json.loads(ask(job, "stacks", "--json"))["groups"]
    assert group["waiting_in"] == "crash"
    assert [frame["function"] for frame in group["frames"]] == ["<module>", "main", "fail"]
    assert json.loads(ask(job, "print", "rest", "--json"))["groups"][0]["value"] == ["x", 0.5]
    session = job.session(0)
    assert session.wait_for_stop(20) is not None
    session.resume()
    assert job.wait(20) == 1


def test_nobody_comes_within_the_minutes_and_the_rank_dies(launch):
    job = launch("--no-torchrun", "--hold-on-crash", "0.02", DYING, "raise")
    crashed(job, 0)
    began = time.monotonic()
    assert job.wait(20) == 1
    assert time.monotonic() - began < 10
    assert "nobody came within 0.02 minutes" in job.output
    assert job.output.count("\nValueError: ") == 1


def test_a_debugger_that_is_there_already_is_stopped_at_the_exception_once(launch):
    job = launch("--no-torchrun", "--hold-on-crash", "--wait", "0", DYING, "raise")
    session = job.session(0)
    stop = session.wait_for_stop(30)
    assert stop is not None
    assert stop.reason == "exception"
    assert session.stack()[0].name == "fail"
    session.resume()
    assert job.wait(20) == 1
    assert "has crashed" not in job.output


def test_sys_exit_and_an_interrupt_are_not_held(launch):
    for how, code in (("exit", 3), ("interrupt", None)):
        job = launch("--no-torchrun", "--hold-on-crash", DYING, how)
        returned = job.wait(30)
        assert code is None or returned == code
        assert "has crashed" not in job.output


def test_stopping_the_job_ends_a_rank_that_is_held(launch):
    job = launch("--nproc-per-node", "2", "--hold-on-crash", BREAKS, "0")
    crashed(job, 1)
    job.process.terminate()
    job.wait(30)
    wait_for(lambda: all(rank.last_exit is not None for rank in job.run.ranks), 10, "all ranks ended")
    core = job.run.rank(1).core
    assert (core.reason, core.exception.message) == ("exception", "rank 1 breaks")
    assert job.run.rank(0).core.reason == "ended"


def test_without_the_option_nothing_is_held(launch):
    job = launch("--no-torchrun", DYING, "raise")
    assert job.wait(20) == 1
    assert "waits for a debugger" not in job.output


@pytest.mark.parametrize("version", ["3.10", "3.12", "3.13"])
def test_other_pythons_stop_at_the_exception_too_and_leave_their_core(launch, version):
    job = launch(
        "--no-torchrun",
        "--hold-on-crash",
        DYING,
        "raise",
        python=interpreter(version),
        env={"PYTHONPATH": str(REPOSITORY)},
    )
    crashed(job, 0)
    session = job.session(0)
    stop = session.wait_for_stop(20)
    assert stop is not None
    assert stop.reason == "exception"
    frames = session.stack()
    assert [frame.name for frame in frames][:3] == ["fail", "main", "<module>"]
    assert session.evaluate("rate", frames[0]).value == "0.5"
    session.disconnect()
    assert job.wait(20) == 1
    core = job.run.rank(0).core
    assert core.thread.frames[-1].locals["rest"].text == "['x', 0.5]"
    assert core.thread.frames[-1].locals["stuck"].text.endswith("whose repr takes too long>")
    assert not job.paths.errors.exists()
