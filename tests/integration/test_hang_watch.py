"""`launch --hang-after` on real jobs: hangs are told once with their cause, and what only looks like one is not."""

import json
import signal
import subprocess
import sys
import time

import pytest

from tests.conftest import TARGETS, wait_for

STUCK = TARGETS / "stuck.py"


def test_a_rank_that_returned_while_the_others_wait_is_told(launch):
    job = launch("--nproc-per-node", "3", "--hang-after", "1.5", STUCK, "exit")
    text = job.wait_output("will not take part in what the others wait for", 60)
    assert "ranks 0, 2 wait in new_group at" in text
    assert "rank 1 has returned (exit code 0)" in text
    record = json.loads(wait_for(lambda: job.paths.hang.exists() and job.paths.hang.read_text(), 10, "hang.json"))
    assert [group["ranks"] for group in record["groups"]] == [[0, 2]]
    assert record["verdict"].endswith("rank 1 has returned (exit code 0)")


def test_a_rank_that_does_not_answer_is_told(launch):
    job = launch("--nproc-per-node", "2", "--hang-after", "1.5", STUCK, "gil")
    job.wait_output("rank 1 gives no answer within 2 s: native code waits in it", 60)
    assert "rank 0 waits in all_reduce at" in job.output


def test_a_thread_that_ended_with_an_exception_is_told_while_the_job_hangs_and_afterwards(launch):
    job = launch("--nproc-per-node", "2", "--hang-after", "1.5", STUCK, "feeder")
    text = job.wait_output("look closer", 60)
    assert "rank 1 waits in queue get at" in text
    (record,) = job.run.rank(1).thread_exceptions
    place = f"{STUCK}:{record.exception.where.line} in feed"
    note = f"a thread of rank 1, 'loader', has ended with KeyError: 'nothing to load' at {place}"
    assert f"\n  {note}\n" in text
    assert note in json.loads(job.paths.hang.read_text())["notes"]

    def command(*arguments):
        line = [sys.executable, "-m", "raytrain_debug", *arguments]
        return subprocess.run(line, cwd=job.cwd, capture_output=True, text=True, timeout=60, check=True).stdout

    assert " ".join(command("stacks").split()).endswith(note)
    assert json.loads(command("stacks", "--json"))["notes"] == [note]
    assert json.loads(command("stacks", "--json", "--ranks", "0"))["notes"] == []

    job.process.send_signal(signal.SIGINT)
    job.wait()
    told = json.loads(command("postmortem", "--json"))
    assert (told["verdict"]["state"], told["verdict"]["first_failure"]) == ("stopped", None)
    assert note.replace("a thread", "A thread").replace("has ended", "had ended") + "." in told["verdict"]["summary"]
    assert [each["thread"] for each in told["ranks"][1]["thread_exceptions"]] == ["loader"]
    assert told["ranks"][0]["thread_exceptions"] == []


def test_a_breakpoint_is_no_hang_and_neither_is_a_job_that_works(launch):
    job = launch("--nproc-per-node", "2", "--hang-after", "0.5", STUCK, "breakpoint")
    job.wait_state("waiting", (1,))
    time.sleep(2)  # four times as long as a hang takes to be told
    session = job.session(1)
    assert session.wait_for_stop(20) is not None
    time.sleep(2)
    assert "no rank has moved" not in job.output
    session.disconnect()
    # From here on both ranks reduce for ever, always at the same two lines.
    time.sleep(2)
    assert job.process.poll() is None, job.output
    assert "no rank has moved" not in job.output


def test_ranks_that_report_differently_often_are_told(launch):
    job = launch("--nproc-per-node", "2", "--hang-after", "60", TARGETS / "reports.py", "3")
    assert job.wait() == 0, job.output
    assert "rank 0 has made 3 reports; rank 1 has made 0 reports: with num_workers > 0" in job.output
    assert "no rank has moved" not in job.output


@pytest.mark.parametrize("seconds", ["0", "-1", "nan"])
def test_no_time_to_wait_is_wrong_usage(launch, seconds):
    job = launch("--hang-after", seconds, STUCK, "none")
    assert job.wait() == 2
    assert "is no time to wait" in job.output
