"""`attach` on a rank of a real job: `-c` commands, a pipe, a terminal; and what it says when it cannot attach."""

import os
import re
import signal
import stat
import subprocess
import sys

import pexpect
import pytest

from tests.conftest import TARGETS, Launch, free_base_port, wait_for

LOOP = TARGETS / "loop.py"
TEXT = LOOP.read_text().splitlines()


def line(start, function=""):
    """The number of the first line of loop.py, in or after that function, that starts so."""
    after = next(number for number, text in enumerate(TEXT, 1) if f"def {function}" in text)
    return next(number for number, text in enumerate(TEXT[after:], after + 1) if text.strip().startswith(start))


PRODUCT = line("product =")
SEEN = line('seen["steps"] =')


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """A job of one rank that goes on for all tests that leave it as it was, one debugger after another."""
    job = Launch(tmp_path_factory.mktemp("job"), ["--no-torchrun", str(LOOP)], {}, free_base_port(1))
    job.wait_output("started")
    yield job
    job.kill()


@pytest.fixture
def job(launch):
    """`job("raise")` starts the loop as a job of one rank and waits until it works."""

    def start(*arguments, options=("--no-torchrun",)):
        started = launch(*options, LOOP, *arguments)
        started.wait_output("started")
        return started

    return start


def attach(job, *commands, rank=0, run=None, stdin=None, timeout=30):
    """Run `attach` in the job's directory: with `-c` for each command, else reading `stdin`."""
    arguments = [part for command in commands for part in ("-c", command)]
    arguments += ["--run", run] if run else []
    return subprocess.run(
        [sys.executable, "-m", "raytrain_debug", "attach", "--rank", str(rank), *arguments],
        cwd=job.cwd,
        input=stdin,
        stdin=subprocess.DEVNULL if stdin is None else None,
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def terminal(job, *arguments):
    """`attach` in a pseudo-terminal."""
    environment = {**os.environ, "PROMPT_TOOLKIT_NO_CPR": "1", "TERM": "xterm"}
    return pexpect.spawn(
        sys.executable,
        ["-m", "raytrain_debug", "attach", *arguments],
        cwd=str(job.cwd),
        env=environment,
        encoding="utf-8",
        timeout=20,
        dimensions=(50, 150),
    )


PLACE = r"> \S*loop\.py\(\d+\)\w+\(\)\r\n-> "


def prompt(child, name="rank 0"):
    """Wait until the prompt is there to be typed at."""
    child.expect(re.escape(f"({name})") + r".*?\x1b\[\?25h")


def test_commands_print_plainly_and_leave_the_rank_running(shared):
    done = attach(
        shared, f"b {SEEN}", "c", "p number >= 0", "a", "whatis work", "pp {'a': [1]}", "doubled == number * 2"
    )
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert lines[:3] == [
        f"Breakpoint 1 at {LOOP}:{SEEN}",
        f"> {LOOP}({SEEN})work()",
        f"-> {TEXT[SEEN - 1].strip()}",
    ]
    assert lines[3] == "True"
    assert re.fullmatch(r"number = \d+", lines[4])
    assert lines[5:] == ["Function work", "{'a': [1]}", "True"]
    assert done.returncode == 0
    steps = int(attach(shared, "p seen['steps']").stdout)
    wait_for(lambda: int(attach(shared, "p seen['steps']").stdout) > steps, what="the rank to go on")
    assert shared.status()[0]["state"] == "dormant"


def test_what_a_terminal_would_obey_is_shown_unless_the_person_prints_it(shared):
    shows = "type('Shows', (), {'__repr__': lambda self: chr(27) + '[31m', '__str__': lambda self: chr(27) + '[32m'})()"
    done = attach(
        shared, f"p {shows}", f"x = {shows}", "x", "raise ValueError(str(x))", "print(str(x))", f"b {SEEN}, x == '\x1b'"
    )
    assert done.stdout.splitlines() == [
        "\\x1b[31m",
        "\\x1b[31m",
        "*** ValueError: \\x1b[32m",
        "\x1b[32m",
        f"Breakpoint 1 at {LOOP}:{SEEN}",
    ]
    assert "\x1b" not in done.stderr


def test_a_failing_command_is_told_as_pdb_does_and_the_others_are_carried_out(shared):
    done = attach(
        shared, "p undefined", "1/0", "b nowhere.py:3", f"b {LOOP}:4000", "u", "d", "d", "p 'still here'", "x x"
    )
    assert done.returncode == 1
    assert done.stderr == ""
    assert done.stdout.splitlines()[:4] == [
        "*** NameError: name 'undefined' is not defined",
        "*** ZeroDivisionError: division by zero",
        "*** 'nowhere.py' not found from sys.path",
        "*** End of file",
    ]
    assert "*** Newest frame" in done.stdout
    assert "'still here'" in done.stdout
    assert done.stdout.splitlines()[-1] == "*** SyntaxError: invalid syntax"


def test_a_breakpoint_in_a_function_that_is_nowhere_yet_says_so(shared):
    done = attach(shared, "b nowhere", "cl")
    assert done.stdout.splitlines() == [
        "Breakpoint 1 at every function nowhere (none is known yet)",
        "Deleted breakpoint 1 at every function nowhere",
    ]


def test_breakpoints_by_function_file_condition_and_number(shared):
    done = attach(
        shared,
        "b scale, value % 5 == 1",
        "c",
        "p value % 5",
        f"tbreak loop.py:{SEEN}",
        "b",
        f"cl loop:{PRODUCT}",
        "c",
        "b",
        "cl 1",
    )
    assert f"Breakpoint 1 at {LOOP}:{PRODUCT}" in done.stdout
    assert f"2   breakpoint   del  yes   at {LOOP}:{SEEN}" in done.stdout
    assert "\tstop only if value % 5 == 1" in done.stdout
    assert "\n1\n" in done.stdout
    assert "\tbreakpoint already hit 1 time\n" in done.stdout
    assert done.stdout.splitlines()[-4:] == [
        f"Deleted breakpoint 1 at {LOOP}:{PRODUCT}",
        f"> {LOOP}({SEEN})work()",
        f"-> {TEXT[SEEN - 1].strip()}",
        "*** No breakpoint numbered 1",  # nor is there another: `b` has listed nothing
    ]
    assert done.returncode == 1


def test_a_condition_that_raises_stops_the_rank_and_is_told(shared):
    done = attach(shared, "b scale, undefined > 1", "c", "p value >= 0", "cl")
    assert f"> {LOOP}({PRODUCT})scale()\n" in done.stdout
    told = "rank 0 stops, for the condition 'undefined > 1' raises NameError: name 'undefined' is not defined\n"
    assert done.stderr == f"raytrain_debug: {told}"
    assert done.returncode == 0


def test_moving_through_frames_and_source(shared):
    call = line("doubled =")
    done = attach(shared, "b scale", "c", "a", "w", "l", "l", "u", "ll", "a", "p number", "n", "d")
    text = done.stdout
    assert re.search(r"^value = \d+\nmore = \(\)\nfactor = 2\noptions = \{\}$", text, re.M)
    assert f"  {LOOP}({call})work()\n-> doubled = scale(number)\n> {LOOP}({PRODUCT})scale()\n-> product" in text
    assert f"\n{PRODUCT:>3} B->\t{TEXT[PRODUCT - 1]}\n" in text
    assert f"\n{PRODUCT + 6:>3}  \t{TEXT[PRODUCT + 5]}\n" in text, "l does not go on where it ended"
    assert f"> {LOOP}({call})work()" in text
    assert f"\n{call:>3}  ->\t{TEXT[call - 1]}\n" in text
    # `n` in an outer frame goes to that frame's next line, and what follows is the innermost again.
    assert text.splitlines()[-2:] == ["-> for _ in range(3):", "*** Newest frame"]


def test_stepping_until_return_and_jump(shared):
    loop, call = line("for _"), line("doubled =")
    done = attach(
        shared,
        f"tbreak {call}",
        "c",
        "s",
        "n",
        "r",
        "n",
        "tbreak scale",
        "c",
        "r",
        "until",
        f"j {loop}",
        f"until {SEEN}",
    )
    places = re.findall(r"^> .*loop\.py\((\d+)\)(\w+)\(\)$", done.stdout, re.M)
    assert [(int(line), name) for line, name in places] == [
        (call, "work"),
        (PRODUCT, "scale"),
        (PRODUCT + 1, "scale"),
        (call, "work"),
        (loop, "work"),
        (PRODUCT, "scale"),
        (call, "work"),
        (SEEN, "work"),
        (loop, "work"),
        (SEEN, "work"),
    ]
    assert done.returncode == 0


def test_statements_change_the_rank_and_print_here(shared):
    changing = ["number = 1000", "n", "p seen", "import math", "math.floor(2.5)", "!c = 3", "c = 4", "c + 1"]
    done = attach(shared, f"b {SEEN}", "c", *changing, "for i in range(2): print('line', i)", "None")
    tail = done.stdout.splitlines()
    assert tail[tail.index("{'steps': 1000}") :] == ["{'steps': 1000}", "2", "5", "line 0", "line 1"]
    assert done.returncode == 0


def test_a_huge_value_is_cut_in_the_rank(shared):
    done = attach(shared, "p 'x' * 30_000_000")
    assert len(done.stdout) < 1_100_000
    assert done.stdout.endswith("... (30000002 characters)\n")


def test_a_pipe_is_read_as_pdb_reads_it(shared):
    done = attach(shared, stdin=f"b {SEEN}\nc\np 6 * 7\n\nl {SEEN}, {SEEN}\nq\np 'not reached'\n")
    assert done.returncode == 0
    assert done.stdout.count("(rank 0) 42\n") == 2, "an empty line does not repeat"
    assert f"(rank 0) {SEEN:>3} B->\t{TEXT[SEEN - 1]}\n" in done.stdout
    assert "not reached" not in done.stdout
    assert "detached; rank 0 goes on" in done.stderr


def test_the_end_of_a_pipe_detaches(shared):
    done = attach(shared, stdin="p 1")
    assert "(rank 0) 1\n" in done.stdout
    assert done.returncode == 0
    shared.wait_state("dormant")


def test_help_explains_every_command(shared):
    done = attach(shared, "h", "h b", "h nonsense")
    assert "PLACE is LINE, FILE:LINE or FUNCTION" in done.stdout
    assert "*** No help for 'nonsense'" in done.stdout


def test_threads_are_listed_and_looked_at(shared):
    done = attach(
        shared, "threads", "info threads", "thread 99", "tbreak tick", "c", "n", "thread 1", "w", "n", "p __rank__"
    )
    assert done.stdout.count("> 1  MainThread\n") == 2
    assert "*** no thread 99\n" in done.stdout
    other = re.search(r"^  (\d+)  helper$", done.stdout, re.M)[1]
    assert f"[thread {other}: helper]\n> {LOOP}({line('return threading')})tick()" in done.stdout
    assert f"[thread {other}: helper]\n> {LOOP}({line('time.sleep(0.005)', 'helper')})helper()" in done.stdout
    # The step after `thread 1` is one of that thread.
    assert done.stdout.rpartition("<module>()")[2].count("[thread") == 0
    assert done.stdout.splitlines()[-1] == "0"


def test_of_several_live_runs_the_newest_is_taken_and_the_others_are_named(shared):
    newer = Launch(shared.cwd, ["--no-torchrun", str(LOOP), "newer"], {}, free_base_port(1))
    try:
        wait_for(lambda: (record := newer.run.record) and record.argv[-1] == "newer", what="the newer run")
        newer.wait_state("dormant")
        ids = sorted(run.name for run in (shared.cwd / ".raytrain_debug" / "runs").iterdir())
        done = attach(shared, "p mode")
        assert done.stdout == "'newer'\n"
        assert f"attaching to the newest live run, {ids[1]}; --run chooses another: {ids[0]}" in done.stderr
        done = attach(shared, "p mode", run=ids[0])
        assert (done.stdout, done.stderr) == ("''\n", "")
    finally:
        newer.kill()


def test_a_rank_that_waits_stands_before_the_first_line_of_the_script(launch):
    running = launch("--no-torchrun", "--wait", "all", LOOP)
    running.wait_state("waiting")
    done = attach(running, "w", "b scale", "b Trainer.fit", "c", "w")
    assert done.stdout.startswith(f"> {LOOP}(1)<module>()\n")
    assert f"Breakpoint 1 at {LOOP}:{PRODUCT}" in done.stdout
    assert running.wait_output("started")


def test_a_rank_in_native_code_is_told_and_its_stack_is_a_sample(job):
    done = attach(job("native"), "w", "p 1", timeout=40)
    assert "rank 0 runs native code" in done.stderr
    assert f"  {LOOP}({line('lock.acquire()') + 1})fit()" in done.stdout
    assert "this is where it was a moment ago" in done.stdout
    assert "*** rank 0 is running; Ctrl-C stops it" in done.stdout
    assert done.returncode == 1


def test_a_second_debugger_is_told_who_holds_the_rank(shared):
    holder = shared.session(0)
    try:
        done = attach(shared, "p 1")
    finally:
        holder.disconnect()
    assert done.returncode == 1
    assert done.stdout == ""
    assert "rank 0 is already being debugged by raytrain_debug" in done.stderr


def test_what_cannot_be_attached_to_is_said_with_the_remedy(job, tmp_path):
    running = job()
    wrong = attach(running, "p 1", rank=3)
    assert "has no rank 3 here\n  its ranks here are 0" in wrong.stderr
    assert wrong.returncode == 2
    (running.cwd / "stop").touch()
    running.wait()
    done = attach(running, "p 1")
    assert re.search(r"run \S+ ended with exit code 0 at .*\n  see what it left .* postmortem ", done.stderr)
    assert done.returncode == 1
    environment = {"cwd": str(tmp_path / "none")}
    os.mkdir(environment["cwd"])
    done = subprocess.run(
        [sys.executable, "-m", "raytrain_debug", "attach", "--rank", "0"], capture_output=True, text=True, **environment
    )
    assert "no run is recorded" in done.stderr
    assert done.returncode == 1


def test_the_exception_that_ends_a_rank_is_shown_and_then_its_end(job):
    running = job("raise")
    done = attach(running, stdin="!open('stop', 'w').close()\nc\np number > 0\nc\np 1\n")
    assert "ValueError: planted after True\n" in done.stdout
    assert f"> {LOOP}({line('raise ValueError')})fit()" in done.stdout
    assert "(rank 0) True\n" in done.stdout
    assert "rank 0 failed: ValueError: planted after True" in done.stderr
    assert done.returncode == 0
    assert running.wait() == 1


def test_commands_after_the_end_of_the_rank_are_left_out(job):
    done = attach(job(), "!open('stop', 'w').close()", "c", "w", "p 1")
    assert (done.stdout, done.stderr) == ("", "raytrain_debug: rank 0 finished\n")
    assert done.returncode == 1


def test_a_terminal_has_history_completion_and_ctrl_c(job):
    running = job()
    child = terminal(running)
    child.expect(PLACE)
    prompt(child)
    child.sendline("c")
    running.wait_state("attached")
    child.sendcontrol("c")
    child.expect(PLACE)
    prompt(child)
    child.sendline("p see\t['steps'] >= 0")
    child.expect("True\r\n")
    prompt(child)
    child.send("p half a li")
    child.expect("half a li")
    child.sendcontrol("c")
    prompt(child)
    child.sendline("p 6 * 7")
    child.expect("42\r\n")
    prompt(child)
    child.sendcontrol("d")
    child.expect("detached; rank 0 goes on")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0
    history = running.cwd / ".raytrain_debug" / "history"
    assert stat.S_IMODE(history.stat().st_mode) == 0o600
    assert "p 6 * 7" in history.read_text()
    running.wait_state("dormant")


def test_a_rank_that_is_killed_ends_the_prompt_with_the_reason(job):
    running = job()
    child = terminal(running)
    prompt(child)
    child.send("p half a li")
    os.kill(running.status()[0]["pid"], signal.SIGKILL)
    child.expect("rank 0 was killed by SIGKILL")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0


def test_the_prompt_follows_a_rank_into_its_next_attempt(job):
    running = job(options=("--nproc-per-node", "1", "--max-restarts", "1"))
    kill = "__import__('os').kill(__import__('os').getpid(), 9)"
    done = attach(
        running, stdin=f"b {SEEN}\nc\n!{kill}\np 'next attempt'\nopen('stop', 'w').close()\ncl\nc\n", timeout=60
    )
    assert "rank 0 was killed by SIGKILL" in done.stderr
    assert "attached to rank 0 again" in done.stderr
    assert "'next attempt'" in done.stdout
    assert done.stdout.count(f"> {LOOP}({SEEN})work()") == 2, "its breakpoint is not set in the next attempt"
    assert "rank 0 finished" in done.stderr
    assert running.wait() == 0
