"""`postmortem --shell`: the prompt of attach on ranks that are dead."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pexpect
import psutil
import pytest

from raytrain_debug.run.reader import load_run
from tests.conftest import wait_for
from tests.dead_runs import RAISES, SOURCE, DeadRun

COMMAND = ["-m", "raytrain_debug", "postmortem", "--shell"]


@pytest.fixture
def run(tmp_path: Path) -> DeadRun:
    return DeadRun(tmp_path)


def shell(cwd: Path, commands: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *COMMAND, *arguments],
        cwd=cwd,
        input=commands,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_it_opens_the_rank_that_failed_first_where_it_raised(run: DeadRun, tmp_path: Path) -> None:
    done = shell(tmp_path, "w\np names\nu\nu\np index\nx = LR * 10\nx\ncheckpoint['model.pt']['0.weight'].norm()\nq\n")
    assert done.returncode == 0, done.stderr
    told = done.stdout
    assert told.startswith(f"ValueError: loss is nan\n> {run.script}({RAISES})step()\n-> raise ValueError(")
    assert f"> {run.script}({RAISES})step()" in told
    assert "\n  caused by KeyError: 'lr'\n" in told
    for answer in ("(rank 1) ['a', 'b']\n", "(rank 1) 2\n", "(rank 1) 1.0\n", "(rank 1) tensor(6.)\n"):
        assert answer in told
    assert "Rank 1 failed first with ValueError" in done.stderr
    assert "goes on" not in done.stderr
    assert "Traceback" not in done.stderr


def test_what_the_dead_cannot_do_is_told_and_the_prompt_stays(run: DeadRun, tmp_path: Path) -> None:
    done = shell(tmp_path, f"c\nn\ns\nr\nj 3\nb {RAISES}\np 1 + 1\nq\n")
    told = done.stdout
    assert told.count("*** this job is dead") == 5
    assert "(the job is dead: nothing runs that could stop here)" in told
    assert "(rank 1) 2\n" in told


def test_other_ranks_are_asked_for_and_several_answer_together(run: DeadRun, tmp_path: Path) -> None:
    alone = shell(tmp_path, "w\nthreads\n", "--rank", "0").stdout
    assert "all_reduce()" in alone
    assert "rank 0, loader" in alone
    both = shell(tmp_path, "p context['world_rank']\np context['world_size']\n", "--rank", "0,1").stdout
    assert "(ranks 0-1) " in both
    assert "(ranks 0-1) 0-1: 2\n" in both


def test_lines_are_listed_as_they_ran_when_the_file_has_changed(run: DeadRun, tmp_path: Path) -> None:
    run.script.write_text("# a new first line\n" + SOURCE)
    told = shell(tmp_path, "ll\n").stdout
    assert f" {RAISES}  ->\t    raise ValueError(" in told
    assert "new first line" not in told


def test_a_rank_that_is_not_there_is_named(run: DeadRun, tmp_path: Path) -> None:
    done = shell(tmp_path, "", "--rank", "7")
    assert done.returncode == 2
    assert "rank 7" in done.stderr
    assert "Traceback" not in done.stderr


def test_what_a_terminal_would_obey_is_shown_unless_the_person_prints_it(run: DeadRun, tmp_path: Path) -> None:
    core = load_run(run.paths).rank(1).core
    error = dataclasses.replace(core.exception, message="\x1b[31mred")
    module, outer, *inner = core.threads[0].frames
    outer = dataclasses.replace(outer, function="\x1b[32mgreen")
    thread = dataclasses.replace(core.threads[0], frames=(module, outer, *inner))
    run.core(1, dataclasses.replace(core, exception=error, threads=(thread,)))
    done = shell(tmp_path, "w\nu\nlen('\x1b[31m'.no)\nraise ValueError('\x1b[33m')\nprint(chr(27) + '[34m')\nq\n")
    assert done.stdout.startswith("ValueError: \\x1b[31mred\n")
    assert "\\x1b[32mgreen()" in done.stdout
    assert "*** ValueError: \\x1b[33m" in done.stdout
    assert "failed first with ValueError: \\x1b[31mred" in done.stderr
    assert "\x1b" not in done.stdout.replace("\x1b[34m\n", "") + done.stderr
    assert "\x1b[34m\n" in done.stdout


def test_control_c_ends_an_expression_that_does_not_end_by_itself(run: DeadRun, tmp_path: Path) -> None:
    child = pexpect.spawn(sys.executable, [*COMMAND, "--rank", "0,1"], cwd=str(tmp_path), encoding="utf-8", timeout=30)
    try:
        child.expect(r"\(ranks 0-1\)")
        process = psutil.Process(child.pid)
        child.send("while True: pass\r")
        before = process.cpu_times().user
        wait_for(lambda: process.cpu_times().user > before + 1, 30, "the expression to be evaluated")
        child.sendintr()
        child.expect(r"\*\*\* interrupted")
        child.send("p 6 * 7\r")
        child.expect("0-1: 42")
        child.send("q\r")
        child.expect(pexpect.EOF)
    finally:
        child.close(force=True)


def test_in_a_terminal_it_completes_and_ends_with_control_d(run: DeadRun, tmp_path: Path) -> None:
    child = pexpect.spawn(
        sys.executable, COMMAND, cwd=str(tmp_path), encoding="utf-8", timeout=30, dimensions=(40, 150)
    )
    try:
        child.expect(r"rank 1 of run .* dead; h lists the commands")
        child.expect(r"\(rank 1\)")
        child.send("p checkp\t")
        child.expect("checkpoint")
        child.send("['model.pt']['0.bias'].shape\r")
        child.expect(r"torch.Size\(\[2\]\)")
        child.send("\x04")
        child.expect(pexpect.EOF)
        child.wait()
        assert (child.exitstatus, child.signalstatus) == (0, None)
    finally:
        child.close(force=True)
