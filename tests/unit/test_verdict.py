"""Who failed first: what the launcher saw decides, and what the ranks left where it saw nothing."""

import dataclasses
import os

import psutil
import pytest

from raytrain_debug.cli import console
from raytrain_debug.launcher import ray_job
from raytrain_debug.launcher.job import Job
from raytrain_debug.postmortem.findings import examine
from raytrain_debug.postmortem.liveness import Liveness, liveness
from raytrain_debug.postmortem.overview import overview
from raytrain_debug.postmortem.status import gather
from raytrain_debug.postmortem.verdict import verdict
from raytrain_debug.render.postmortem import render
from raytrain_debug.run.reader import Run
from raytrain_debug.run.records import CallSite, FrameRecord
from tests.unit.made_runs import GONE, SITE, START, MadeRun, exception


@pytest.fixture
def made(tmp_path):
    run = MadeRun(tmp_path / "runs", world_size=4)
    for rank in range(4):
        run.started(rank, pid=GONE + rank)
    return run


def test_the_first_death_of_its_own_is_the_failure_not_those_it_caused(made):
    made.ended(0, None, "SIGTERM", caused=True, pid=GONE)
    made.ended(2, 1, pid=GONE + 2)
    made.ended(1, 1, pid=GONE + 1)
    made.ended(3, None, "SIGTERM", caused=True, pid=GONE + 3)
    made.died(1, exception("connection closed by peer", "RuntimeError"), pid=GONE + 1, time=0.1)
    made.died(2, exception(), pid=GONE + 2, time=5.0)  # a clock that is off must not matter
    found = verdict(made.write(exit_code=1))
    first = found.first_failure
    assert (first.rank, first.kind, first.exception, first.exit_code) == (2, "exception", "ValueError: loss is nan", 1)
    assert first.where == SITE
    assert found.outcomes == {0: "ended with the job", 1: "exception", 2: "exception", 3: "ended with the job"}
    assert found.state == "failed"
    assert "Rank 2 failed first with ValueError: loss is nan at train.py:88 in train_func" in found.sentence
    assert "Ranks 0,3 were ended by the launcher in consequence." in found.sentence


def test_the_rank_that_raised_first_is_the_failure_though_it_died_last(made):
    """It unwinds and dumps its core while those whose connection to it breaks are gone at once."""
    made.died(1, exception("Connection closed by peer", "RuntimeError"), pid=GONE + 1, time=0.2)
    made.died(2, exception(), pid=GONE + 2, time=-0.4)
    made.ended(0, 0, pid=GONE)
    made.ended(1, 1, pid=GONE + 1)
    made.ended(2, 1, pid=GONE + 2)
    found = verdict(made.write(exit_code=1))
    assert (found.first_failure.rank, found.first_failure.exception) == (2, "ValueError: loss is nan")
    assert found.outcomes == {0: "finished", 1: "exception", 2: "exception", 3: "lost"}
    assert "Rank 0 had left" not in found.sentence


def test_what_ray_train_refuses_is_told_with_what_to_do(made):
    refusal = "Ray Data is not supported in local mode with multiple workers."
    made.died(2, exception(refusal, "AssertionError"), pid=GONE + 2)
    made.ended(2, 1, pid=GONE + 2)
    found = verdict(made.write(exit_code=1))
    assert "launch --no-torchrun SCRIPT" in found.first_failure.remedy
    assert f"AssertionError: {refusal}" in found.sentence
    assert f"{found.first_failure.remedy}." in found.sentence


def test_a_rank_that_was_ended_while_it_unwound_has_still_raised_first(made):
    made.died(2, exception(), pid=GONE + 2, time=-1.0)
    made.ended(1, 1, pid=GONE + 1)
    made.ended(2, None, "SIGTERM", caused=True, pid=GONE + 2)
    found = verdict(made.write(exit_code=1))
    assert (found.first_failure.rank, found.first_failure.kind, found.first_failure.signal) == (2, "exception", None)
    assert found.outcomes[2] == "exception"


def test_breaking_connections_while_unwinding_does_not_blame_the_ranks_that_lose_them(made):
    """`finally: destroy_process_group()` lets the others record their exception a moment before its own."""
    made.died(
        1, exception("gloo/transport/tcp/pair.cc:547: Connection closed by peer", "RuntimeError"), GONE + 1, time=0.0
    )
    made.died(3, exception("bad batch"), pid=GONE + 3, time=0.3)
    made.ended(1, 1, pid=GONE + 1)
    made.ended(3, 1, pid=GONE + 3)
    assert verdict(made.write(exit_code=1)).first_failure.exception == "ValueError: bad batch"


def test_a_lost_connection_alone_is_the_failure(made):
    made.died(1, exception("Connection reset by peer", "RuntimeError"), pid=GONE + 1)
    made.ended(1, 1, pid=GONE + 1)
    assert verdict(made.write(exit_code=1)).first_failure.rank == 1


def test_a_kill_that_was_noticed_late_comes_before_the_exceptions_it_caused(made):
    made.died(1, exception("peer is gone", "RuntimeError"), pid=GONE + 1, time=-0.2)
    made.ended(3, None, "SIGKILL", pid=GONE + 3)
    made.ended(1, 1, pid=GONE + 1)
    assert verdict(made.write(exit_code=1)).first_failure.signal == "SIGKILL"


def test_an_exception_long_before_a_kill_is_the_failure(made):
    made.died(1, exception(), pid=GONE + 1, time=-3.0)
    made.ended(3, None, "SIGABRT", pid=GONE + 3)
    made.ended(1, 1, pid=GONE + 1)
    assert verdict(made.write(exit_code=1)).first_failure.rank == 1


def test_a_core_of_an_earlier_attempt_does_not_date_a_later_death(made):
    made.died(1, exception("old"), pid=GONE + 1, attempt=0, time=-5.0)
    made.ended(1, 1, attempt=0, pid=GONE + 1)
    made.ended(2, None, "SIGKILL", attempt=1, pid=GONE + 12)
    made.ended(1, 1, attempt=1, pid=GONE + 11)
    found = verdict(made.write(exit_code=1, attempt=1))
    assert (found.first_failure.rank, found.first_failure.signal) == (2, "SIGKILL")
    assert [each.exception for each in found.earlier] == ["ValueError: old"]


def test_what_is_raised_while_a_job_is_stopped_is_no_failure(made):
    made.died(0, exception("", "KeyboardInterrupt"), pid=GONE, time=-0.1)
    made.died(1, exception("Connection closed by peer", "RuntimeError"), pid=GONE + 1, time=0.1)
    made.died(3, exception("queue is closed", "OSError"), pid=GONE + 3, time=0.1)
    made.ended(0, None, "SIGINT", caused=True, pid=GONE)
    made.ended(1, 1, pid=GONE + 1)
    for rank in (2, 3):
        made.ended(rank, None, "SIGTERM", caused=True, pid=GONE + rank)
    found = verdict(made.write(exit_code=1, stopped="SIGINT"))
    assert (found.state, found.first_failure) == ("stopped", None)
    assert found.outcomes[0] == "ended with the job"


def test_what_was_raised_long_before_a_job_was_stopped_is_its_failure(made):
    """A rank that hangs in its shutdown until somebody presses Ctrl-C."""
    made.died(1, exception(), pid=GONE + 1, time=-600.0)
    for rank in range(4):
        made.ended(rank, None, "SIGTERM", caused=True, pid=GONE + rank)
    found = verdict(made.write(exit_code=1, stopped="SIGINT"))
    assert (found.state, found.first_failure.rank) == ("failed", 1)


def test_a_killed_rank_is_told_by_its_signal(made):
    made.reported(3, 6)
    made.ended(3, None, "SIGKILL", pid=GONE + 3)
    for rank in range(3):
        made.ended(rank, None, "SIGTERM", caused=True, pid=GONE + rank)
    found = verdict(made.write(exit_code=1))
    assert (found.first_failure.rank, found.first_failure.kind) == (3, "signal")
    assert (found.first_failure.signal, found.first_failure.exit_code) == ("SIGKILL", None)
    assert found.outcomes[3] == "SIGKILL"
    assert "out-of-memory killer" in found.sentence
    assert "after 7 reports" in found.sentence


def test_an_exit_code_without_an_exception_is_an_exit(made):
    made.ended(1, 3, pid=GONE + 1)
    found = verdict(made.write(exit_code=1))
    assert (found.first_failure.kind, found.first_failure.exit_code) == ("exit", 3)
    assert found.outcomes[1] == "exit 3"
    assert "Rank 1 exited first with code 3, before its first report." in found.sentence


def test_a_core_of_another_process_does_not_explain_an_exit(made):
    made.died(1, exception(), pid=GONE + 77)
    made.ended(1, 1, pid=GONE + 1)
    found = verdict(made.write(exit_code=1))
    assert (found.first_failure.kind, found.first_failure.exception) == ("exit", None)


def test_a_rank_that_left_early_with_0_is_no_failure_but_is_told(made):
    made.ended(2, 0, pid=GONE + 2)
    made.ended(0, None, "SIGABRT", pid=GONE)
    for rank in (1, 3):
        made.ended(rank, None, "SIGTERM", caused=True, pid=GONE + rank)
    found = verdict(made.write(exit_code=1))
    assert found.first_failure.rank == 0
    assert found.outcomes[2] == "finished"
    assert "Rank 2 had left with exit code 0 before that, while the others were still at work." in found.sentence


def test_all_well(made):
    for rank in range(4):
        made.ended(rank, 0, pid=GONE + rank)
    found = verdict(made.write())
    assert (found.state, found.first_failure, found.sentence) == ("finished", None, "All 4 ranks finished.")


def test_a_stopped_job_has_no_failure(made):
    for rank in range(4):
        made.ended(rank, None, "SIGTERM", caused=True, pid=GONE + rank)
    found = verdict(made.write(exit_code=1, stopped="SIGINT"))
    assert (found.state, found.first_failure) == ("stopped", None)
    assert "stopped (SIGINT)" in found.sentence


def test_a_failure_before_the_stop_is_still_the_verdict(made):
    made.ended(1, None, "SIGSEGV", pid=GONE + 1)
    for rank in (0, 2, 3):
        made.ended(rank, None, "SIGTERM", caused=True, pid=GONE + rank)
    found = verdict(made.write(exit_code=1, stopped="SIGINT"))
    assert (found.state, found.first_failure.signal) == ("failed", "SIGSEGV")


def test_the_last_attempt_decides_and_earlier_ones_are_told(made):
    made.ended(1, None, "SIGKILL", attempt=0, pid=GONE + 1)
    made.ended(0, None, "SIGTERM", caused=True, attempt=0)
    for rank in range(4):
        made.started(rank, pid=GONE + 10 + rank, attempt=1)
        made.ended(rank, 0, attempt=1, pid=GONE + 10 + rank)
    found = verdict(made.write(attempt=1))
    assert (found.state, found.attempt, found.first_failure) == ("finished", 1, None)
    assert [(each.rank, each.signal, each.attempt) for each in found.earlier] == [(1, "SIGKILL", 0)]
    assert set(found.outcomes.values()) == {"finished"}
    assert "Attempt 0 before: rank 1 was killed first by SIGKILL" in found.sentence


def test_a_rank_of_a_new_attempt_is_not_judged_by_its_old_end(made):
    made.ended(1, 1, attempt=0, pid=GONE + 1)
    made.started(1, pid=GONE + 11, attempt=1)
    found = verdict(made.write(ended=False, attempt=1), Liveness(True, frozenset({0, 1, 2, 3})))
    assert (found.state, found.first_failure, found.outcomes[1]) == ("running", None, "running")
    assert "running, in attempt 1" in found.sentence
    assert "Attempt 0 before" in found.sentence


def test_without_a_launcher_the_earliest_core_decides(made):
    made.died(3, exception("second"), pid=GONE + 3, time=0.2)
    made.died(1, exception("first"), pid=GONE + 1, time=0.1)
    found = verdict(made.write(ended=False))
    assert (found.first_failure.rank, found.first_failure.exception) == (1, "ValueError: first")
    assert found.outcomes == {0: "lost", 1: "exception", 2: "lost", 3: "exception"}
    assert found.state == "failed"


def test_everything_gone_without_a_trace_is_lost(made):
    found = verdict(made.write(ended=False))
    assert (found.state, found.first_failure, set(found.outcomes.values())) == ("lost", None, {"lost"})
    assert "nobody left to tell how" in found.sentence


def test_ranks_that_outlive_their_launcher_are_told(made):
    found = verdict(made.write(ended=False), Liveness(False, frozenset({0, 2})))
    assert (found.state, found.outcomes[0], found.outcomes[1]) == ("running", "running", "lost")
    assert "Its launcher is gone, but ranks 0,2 live on." in found.sentence


def test_a_live_run_says_that_it_runs(made):
    made.ended(1, 0, pid=GONE + 1)
    found = verdict(made.write(ended=False), Liveness(True, frozenset({0, 2, 3})))
    assert (found.state, found.first_failure) == ("running", None)
    assert found.sentence == "The run is running. Rank 1 finished."


def test_a_launcher_that_failed_before_any_rank(tmp_path):
    found = verdict(MadeRun(tmp_path / "runs").write(exit_code=1))
    assert (found.state, found.first_failure) == ("failed", None)
    assert set(found.outcomes.values()) <= {"not started"}
    assert "exit code 1" in found.sentence


def test_nothing_at_all_is_still_a_verdict(tmp_path):
    made = MadeRun(tmp_path / "runs")
    found = verdict(Run(made.paths, None, ()))
    assert (found.state, found.first_failure, found.outcomes) == ("lost", None, {})
    assert "Nothing is recorded" in found.sentence


def test_a_death_that_nobody_could_tell_is_not_called_clean(made):
    made.ended(1, None, None, pid=GONE + 1)
    found = verdict(made.write(exit_code=1))
    assert found.outcomes[1] == "lost"
    assert "nobody knows how" in found.sentence


def test_one_process_alone_is_not_called_first(tmp_path):
    made = MadeRun(tmp_path / "runs", world_size=1, mode="single")
    made.started(0)
    made.died(0, exception(""))
    made.ended(0, 1)
    run = made.write(exit_code=1)
    run = Run(run.paths, run.record, run.ranks[:1])
    assert verdict(run).sentence == (
        "Rank 0 failed with ValueError at train.py:88 in train_func, before its first report."
    )


@pytest.fixture
def script(tmp_path):
    """A plain script that calls `enable()`: nobody sees its end but itself."""
    made = MadeRun(tmp_path / "runs", world_size=1, mode="script")
    made.started(0)
    return made


def alone(run: Run) -> Run:
    return Run(run.paths, run.record, run.ranks[:1])


def test_a_script_without_a_launcher_that_told_its_own_end_has_finished(script):
    run = alone(script.write(exit_code=None))
    found = verdict(run, liveness(run))
    assert (found.state, found.outcomes, found.sentence) == ("finished", {0: "finished"}, "The rank finished.")
    assert [rank.state for rank in gather(run).ranks] == ["finished"]


def test_a_script_without_a_launcher_that_did_not_tell_its_end_is_lost(script):
    assert verdict(alone(script.write(ended=False))).state == "lost"


def test_what_a_script_without_a_launcher_raised_is_its_failure(script):
    script.died(0, exception())
    found = verdict(alone(script.write(exit_code=1)))
    assert (found.state, found.outcomes) == ("failed", {0: "exception"})


def test_a_run_recorded_in_a_test_is_over_though_the_process_lives(script):
    script.started(0, os.getpid(), create_time=psutil.Process().create_time())
    script.reported(0)
    running = script.write(ended=False, in_test=True)
    assert verdict(running, liveness(running)).sentence == "The run is running."
    run = script.write(exit_code=None, in_test=True)
    found = verdict(run, liveness(run))
    assert (found.state, found.outcomes) == ("finished", {0: "finished"})
    assert found.sentence == "It was recorded in a test, which is over."


def test_ctrl_c_in_python_code_stops_a_run_and_is_no_failure(made):
    made.died(0, exception("", "KeyboardInterrupt"), pid=GONE, time=-3.0)
    made.died(2, exception("stopping", "RuntimeError"), pid=GONE + 2, time=-3.0)
    interrupted = dataclasses.replace(exception("no reply", "RuntimeError"), context=exception("", "KeyboardInterrupt"))
    made.died(3, interrupted, pid=GONE + 3, time=-3.0)
    made.ended(0, 1, pid=GONE)
    made.ended(1, 130, pid=GONE + 1)
    made.ended(3, 1, pid=GONE + 3)
    of_its_own = verdict(made.write(exit_code=1, stopped="SIGINT"))
    assert (of_its_own.state, of_its_own.first_failure.rank) == ("failed", 2)
    made.died(2, exception("", "KeyboardInterrupt"), pid=GONE + 2, time=-3.0)
    made.ended(2, 1, pid=GONE + 2)
    run = made.write(exit_code=1, stopped="SIGINT")
    found = verdict(run)
    assert (found.state, found.first_failure) == ("stopped", None)
    assert found.sentence == (
        "The run was stopped (SIGINT) before it ended by itself; no rank had failed. Ranks 0-3 were ended by that."
    )
    assert {rank.state for rank in gather(run).ranks} == {"stopped"}
    assert overview(run.paths).state == "stopped"


def test_what_the_others_did_when_they_were_ended_is_told(made):
    made.died(1, exception(), pid=GONE + 1)
    made.ended(1, 1, pid=GONE + 1)
    step = FrameRecord("/home/me/project/die.py", 26, "step")
    made.stood(0, step, FrameRecord("/site/torch/distributed.py", 9, "recv", origin="framework"), waiting_in="recv")
    made.stood(2, FrameRecord("/home/me/project/die.py", 40, "<module>"), dataclasses.replace(step, line=27))
    made.stood(3, step, waiting_in="recv")
    told = verdict(made.write(exit_code=1)).sentence
    assert "Ranks 0,3 were ended by the launcher in consequence, while they waited in recv at die.py:26." in told
    assert "Rank 2 was ended by the launcher in consequence, while it was in step at die.py:27." in told


def test_what_a_core_does_not_know_of_the_others_is_not_told(made):
    made.died(1, exception(), pid=GONE + 1)
    made.ended(1, 1, pid=GONE + 1)
    made.stood(0, waiting_in="all_reduce")
    made.stood(2, FrameRecord("/usr/lib/python/runpy.py", 1, "run", origin="framework"))
    made.ended(3, None, "SIGTERM", caused=True, pid=GONE + 3)
    told = verdict(made.write(exit_code=1)).sentence
    assert "Rank 0 was ended by the launcher in consequence, while it waited in all_reduce." in told
    assert "Ranks 2-3 were ended by the launcher in consequence." in told


def test_of_many_ranks_the_places_of_most_are_told(tmp_path):
    made = MadeRun(tmp_path / "runs", world_size=100)
    made.started(0, pid=GONE)
    made.died(0, exception(), pid=GONE)
    made.ended(0, 1, pid=GONE)
    for rank in range(1, 100):
        made.started(rank, pid=GONE + rank)
        made.stood(rank, FrameRecord("/home/me/project/die.py", 7 if rank % 2 else rank, "step"))
    told = verdict(made.write(exit_code=1)).sentence
    assert "99 were ended by the launcher in consequence, while they were in step at die.py:7." in told
    assert told.count("in step at") == 4
    assert "98 were ended by the launcher in consequence, while they were at 46 other places." in told


def test_an_interrupt_without_a_stop_is_the_failure(made):
    made.died(1, exception("", "KeyboardInterrupt"), pid=GONE + 1)
    made.ended(1, None, "SIGINT", pid=GONE + 1)
    assert verdict(made.write(exit_code=1)).first_failure.exception == "KeyboardInterrupt"


def test_what_ended_a_ray_worker_in_consequence_was_ray(tmp_path):
    made = MadeRun(tmp_path / "runs", mode="ray")
    for rank in range(2):
        made.started(rank, pid=GONE + rank)
    made.ended(1, None, "SIGKILL", pid=GONE + 1)
    made.ended(0, None, "SIGKILL", caused=True, pid=GONE)
    assert "Rank 0 was ended by Ray in consequence." in verdict(made.write(exit_code=1)).sentence


FAULT = """Fatal Python error: Segmentation fault

Current thread 0x00007f1cfebbdb80 (most recent call first):
  File "/usr/lib/python3.11/ctypes/__init__.py", line 519 in string_at
  File "/home/me/project/hang.py", line 30 in main
  File "/home/me/project/hang.py", line 41 in <module>
  File "/somewhere/raytrain_debug/shim/target.py", line 38 in run_target
"""


def test_a_crash_in_native_code_is_told_with_its_place_and_its_stack(made):
    made.paths.rank(1).fault(0).write_text(FAULT)
    made.ended(1, None, "SIGSEGV", pid=GONE + 1)
    run = made.write(exit_code=1)
    found = verdict(run)
    assert found.first_failure.where == CallSite("/home/me/project/hang.py", 30, "main")
    assert "Rank 1 was killed first by SIGSEGV at hang.py:30 in main (a crash in native code)" in found.sentence
    shown = console.rendered(*render(examine(run), START + 60))
    assert "Stack of rank 1 when SIGSEGV came" in shown
    assert shown.index("line 41, in <module>") < shown.index("line 30, in main") < shown.index("in string_at")
    assert "target.py" not in shown


def test_a_rank_that_lost_its_connection_to_the_first_failure_is_told_as_a_consequence(made):
    made.died(2, exception("cuda device"), pid=GONE + 2, time=-0.4)
    made.died(1, exception("gloo: Connection closed by peer\nmore", "RuntimeError"), pid=GONE + 1, time=0.2)
    made.died(0, exception("NCCL communicator was aborted", "torch.distributed.DistBackendError"), pid=GONE, time=0.3)
    made.died(3, exception("of its own"), pid=GONE + 3, time=0.4)
    for rank in (2, 1, 0, 3):
        made.ended(rank, 1, pid=GONE + rank)
    run = made.write(exit_code=1)
    found = verdict(run)
    assert found.consequences == {0, 1}
    assert found.sentence.endswith(
        "Rank 3 failed with an exception too. "
        "Ranks 0-1 lost their connection to rank 2 in consequence, and failed with that."
    )
    shown = console.rendered(*render(examine(run), START + 60))
    assert [rank for rank in range(4) if f"Traceback of rank {rank}" in shown] == [2, 3]
    assert "rank 1  RuntimeError: gloo: Connection closed by peer […], at train.py:88 in train_func" in shown


def test_of_a_message_of_several_lines_the_first_is_told_with_the_place_after_it(made):
    made.died(1, exception("Error(s) in loading state_dict:\n\tMissing key(s): w\n\tUnexpected: v"), pid=GONE + 1)
    made.ended(1, 1, pid=GONE + 1)
    found = verdict(made.write(exit_code=1))
    assert "with ValueError: Error(s) in loading state_dict: […] at train.py:88 in train_func, before" in found.sentence
    assert "Missing key" in found.first_failure.exception


def test_a_message_of_several_sentences_does_not_run_into_the_place(made):
    told = "rank 1 did not report. Every rank has to: on a cluster the others hang"
    made.died(1, exception(told, "RanksDiffer"), pid=GONE + 1)
    made.ended(1, 1, pid=GONE + 1)
    sentence = verdict(made.write(exit_code=1)).sentence
    assert f"failed first at train.py:88 in train_func, before its first report, with RanksDiffer: {told}." in sentence


def test_a_driver_that_fails_before_any_ray_worker_is_told(tmp_path):
    run = MadeRun(tmp_path / "runs", mode="ray").write(exit_code=1)
    sentence = verdict(Run(run.paths, run.record, ())).sentence
    assert sentence == "The script ended with exit code 1 before a Ray Train worker had started."
    assert "num_workers=0" in ray_job.why_no_worker(0)
    assert ray_job.why_no_worker(1).startswith("the script ended with exit code 1 before a Ray Train worker")
    assert "was ended by SIGKILL before" in ray_job.why_no_worker(-9)


def test_a_rank_that_calls_sys_exit_is_told_with_its_words_and_place(made):
    made.died(1, exception("stop here, disk quota", "SystemExit"), pid=GONE + 1)
    made.ended(1, 1, pid=GONE + 1)
    run = made.write(exit_code=1)
    found = verdict(run)
    assert found.outcomes[1] == "exit 1"
    assert (found.first_failure.kind, found.first_failure.where) == ("exit", SITE)
    told = 'Rank 1 failed first: it called sys.exit("stop here, disk quota") at train.py:88 in train_func, before'
    assert told in found.sentence
    assert "Traceback of rank 1" in console.rendered(*render(examine(run), START + 60))
    made.died(1, exception("1", "SystemExit"), pid=GONE + 1)
    assert "called sys.exit(1) at" in verdict(made.write(exit_code=1)).sentence


def test_leaving_by_sys_exit_at_an_interrupt_is_no_failure(made):
    left = dataclasses.replace(exception("1", "SystemExit"), context=exception("", "KeyboardInterrupt"))
    made.died(1, left, pid=GONE + 1)
    made.ended(1, 1, pid=GONE + 1)
    made.died(0, exception("143", "SystemExit"), pid=GONE)
    made.ended(0, 143, pid=GONE)
    assert verdict(made.write(exit_code=1, stopped="SIGINT")).state == "stopped"


def test_the_client_of_a_rank_is_told_how_it_ended_with_the_place_after_the_first_line(made):
    made.died(1, exception("Missing keys:\n\tw"), pid=GONE + 1)
    made.died(2, exception("disk quota", "SystemExit"), pid=GONE + 2)
    job = Job(made.paths, made.write(ended=False).record)
    job.attempt_started(0, 4, {rank: GONE + rank for rank in range(4)})
    for rank in (1, 2):
        job.ended(GONE + rank, 1, None)
    assert job.how_it_ended(job.rank(1)) == (
        f"rank 1 failed: ValueError: Missing keys: at {SITE.file}:88 in train_func\n\tw"
    )
    assert job.how_it_ended(job.rank(2)) == f"rank 2 exited with code 1 at {SITE.file}:88 in train_func: disk quota"
