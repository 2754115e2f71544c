"""What real ranks leave when they die: of exceptions, of signals, and because another rank failed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from raytrain_debug import load_run
from raytrain_debug.postmortem.findings import examine
from raytrain_debug.postmortem.summary import paragraph
from raytrain_debug.postmortem.verdict import verdict
from raytrain_debug.run.reader import Rank
from raytrain_debug.run.records import CoreRecord, FrameRecord, ThreadRecord
from tests.conftest import TARGETS, wait_for

DYING = TARGETS / "dying.py"
CORES = TARGETS / "cores.py"


def frame_of(thread: ThreadRecord | None, function: str) -> FrameRecord:
    assert thread is not None
    return next(frame for frame in thread.frames if frame.function == function)


def core_of(rank: Rank | None) -> CoreRecord:
    assert rank is not None
    assert rank.core is not None
    return rank.core


def single(launch, *arguments: str, env: dict[str, str] | None = None):
    """A job of one process that has ended."""
    job = launch("--no-torchrun", DYING, *arguments, env=env)
    job.code = job.wait(60)
    return job


def plain(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """The same under plain python."""
    return subprocess.run(
        [sys.executable, DYING, *arguments], capture_output=True, text=True, env={**os.environ, **(env or {})}
    )


def own_output(text: str) -> str:
    """What the job printed, without the launcher's lines."""
    return "\n".join(line for line in text.splitlines() if not line.startswith("raytrain_debug:"))


def test_when_one_rank_fails_all_leave_their_frames_also_from_inside_a_collective(launch):
    job = launch("--nproc-per-node", "4", "--log-dir", "logs", "--redirects", "3", CORES)
    assert job.wait() == 1
    failed, asleep, waiting, computing = (core_of(job.run.rank(rank)) for rank in (1, 0, 2, 3))
    assert (failed.reason, failed.exception.message) == ("exception", "rank 1 breaks")
    assert frame_of(failed.thread, "work").locals["mine"].items["'rank'"].value == 1
    for rank, core in ((0, asleep), (2, waiting), (3, computing)):
        assert (core.reason, core.exception) == ("ended", None)
        assert frame_of(core.thread, "work").locals["mine"].items["'rank'"].value == rank
        assert "my helper" in [thread.name for thread in core.threads]
        assert core.seconds < 5
    assert waiting.waiting_in == "all_reduce"
    total = frame_of(waiting.thread, "work").locals["total"].tensor
    assert total is not None
    assert total.shape == (3,)
    frame = next(frame for frame in load_run(job.paths.directory).ranks[2].core.frames if frame.function == "work")
    assert frame.locals["mine"]["values"].tolist() == [2.0, 2.0, 2.0]
    assert [exit.caused for rank in (0, 2, 3) for exit in job.run.rank(rank).exits] == [True] * 3
    # torchrun's own account is what it would be without us.
    (error_file,) = (job.cwd / "logs").rglob("1/error.json")
    told = json.loads(error_file.read_text())["message"]
    assert told["message"] == "RuntimeError: rank 1 breaks"
    assert "raytrain_debug" not in told["extraInfo"]["py_callstack"]


def test_an_exception_leaves_its_core_and_the_output_and_exit_code_of_python(launch):
    job = single(launch, "raise")
    here = plain("raise")
    assert job.code == here.returncode == 1
    assert own_output(job.output) == own_output(here.stderr)
    core = core_of(job.run.rank(0))
    frame = frame_of(core.thread, "fail")
    assert frame.locals["rate"].value == 0.5
    assert frame.locals["stuck"].text == "<Stuck object, whose repr takes too long>"
    assert [each.function for each in core.thread.frames] == ["<module>", "main", "fail"]
    assert core.seconds < 5


def test_a_segmentation_fault_leaves_its_stack_and_says_no_more_than_python(launch):
    job = single(launch, "segfault")
    here = plain("segfault")
    assert job.code == here.returncode == -signal.SIGSEGV
    assert own_output(job.output) == own_output(here.stdout + here.stderr) == "faulthandler False"
    core = core_of(job.run.rank(0))
    assert (core.reason, core.exception) == ("signal", None)
    assert "Segmentation fault" in core.notes[0]
    assert [each.function for each in core.thread.frames][:3] == ["<module>", "main", "crash"]


def test_a_faulthandler_that_the_user_wants_stays_theirs(launch):
    env = {"PYTHONFAULTHANDLER": "1"}
    job = single(launch, "segfault", env=env)
    assert "faulthandler True" in job.output
    assert "Fatal Python error: Segmentation fault" in job.output
    assert job.run.rank(0).core is None


def test_sys_exit_is_no_crash_and_its_place_is_told(launch):
    job = single(launch, "exit")
    assert job.code == 3
    assert "Traceback" not in job.output
    found = verdict(job.run)
    assert found.outcomes == {0: "exit 3"}
    assert "Rank 0 called sys.exit(3) at " in found.sentence
    assert core_of(job.run.rank(0)).thread.frames[-1].function == "main"


def test_an_interrupt_is_recorded_as_one(launch):
    job = single(launch, "interrupt")
    assert job.code == plain("interrupt").returncode
    assert core_of(job.run.rank(0)).exception.type == "KeyboardInterrupt"


def test_an_exception_that_ends_a_thread_is_recorded_and_the_rank_goes_on(launch):
    job = single(launch, "thread")
    assert job.code == 0
    assert "RuntimeError: gave up after 3" in job.output
    assert "done" in job.output
    rank = job.run.rank(0)
    assert rank.core is None
    (record,) = rank.thread_exceptions
    assert (record.thread, record.report, record.exception.message) == ("my helper", 0, "gave up after 3")
    assert record.exception.frames[-1].locals["tries"].value == 3
    found = examine(job.run)
    assert (found.verdict.state, found.verdict.first_failure, found.verdict.outcomes) == (
        "finished",
        None,
        {0: "finished"},
    )
    place = f"{DYING}:{record.exception.where.line} in helper"
    assert f"A thread of rank 0, 'my helper', had ended with RuntimeError: gave up after 3 at {place}." in paragraph(
        found
    )


def test_an_exception_in_a_thread_of_the_debugger_is_not_the_users(launch):
    job = single(launch, "hidden thread")
    assert job.code == 0
    assert "RuntimeError: gave up after 3" in job.output
    assert job.run.rank(0).thread_exceptions == ()


@pytest.mark.parametrize("how", [["fork"], ["fork", "crash"]])
def test_a_child_that_a_rank_has_forked_leaves_nothing_in_its_name(launch, how):
    job = single(launch, *how)
    assert job.code == 0
    assert f"child ended with {1 if len(how) == 1 else -signal.SIGSEGV}" in job.output
    assert job.run.rank(0).core is None


def test_a_job_that_is_stopped_leaves_what_its_ranks_did(launch):
    job = launch("--no-torchrun", DYING, "sleep")
    job.wait_output("sleeping")
    began = time.monotonic()
    job.process.send_signal(signal.SIGTERM)
    job.wait(20)
    assert time.monotonic() - began < 5
    core = core_of(job.run.rank(0))
    assert core.reason == "ended"
    assert frame_of(core.thread, "main").locals["seconds"].value == 60


def test_a_rank_killed_with_9_leaves_no_core_and_nothing_waits_for_one(launch):
    job = launch("--no-torchrun", DYING, "sleep")
    job.wait_output("sleeping")
    pid = wait_for(lambda: job.status().get(0, {}).get("pid"))
    os.kill(pid, signal.SIGKILL)
    job.wait(20)
    assert job.run.rank(0).core is None
