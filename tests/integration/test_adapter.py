"""The debug adapter that editors run: a job as one session, its ranks as sessions below it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from raytrain_debug.dap.session import Session
from raytrain_debug.errors import RankEnded
from raytrain_debug.run import layout
from raytrain_debug.run.reader import load_run
from tests.conftest import TARGETS, wait_for
from tests.dead_runs import RAISES, DeadRun
from tests.editor import AdapterProcess

STEPS = TARGETS / "steps.py"
IN_STEP = 14  # the line in step() after the collective
JOB = {"name": "job", "type": "raytrain", "request": "launch", "program": str(STEPS), "nprocPerNode": 2}


@pytest.fixture
def adapter(tmp_path: Path) -> Iterator[Callable[..., AdapterProcess]]:
    started: list[AdapterProcess] = []

    def start(**initialize: Any) -> AdapterProcess:
        started.append(AdapterProcess(tmp_path, **initialize))
        return started[-1]

    yield start
    for each in started:
        each.close()


def open_session(configuration: dict[str, Any], line: int = IN_STEP, path: Path = STEPS) -> Session:
    """The session of a rank that the adapter asked for, with a breakpoint."""
    session = Session(configuration["connect"]["host"], configuration["connect"]["port"], configuration["name"])
    session.breakpoints.add(lambda command, arguments: {}, str(path), line)
    session.attach({name: configuration[name] for name in configuration if name not in ("name", "connect")}, 60)
    return session


def processes_in(directory: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.cwd() == str(directory) and "launch" in process.cmdline() + process.parent().cmdline():
                found.append(process)
        except (psutil.Error, AttributeError):
            continue
    return found


def test_launch_opens_a_session_a_rank_and_its_end_ends_the_job(adapter, tmp_path):
    editor = adapter()
    launched = editor.send("launch", {**JOB, "args": ["1000", "0.05"], "justMyCode": True})
    editor.configure(str(STEPS), IN_STEP)
    assert launched.get(timeout=60)["success"]
    wait_for(lambda: len(editor.children) == 2, 30, "two sessions")
    assert sorted(child["name"] for child in editor.children) == ["rank 0", "rank 1"]
    assert all(child["justMyCode"] for child in editor.children)
    sessions = {child["rank"]: open_session(child) for child in editor.children}
    assert {rank: session.wait_for_stop(30).reason for rank, session in sessions.items()} == {
        0: "breakpoint",
        1: "breakpoint",
    }
    assert editor.request("threads") == {"threads": []}
    assert "choose one of its ranks" in editor.refusal("stackTrace", {"threadId": 1})
    wait_for(lambda: "rank 0 trains" in editor.output(), 10, "what rank 0 prints")

    assert "2" in editor.request("evaluate", {"expression": "float(value[0])"})["result"]
    assert "-2" in editor.request("evaluate", {"expression": "-float(value[0])"})["result"]
    assert "is no expression" in editor.refusal("evaluate", {"expression": "1 +"})

    sessions[1].disconnect()
    # The adapter hears of that from the launcher, a moment later.
    wait_for(lambda: editor.send("raytrainOpen", {"rank": 1}).get(timeout=60)["success"], 10, "rank 1 to be free")
    wait_for(lambda: len(editor.children) == 3, 10, "a session for rank 1 again")
    assert "is being debugged already" in editor.refusal("raytrainOpen", {"rank": 0})
    editor.request("terminate")
    ended = editor.wait_event("raytrainEnded")
    assert ended["stopped"]
    assert editor.wait_event("exited")["exitCode"] == 143
    editor.wait_event("terminated")
    assert "the debug session was stopped: the job has ended" in editor.output()
    editor.request("disconnect")
    assert editor.process.wait(10) == 0
    assert processes_in(tmp_path) == []


def test_a_detached_rank_trains_on_and_the_job_ends_by_itself(adapter):
    editor = adapter()
    editor.send("launch", {**JOB, "args": ["40", "0.02"]})
    editor.configure()
    wait_for(lambda: len(editor.children) == 2, 60, "two sessions")
    for session in [open_session(child) for child in editor.children]:
        session.wait_for_stop(30)
        session.clear_breakpoints()
        session.disconnect()
    assert editor.wait_event("exited")["exitCode"] == 0
    assert "rank 1 done 1.0" in editor.output()
    assert not editor.wait_event("raytrainEnded")["stopped"]


def test_ranks_that_nobody_waits_for_run_at_full_speed_until_one_reaches_a_breakpoint(adapter, tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import raytrain_debug\nfor i in range(3):\n    raytrain_debug.breakpoint(rank=1, times=1)\n")
    editor = adapter()
    editor.send("launch", {**JOB, "program": "train.py", "waitRanks": "none"})
    editor.configure()
    wait_for(lambda: editor.children, 60, "a session")
    session = open_session(editor.children[0], 3, script)
    session.clear_breakpoints()
    assert session.wait_for_stop(30) is not None
    assert session.evaluate("(__rank__, i)", session.stack()[0]).value == "(1, 0)"
    session.disconnect()
    assert editor.wait_event("exited")["exitCode"] == 0
    assert [child["rank"] for child in editor.children] == [1]


def test_a_rank_can_be_reached_through_an_adapter_of_its_own(adapter):
    """As dape does it, which starts the same command for every session."""
    editor = adapter()
    editor.send("launch", {**JOB, "args": ["1000", "0.05"], "waitRanks": "1"})
    editor.configure()
    wait_for(lambda: editor.children, 60, "a session")
    assert [child["rank"] for child in editor.children] == [1]
    rank = adapter()
    attached = rank.send("attach", editor.children[0])
    rank.configure(str(STEPS), IN_STEP)
    assert attached.get(timeout=30)["success"]
    assert rank.wait_event("capabilities")["capabilities"]["supportsConditionalBreakpoints"]
    thread = rank.wait_event("stopped")["threadId"]
    frames = rank.request("stackTrace", {"threadId": thread})["stackFrames"]
    assert (frames[0]["name"], frames[0]["line"]) == ("step", IN_STEP)
    rank.request("disconnect")
    assert rank.process.wait(10) == 0
    assert editor.process.poll() is None


def test_attach_takes_up_a_live_run_and_leaves_it_running(adapter, launch):
    job = launch("--nproc-per-node", "2", STEPS, "80", "0.05")
    job.wait_state("dormant", (0, 1))
    editor = adapter()
    editor.send("attach", {"name": "job", "type": "raytrain", "request": "attach", "ranks": "1"})
    editor.configure()
    assert editor.wait_event("raytrainRun")["run"] == job.paths.id
    wait_for(lambda: editor.children, 30, "a session")
    session = open_session(editor.children[0])
    assert session.wait_for_stop(30) is not None
    session.disconnect()
    editor.request("disconnect")
    assert job.wait() == 0


def test_an_editor_that_vanishes_takes_its_job_along(adapter, tmp_path):
    editor = adapter()
    editor.send("launch", {**JOB, "args": ["1000", "0.05"]})
    editor.configure()
    wait_for(lambda: len(editor.children) == 2, 60, "two sessions")
    editor.close()
    wait_for(lambda: processes_in(tmp_path) == [], 20, "the end of the job")
    run = load_run(layout.find_run(None, tmp_path / layout.ROOT_NAME))
    assert run.record is not None
    assert run.record.ended is not None


def test_a_restarted_job_gets_its_sessions_from_the_client_and_from_the_adapter(adapter, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import os\n"
        "attempt = os.environ['TORCHELASTIC_RESTART_COUNT']\n"
        "print('attempt', attempt, flush=True)\n"
        "if attempt == '0' and os.environ['RANK'] == '0':\n"
        "    os._exit(3)\n"
    )
    editor = adapter()
    editor.send("launch", {**JOB, "program": "train.py", "torchrunArgs": ["--max-restarts", "1"]})
    editor.configure()
    wait_for(lambda: len(editor.children) == 2, 60, "two sessions")
    first = {child["rank"]: open_session(child, 3, script) for child in editor.children}
    assert [session.wait_for_stop(30) is not None for session in first.values()] == [True, True]
    with contextlib.suppress(RankEnded):  # it may end before it has answered
        first[0].resume()
    wait_for(lambda: first[0].restarting and first[1].ended, 30, "the end of the attempt")
    # Rank 0's client comes back as it was told; nobody does for rank 1, so that the adapter asks again.
    first[0].attach({}, 60)
    assert first[0].wait_for_stop(30) is not None
    wait_for(lambda: len(editor.children) == 3, 30, "a session for the second attempt")
    assert editor.children[2]["rank"] == 1
    second = open_session(editor.children[2], 3, script)
    assert second.wait_for_stop(30) is not None
    for session in (first[0], second):
        session.disconnect()
    assert editor.wait_event("exited")["exitCode"] == 0


def test_a_run_that_has_ended_opens_at_its_exception(adapter, tmp_path):
    DeadRun(tmp_path)
    editor = adapter()
    attached = editor.send("attach", {"name": "dead", "type": "raytrain", "request": "attach", "postmortem": True})
    editor.configure()
    assert attached.get(timeout=30)["success"]
    wait_for(lambda: "exception" in [body["reason"] for body in editor.bodies("stopped")], 10, "its exception")
    stopped = next(body for body in editor.bodies("stopped") if body["reason"] == "exception")
    frames = editor.request("stackTrace", {"threadId": stopped["threadId"]})["stackFrames"]
    assert (frames[0]["name"], frames[0]["line"]) == ("step", RAISES)
    editor.request("disconnect")
    assert editor.process.wait(10) == 0


@pytest.mark.parametrize(
    ("command", "arguments", "words"),
    [
        ("launch", {"program": "missing.py"}, 'missing.py is not there'),
        ("launch", {}, 'name either "program"'),
        ("launch", {"program": str(STEPS), "nprocPerNode": 2, "torchrunArgs": ["--no-such"]}, "no-such"),
        ("launch", {"program": str(STEPS), "python": "/no/python"}, "cannot start /no/python"),
        ("attach", {}, "start one with: python -m raytrain_debug launch"),
        ("attach", {"postmortem": True}, "no run is recorded in"),
        ("attach", {"postmortem": "2026"}, "no run '2026' in"),
        ("attach", {"connect": {"port": 1}}, "nobody answers at 127.0.0.1:1"),
        ("attach", {"connect": "here"}, '"connect" needs a port'),
    ],
)  # fmt: skip
def test_what_cannot_be_started_is_refused_in_words(adapter, command, arguments, words):
    editor = adapter()
    assert words in editor.refusal(command, arguments)
    editor.wait_event("terminated")
    editor.request("disconnect")
    assert editor.process.wait(10) == 0
