"""What faulthandler wrote reads as the core of the rank that died of a signal."""

from pathlib import Path

import pytest

from raytrain_debug.run import layout, writer
from raytrain_debug.run.fault import parse
from raytrain_debug.run.reader import load_rank
from raytrain_debug.run.records import CoreRecord, ExitRecord, ProcessRecord

TEXT = """Fatal Python error: Segmentation fault

Thread 0x00007fbaf14116c0 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 327 in wait
  File "/home/me/train.py", line 4 in helper
  File "/usr/lib/python3.11/threading.py", line 1002 in _bootstrap

Thread 0x00007fbb155966c0 [raytrain_debug control] (most recent call first):
  File "/usr/lib/python3.11/selectors.py", line 468 in select
  File "/somewhere/raytrain_debug/shim/control.py", line 133 in _turn
  File "/usr/lib/python3.11/threading.py", line 1002 in _bootstrap

Current thread 0x00007fbb17073b80 (most recent call first):
  File "/venv/lib/python3.11/site-packages/torch/_ops.py", line 519 in crash
  File "/home/me/train.py", line 20 in step
  File "/home/me/train.py", line ??? in <module>
  File "/somewhere/raytrain_debug/shim/target.py", line 31 in run_target
  File "/somewhere/raytrain_debug/shim/death.py", line 48 in run_and_record
  File "/somewhere/raytrain_debug/shim/__main__.py", line 5 in <module>
  File "<frozen runpy>", line 88 in _run_code

Extension modules: torch._C (total: 1)
"""


def frames(thread):
    return [(Path(frame.file).name, frame.line, frame.function, frame.origin) for frame in thread.frames]


def test_the_thread_that_died_comes_first_without_frames_of_ours():
    headline, threads = parse(TEXT)
    assert headline == "Fatal Python error: Segmentation fault"
    assert [(thread.name, thread.is_main) for thread in threads] == [
        ("MainThread", True),
        ("Thread 0x00007fbaf14116c0", False),
    ]
    assert frames(threads[0]) == [
        ("train.py", 0, "<module>", "user"),
        ("train.py", 20, "step", "user"),
        ("_ops.py", 519, "crash", "package"),
    ]
    assert frames(threads[1])[1:] == [
        ("train.py", 4, "helper", "user"),
        ("threading.py", 327, "wait", "framework"),
    ]


@pytest.mark.parametrize("length", range(0, len(TEXT), 97))
def test_a_text_cut_off_anywhere_reads(length):
    parse(TEXT[:length])


def test_a_name_that_newer_pythons_write_is_the_threads():
    _, threads = parse('Thread 0x01 [my thread] (most recent call first):\n  File "/a.py", line 1 in f\n')
    assert threads[0].name == "my thread"


@pytest.fixture
def paths(tmp_path: Path) -> layout.RankPaths:
    found = layout.RankPaths(tmp_path)
    writer.write_record(found.process, ProcessRecord(0, 0, 1, 77, 1.0, "host", 2, "/s.sock", "train.py"))
    return found


def test_a_rank_without_core_json_has_the_core_that_its_fault_tells(paths):
    paths.fault(2).write_text(TEXT)
    core = load_rank(paths, 0).core
    assert core is not None
    assert (core.reason, core.attempt, core.pid, core.exception) == ("signal", 2, 77, None)
    assert core.notes == ("Fatal Python error: Segmentation fault",)
    assert core.thread.frames[-1].function == "crash"


def test_an_empty_fault_or_one_of_an_earlier_attempt_is_none(paths):
    paths.fault(2).write_text("")
    paths.fault(1).write_text(TEXT)
    assert load_rank(paths, 0).core is None


def test_an_earlier_attempt_has_the_core_that_its_fault_tells(paths):
    paths.fault(1).write_text(TEXT)
    rank = load_rank(paths, 0, (ExitRecord(0, 1, 66, 1.0, 0, None, "SIGSEGV"),))
    core = rank.core_of(1)
    assert core is not None
    assert (core.reason, core.attempt, core.pid) == ("signal", 1, 66)
    assert rank.core_of(0) is None


def test_the_core_of_the_same_process_counts_more_than_its_fault(paths):
    paths.fault(2).write_text(TEXT)
    writer.write_record(paths.core, CoreRecord(1.0, 2, 77, None, "ended"))
    core = load_rank(paths, 0).core
    assert core is not None
    assert core.reason == "ended"
