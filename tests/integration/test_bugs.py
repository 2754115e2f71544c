"""The walkthroughs of docs/bugs.md: their commands, typed as they stand, show what the page shows."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from raytrain_debug.run import layout
from raytrain_debug.run.reader import load_run
from tests.conftest import REPOSITORY, wait_for

PAGE = (REPOSITORY / "docs" / "bugs.md").read_text()
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S))
# The reader's shell has the virtual environment on its PATH; ours has this Python.
SHELL = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}


def steps(section):
    """Each command of a walkthrough with the output that the page shows for it."""
    found = []
    for kind, text in re.findall(r"^```(bash|text)\n(.*?)^```", section, re.M | re.S):
        if kind == "bash":
            found.append((text.strip(), ""))
        else:
            found[-1] = (found[-1][0], text)
    return found


def missing(shown, output):
    """The lines that the page shows and `output` has not, in any order; spaces may differ, `...` is anything."""
    plain = re.sub(r"[ \t]+", " ", output)
    lines = [re.sub(r"[ \t]+", " ", line).strip() for line in shown.splitlines() if line.strip()]
    return [line for line in lines if not re.search(re.escape(line).replace(re.escape("..."), ".*"), plain)]


class Terminal:
    """The first terminal, in which jobs are started."""

    def __init__(self, cwd):
        self.cwd = cwd
        self.log = cwd / "log"
        self.job = None

    def launch(self, command):
        """Start a job and wait until its ranks are at work, or wait for a debugger."""
        self.stop()
        before = set(layout.list_runs(self.cwd / layout.ROOT_NAME))
        command = "exec " + command.replace(" launch ", " launch --base-port auto ", 1)
        with open(self.log, "wb") as log:
            self.job = subprocess.Popen(
                ["bash", "-c", command],
                cwd=self.cwd,
                env=SHELL,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        waiting = "--wait" in command
        wait_for(lambda: self.job.poll() is not None or self._is_there(before, waiting), 60, f"the ranks of {command}")

    def _is_there(self, before, waiting):
        """Whether there is a new run, and all of its ranks."""
        root = self.cwd / layout.ROOT_NAME
        if set(layout.list_runs(root)) == before:
            return False
        run = load_run(layout.find_run(None, root), last=0)
        there = run.record is not None and len([rank for rank in run.ranks if rank.process]) == run.record.world_size
        return there and (not waiting or self.log.read_text().count("waits for a debugger") == run.record.world_size)

    def stop(self):
        """As Ctrl-C does, but ranks that hang in a collective heed SIGTERM at once."""
        if self.job is not None and self.job.poll() is None:
            self.job.send_signal(signal.SIGTERM)
            try:
                self.job.wait(20)
            except subprocess.TimeoutExpired:
                self.job.kill()
                self.job.wait()


@pytest.fixture
def terminal(tmp_path):
    shutil.copytree(REPOSITORY / "examples", tmp_path / "examples")
    terminal = Terminal(tmp_path)
    yield terminal
    terminal.stop()


@pytest.mark.parametrize("title", SECTIONS)
def test_the_walkthrough_finds_the_bug(title, terminal):
    for command, shown in steps(SECTIONS[title]):
        if " launch " in command:
            terminal.launch(command)
            outputs = watch(terminal)
        else:
            if re.search(" (postmortem|compare)", command):
                terminal.job.wait(60)
            outputs = look(terminal, command)
        for output in outputs:
            if not missing(shown, output):
                break
        else:
            pytest.fail(f"{command}: no {missing(shown, output)} in\n{output}\n--- job\n{terminal.log.read_text()}")


def watch(terminal):
    """What the job has printed, until it has ended."""
    end = time.monotonic() + 40
    while terminal.job.poll() is None and time.monotonic() < end:
        yield terminal.log.read_text()
        time.sleep(0.1)
    yield terminal.log.read_text()


def look(terminal, command):
    """What a command prints; a person looks again when the job was not yet where it shows something."""
    again = not re.search(" (attach|postmortem|compare) ", command + " ")
    for _ in range(30 if again else 1):
        done = subprocess.run(
            ["bash", "-c", command], cwd=terminal.cwd, env=SHELL, capture_output=True, text=True, timeout=60
        )
        yield done.stdout + done.stderr
        time.sleep(0.3)


def test_every_example_with_a_bug_has_its_walkthrough():
    launched = {
        match[1]
        for section in SECTIONS.values()
        for command, _ in steps(section)
        if (match := re.search(r" launch .*examples/bugs/(\w+\.py)", command))
    }
    assert launched == {path.name for path in (REPOSITORY / "examples" / "bugs").glob("*.py")}
