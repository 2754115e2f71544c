"""`attach` on several ranks of a real job: commands go to all in focus, and what they say is said once."""

import json
import os
import re
import signal
import subprocess
import sys

import pexpect
import pytest

from tests.conftest import TARGETS, Launch, free_base_port, wait_for

LOOP = TARGETS / "loop.py"
GROUP = TARGETS / "group.py"


def line(path, start):
    """The number of the first line of a target that starts so."""
    return next(
        number for number, text in enumerate(path.read_text().splitlines(), 1) if text.strip().startswith(start)
    )


NEXT = line(LOOP, "number += 1")
PRODUCT = line(LOOP, "product =")


def attach(job, *commands, ranks="all", stdin=None, timeout=60):
    """Run `attach` in the job's directory: with `-c` for each command, else reading `stdin`."""
    arguments = [part for command in commands for part in ("-c", command)]
    return subprocess.run(
        [sys.executable, "-m", "raytrain_debug", "attach", "--rank", ranks, *arguments],
        cwd=job.cwd,
        input=stdin,
        stdin=subprocess.DEVNULL if stdin is None else None,
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def start(directory, target, ranks, *options):
    """A job of that many ranks, all of them at work."""
    job = Launch(directory, ["--nproc-per-node", str(ranks), *options, str(target)], {}, free_base_port(ranks))
    word = "started" if target is LOOP else "trains"
    try:
        wait_for(lambda: job.output.count(word) == ranks or job.process.poll() is not None, 60, "the ranks to work")
        assert job.process.poll() is None, job.output
    except BaseException:
        job.kill()
        raise
    return job


@pytest.fixture(scope="module")
def free(tmp_path_factory):
    """Three ranks that do not communicate, one debugger after another."""
    job = start(tmp_path_factory.mktemp("free"), LOOP, 3)
    yield job
    job.kill()


@pytest.fixture(scope="module")
def bound(tmp_path_factory):
    """Three ranks that meet in an all_reduce at every step."""
    job = start(tmp_path_factory.mktemp("bound"), GROUP, 3)
    yield job
    job.kill()


GO_ON = "!__import__('os').remove(f'hold{__rank__}')"


def hold_between_two_steps(job):
    """Let all ranks of GROUP come to the same place: else one may be a collective ahead of the others when paused.

    The command GO_ON ends it.
    """
    before = job.output.count("holds")
    for rank in (2, 1, 0):
        (job.cwd / f"hold{rank}").touch()
    wait_for(lambda: job.output.count("holds") == before + 3, 30, "the ranks to hold")


def test_equal_answers_come_once_and_the_odd_ones_first(free):
    done = attach(
        free,
        "p 6 * 7",
        "p __rank__ == 1",
        "p 1 // (__rank__ - 1)",
        "p undefined",
        "print('line', __rank__ // 2)",
        "pp ['a' * 50, 'b' * 50]",
        "None",
    )
    assert done.stdout.splitlines() == [
        "0-2: 42",
        "1: True",
        "0,2: False",
        "0: -1",
        "1: *** ZeroDivisionError: integer division or modulo by zero",
        "2: 1",
        "0-2: *** NameError: name 'undefined' is not defined",
        "2: line 1",
        "0-1: line 0",
        "0-2:",
        f"['{'a' * 50}',",
        f" '{'b' * 50}']",
    ]
    assert (done.stderr, done.returncode) == ("", 1)
    assert {rank["state"] for rank in free.status().values()} == {"dormant"}


def test_breakpoints_are_the_group_s_and_count_alike_on_all_ranks(free):
    done = attach(
        free,
        f"tbreak {LOOP}:{NEXT}",
        "c",
        "focus 1",
        "b scale",
        "focus 0,2",
        f"b loop.py:{PRODUCT + 1}",
        "focus all",
        "c",
        "b",
        "cl 2",
        "info breakpoints",
        "cl",
        "b",
    )
    shown = done.stdout
    assert f"0-2: Breakpoint 1 at {LOOP}:{NEXT}\n0-2 > {LOOP}({NEXT})fit()\n" in shown
    assert f"\nBreakpoint 2 at {LOOP}:{PRODUCT}\n" in shown, "one rank in focus answers as a prompt on one does"
    assert f"\n0,2: Breakpoint 3 at {LOOP}:{PRODUCT + 1}\n" in shown
    assert f"\n1 > {LOOP}({PRODUCT})scale()\n-> " in shown
    assert f"\n0,2 > {LOOP}({PRODUCT + 1})scale()\n-> " in shown
    assert (
        "Num Type         Disp Enb   Where\n"
        f"2   breakpoint   keep yes   at {LOOP}:{PRODUCT} on rank 1\n\tbreakpoint already hit 1 time by rank 1\n"
        f"3   breakpoint   keep yes   at {LOOP}:{PRODUCT + 1} on ranks 0, 2\n"
    ) in shown
    assert f"\n1: Deleted breakpoint 2 at {LOOP}:{PRODUCT}\n0,2: *** No breakpoint numbered 2\n" in shown
    assert shown.endswith(f"\n0,2: Deleted breakpoint 3 at {LOOP}:{PRODUCT + 1}\n")


def test_focus_goes_by_number_and_by_place(free):
    done = attach(
        free,
        f"tbreak {LOOP}:{NEXT}",
        "c",
        "focus 1",
        "tbreak scale",
        "c",
        "focus all",
        "focus where scale",
        "p __rank__",
        f"focus where loop.py:{NEXT}",
        "p __rank__",
        "focus 5",
        "focus where nobody",
        "focus",
    )
    at_scale, at_next = f"{LOOP}({PRODUCT})scale()", f"{LOOP}({NEXT})fit()"
    lines = done.stdout.splitlines()
    assert f"> 1    {at_scale}\n> 0,2  {at_next}\n> 1    {at_scale}\n  0,2  {at_next}\n1\n" in done.stdout
    assert lines[-8:] == [
        f"> 0,2  {at_next}",
        f"  1    {at_scale}",
        "0: 0",
        "2: 2",
        "*** not attached to 5; attached: 0-2",
        "*** no rank is at nobody",
        f"> 0,2  {at_next}",
        f"  1    {at_scale}",
    ]
    assert done.returncode == 1


def test_a_rank_that_another_debugger_holds_is_left_out(free):
    holder = free.session(1)
    try:
        done = attach(free, "p __rank__ >= 0", "focus all")
        assert "rank 1 is already being debugged by raytrain_debug" in done.stderr
        assert "left out" in done.stderr
        assert done.stdout.startswith("0,2: True\n")
        assert done.returncode == 1, "not all that were asked for have carried the command out"
        done = attach(free, "p 1", ranks="1")
        assert done.returncode == 1
    finally:
        holder.disconnect()


def test_ranks_that_are_not_there_are_told(free):
    done = attach(free, "p 1", ranks="0,3")
    assert "has no rank 3 here" in done.stderr
    assert done.returncode == 2
    done = attach(free, "p 1", ranks="0;3")
    assert "'0;3' does not name ranks\n  write them as 0,2-3 or all" in done.stderr
    assert done.returncode == 2


def test_a_pipe_has_the_prompt_of_the_focus(free):
    done = attach(free, stdin="p 1\nfocus 0,2\np 2\nfocus 2\np 3\nq\n", ranks="0-2")
    assert "(ranks 0-2) 0-2: 1\n" in done.stdout
    assert "(ranks 0,2) 0,2: 2\n" in done.stdout
    assert "(rank 2) 3\n" in done.stdout
    assert "detached; ranks 0-2 go on" in done.stderr


def test_ranks_step_together_and_who_waits_for_others_is_told(bound):
    scale, reduce = line(GROUP, "factor ="), line(GROUP, "dist.all_reduce")
    hold_between_two_steps(bound)
    done = attach(
        bound,
        GO_ON,
        "b scale",
        "c",
        "cl",
        "n",
        "p value * factor",
        "r",
        "n",
        "n",
        "focus 1",
        "n",
        "n",
        "w",
        "focus 0,2",
        "n",
        "n",
        "focus",
    )
    shown = done.stdout
    assert f"0-2 > {GROUP}({scale})scale()\n" in shown
    assert f"0-2 > {GROUP}({scale + 1})scale()\n" in shown
    assert "\n1: 1.0\n0,2: 0.5\n" in shown
    waits = f"rank 1 waits in all_reduce at {GROUP}:{reduce} for ranks not in focus (ranks 0, 2)"
    assert f"not back: {waits}" in done.stderr
    assert "dist.all_reduce(value)" in shown, "the stack of a rank that waits can be seen"
    # The others come to the same all_reduce, and all go on: rank 1 arrives too, though it is not in focus.
    train = line(GROUP, "number += 1")
    assert f"\n0-2 > {GROUP}({train})train()\n" in shown or f"> 0,2  {GROUP}({train})train()" in shown
    assert f"1    {GROUP}({train})train()" in shown
    assert "rank 0 waits" not in done.stderr


def test_who_stands_keeps_the_others_waiting_and_is_named(bound):
    reduce = line(GROUP, "dist.all_reduce")
    done = attach(bound, "b scale, rank == 1", "c")
    assert done.returncode == 0
    done = attach(bound, "b scale, rank == 1", "c", "focus")
    assert f"1 > {GROUP}({line(GROUP, 'factor =')})scale()" in done.stdout
    assert f"ranks 0, 2 wait in all_reduce at {GROUP}:{reduce} for rank 1, which stands" in done.stderr


def test_ctrl_c_stops_all_ranks_that_run(bound):
    environment = {**os.environ, "PROMPT_TOOLKIT_NO_CPR": "1", "TERM": "xterm"}
    hold_between_two_steps(bound)
    child = pexpect.spawn(
        sys.executable,
        ["-m", "raytrain_debug", "attach", "--rank", "all"],
        cwd=str(bound.cwd),
        env=environment,
        encoding="utf-8",
        timeout=40,
        dimensions=(50, 150),
    )

    def prompt(name):
        child.expect(name + r".*?\x1b\[\?25h")

    try:
        prompt(r"\(ranks 0-2[^)]*\)")
        child.sendline(GO_ON)
        prompt(r"\(ranks 0-2[^)]*\)")
        child.sendline("b scale")
        prompt(r"\(ranks 0-2[^)]*\)")
        child.sendline("c")
        child.expect(r"0-2 > \S*group\.py\(\d+\)scale\(\)")
        prompt(re.escape("(ranks 0-2)"))
        child.sendline("cl")
        prompt(re.escape("(ranks 0-2)"))
        child.sendline("c")
        bound.wait_state("attached", (0, 1, 2))
        child.sendcontrol("c")
        # One that stands keeps the others in their all_reduce: at least one has stopped.
        prompt(r"> \S*\.py\(\d+\).*\(ranks 0-2[^)]*\)")
        child.sendline("p 6 * 7")
        child.expect("42\r\n")
        prompt(r"\(ranks 0-2[^)]*\)")
        child.sendcontrol("d")
        child.expect("detached; ranks 0-2 go on")
        child.expect(pexpect.EOF)
    finally:
        child.close(force=True)
    assert child.exitstatus == 0
    bound.wait_state("dormant", (0, 1, 2))


def test_the_prompt_follows_all_ranks_into_their_next_attempt_and_drops_who_ends(tmp_path):
    job = start(tmp_path, LOOP, 2, "--max-restarts", "1")
    try:
        leave = "__import__('os')._exit"
        done = attach(
            job,
            stdin=f"b scale\nc\nfocus 1\n!{leave}(3)\nfocus all\ncl\nfocus 1\n!{leave}(0)\np __rank__\nfocus\nq\n",
        )
        assert "rank 1 exited with code 3" in done.stderr
        assert "ranks 0, 1 start anew" in done.stderr
        assert done.stdout.count(f"0-1 > {LOOP}({PRODUCT})scale()") == 2, "the breakpoint is set in the next attempt"
        assert "rank 1 finished" in done.stderr
        assert "(rank 0) 0\n" in done.stdout
        assert "detached; rank 0 goes on" in done.stderr
        assert done.returncode == 0
    finally:
        job.kill()


# Ranks, of three, that do not answer: rank 1 comes to something that keeps it from it once `begin` is there.
WORKS = """
import ctypes, os, sys, time
rank = int(os.environ["RANK"])

class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == "debugpy":
            time.sleep(7)  # longer than a rank that says nothing keeps the others waiting

if rank == 1 and sys.argv[1] == "loads slowly":
    sys.meta_path.insert(0, Slow())
print("started", flush=True)
if rank == 1 and sys.argv[1] == "keeps the lock":
    ctypes.PyDLL(None).sleep(1000)
while not os.path.exists("stop"):
    time.sleep(0.01)
"""


@pytest.fixture
def working(launch, tmp_path):
    """`working(how)`: a job of three ranks, none of them debugged yet."""
    script = tmp_path / "works.py"
    script.write_text(WORKS)

    def make(how):
        job = launch("--nproc-per-node", "3", script, how)
        wait_for(lambda: job.output.count("started") == 3, 60, "the ranks to work")
        job.wait_state("dormant", (0, 1, 2))
        return job

    return make


def has_loaded_a_debugger(job, rank):
    """As the rank itself says, without one."""
    asked = [sys.executable, "-m", "raytrain_debug", "print", "--json", "--ranks", str(rank), "'pydevd' in sys.modules"]
    done = subprocess.run(asked, cwd=job.cwd, capture_output=True, text=True, timeout=60)
    return json.loads(done.stdout)["groups"][0]["value"]


def test_a_rank_that_is_stopped_is_left_out_and_stays_as_it_is(working):
    job = working("works")
    stopped = job.status()[1]["pid"]
    os.kill(stopped, signal.SIGSTOP)
    try:
        done = attach(job, "p __rank__ >= 0")
        why = "rank 1 gives no answer within 2 s: its process is stopped, by SIGSTOP or Ctrl-Z"
        assert f"{why}; left out" in done.stderr
        assert done.stdout == "0,2: True\n"
        assert done.returncode == 1
        assert job.status()[1]["state"] == "dormant", "its gateway holds no client"
    finally:
        os.kill(stopped, signal.SIGCONT)
    assert has_loaded_a_debugger(job, 0)
    assert not has_loaded_a_debugger(job, 1), "it has woken up to a client that was gone"
    assert attach(job, "p 6 * 7").stdout == "0-2: 42\n"


def test_a_rank_whose_native_code_keeps_the_lock_is_left_out(working):
    job = working("keeps the lock")
    done = attach(job, "p __rank__")
    assert "rank 1 gives no answer within 2 s: native code waits in it and lets no other Python run; " in done.stderr
    assert done.stdout == "0: 0\n2: 2\n"
    assert done.returncode == 1
    alone = attach(job, "p __rank__", ranks="0,2")
    assert (alone.stderr, alone.returncode) == ("", 0)


def test_a_rank_that_is_slow_to_load_the_debugger_is_waited_for(working):
    done = attach(working("loads slowly"), "p __rank__ >= 0")
    assert (done.stdout, done.stderr, done.returncode) == ("0-2: True\n", "", 0)


@pytest.mark.parametrize("who", ["rank", "launcher"])
def test_one_rank_is_waited_for_and_the_reason_told(working, who):
    job = working("works")
    pid, why = (
        (job.status()[1]["pid"], "its process is stopped, by SIGSTOP or Ctrl-Z")
        if who == "rank"
        else (job.process.pid, "what serves 127.0.0.1:")
    )
    os.kill(pid, signal.SIGSTOP)
    errors = job.cwd / "errors.txt"
    try:
        with errors.open("w") as stderr:
            child = subprocess.Popen(
                [sys.executable, "-m", "raytrain_debug", "attach", "--rank", "1", "-c", "p __rank__ * 6"],
                cwd=job.cwd,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
            )
        wait_for(lambda: f"rank 1 gives no answer within 2 s: {why}" in errors.read_text(), 30, "the reason")
        assert child.poll() is None
    finally:
        os.kill(pid, signal.SIGCONT)
    assert child.communicate(timeout=60)[0] == "6\n"
    assert child.returncode == 0, errors.read_text()
    assert errors.read_text().count("gives no answer") == 1
