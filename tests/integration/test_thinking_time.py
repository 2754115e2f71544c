"""A pause makes no other rank's wait time out, and after it the user's timeouts are in force again."""

from __future__ import annotations

import re
import time

from tests.conftest import TARGETS

WAITS = TARGETS / "waits.py"
LIMIT = 1.5  # seconds, of the process groups
THOUGHT = 2.2 * LIMIT  # how long a person looks at a paused rank
WAYS = ("collective", "gradients", "receive", "receive_later", "barrier", "make_group")


def test_no_way_of_waiting_for_a_paused_rank_times_out(launch):
    job = launch("--nproc-per-node", "2", WAITS, "pause", LIMIT)
    for way in WAYS:
        job.wait_state("waiting", (1,))
        time.sleep(THOUGHT)
        assert f"rank 0 did {way}" not in job.output
        session = job.session(1)
        assert session.wait_for_stop(20) is not None
        session.disconnect()
        job.wait_output(f"rank 1 did {way}")
    assert job.wait() == 0, job.output


def test_a_rank_that_is_really_missing_fails_every_wait_at_its_limit(launch):
    job = launch("--nproc-per-node", "2", WAITS, "missing", LIMIT)
    job.wait_state("dormant", (0, 1))
    job.session(1).disconnect()  # a debugger has been here
    assert job.wait() == 1
    took = dict(re.findall(r"(\w+) failed with RuntimeError after ([\d.]+) s", job.output))
    assert sorted(took) == sorted(WAYS), job.output
    for way, seconds in took.items():
        assert LIMIT <= float(seconds) < 2 * LIMIT, (way, job.output)


def test_a_rank_held_before_its_first_line_fails_nobody_in_init_process_group(launch):
    job = launch("--nproc-per-node", "2", "--wait", "1", WAITS, "init", LIMIT)
    job.wait_state("waiting", (1,))
    job.wait_state("dormant", (0,))
    time.sleep(THOUGHT + 1.0)  # and what importing torch takes
    job.session(1).disconnect()
    assert job.wait() == 0, job.output


def test_a_rank_that_never_comes_fails_init_process_group_at_its_limit(launch):
    job = launch("--nproc-per-node", "2", WAITS, "late", LIMIT)
    start = time.monotonic()
    assert job.wait() == 1
    assert time.monotonic() - start < 12 * LIMIT
    assert "making a process group has waited" in job.output
