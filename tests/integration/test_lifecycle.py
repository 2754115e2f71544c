"""Back to full speed: after a debugger has gone, by whatever way, nothing of it is left in a rank, on every Python."""

from __future__ import annotations

import json
import signal
import socket
import struct
import subprocess
import sys
from typing import Any

import pexpect
import pytest

from tests.conftest import REPOSITORY, TARGETS, Launch, wait_for
from tests.dap_vscode import DebugSession, VsCode
from tests.interpreters import OURS, VERSIONS, interpreter

UNTRACED = TARGETS / "untraced.py"
IN_STEP = next(
    number
    for number, line in enumerate(UNTRACED.read_text().splitlines(), 1)
    if line.endswith("# a breakpoint goes here")
)


def look(job: Launch) -> dict[str, Any]:
    """What the running target says of itself now."""
    answer = job.cwd / "look.json"
    answer.unlink(missing_ok=True)
    (job.cwd / "look").touch()
    wait_for(answer.exists, 20, lambda: f"an answer of the target:\n{job.output}")
    found: dict[str, Any] = json.loads(answer.read_text())
    return found


def left_over(job: Launch) -> dict[str, list[str]]:
    """What a debugger has left in each thread of the running target, as the threads themselves say."""
    return {place: traces for place, traces in look(job).items() if traces and place != "turns"}


def finish(job: Launch) -> None:
    (job.cwd / "stop").touch()
    assert job.wait(30) == 0, job.output
    assert "done" in job.output


def turns(job: Launch) -> int:
    return int(look(job)["turns"]["main"])


# Each of these debugs the rank, leaves it in its own way while it stands at a breakpoint, and says nothing more to it.


def by_disconnecting(job: Launch) -> None:
    session = job.session()
    session.set_breakpoint(str(UNTRACED), line=IN_STEP)
    assert session.wait_for_stop(20) is not None
    session.disconnect()


def at_a_function(job: Launch) -> None:
    session = job.session()
    session.set_function_breakpoint("step")
    stop = session.wait_for_stop(20)
    assert stop is not None
    assert (stop.reason, session.stack()[0].name) == ("function breakpoint", "step")
    session.disconnect()


def by_disconnecting_in_vscode(job: Launch) -> None:
    session = vscode_session(job, redirectOutput=True)
    session.start()
    assert session.wait_stopped().line == IN_STEP
    session.disconnect()


def by_a_lost_connection(job: Launch) -> None:
    session = job.session()
    session.set_breakpoint(str(UNTRACED), line=IN_STEP)
    assert session.wait_for_stop(20) is not None
    session._client._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    session._client.close()


def in_the_middle_of_a_step(job: Launch) -> None:
    session = job.session()
    session.set_breakpoint(str(UNTRACED), line=IN_STEP)
    assert session.wait_for_stop(20) is not None
    session.clear_breakpoints()
    session.resume("next")
    session._client.close()


def by_q_in_the_terminal(job: Launch) -> None:
    commands = ["-c", f"b {UNTRACED}:{IN_STEP}", "-c", "c", "-c", "p 'value is', value", "-c", "q"]
    done = subprocess.run([*ATTACH, *commands], cwd=job.cwd, capture_output=True, text=True, timeout=30)
    assert "value is" in done.stdout, done


def by_killing_the_terminal(job: Launch) -> None:
    terminal = pexpect.spawn(ATTACH[0], ATTACH[1:], cwd=str(job.cwd), timeout=30)
    terminal.expect("h lists the commands")
    terminal.sendline(f"b {UNTRACED}:{IN_STEP}")
    terminal.expect("reakpoint 1")
    terminal.sendline("c")
    terminal.expect("a breakpoint goes here")
    terminal.kill(signal.SIGKILL)
    terminal.wait()


def vscode_session(job: Launch, **more: Any) -> DebugSession:
    configuration = {"name": "rank 0", "connect": {"host": "127.0.0.1", "port": job.base_port}, "justMyCode": False}
    return DebugSession(VsCode(job.cwd), {**configuration, **more}, {str(UNTRACED): [IN_STEP]})


ATTACH = [sys.executable, "-m", "raytrain_debug", "attach", "--rank", "0"]
SOCKETS = (by_disconnecting_in_vscode, by_a_lost_connection, in_the_middle_of_a_step, by_disconnecting, at_a_function)
TERMINALS = (by_q_in_the_terminal, by_killing_the_terminal)


@pytest.mark.parametrize("version", VERSIONS)
def test_twenty_debuggers_come_and_go_and_leave_no_trace(launch, version):
    come_and_go(launch, interpreter(version), (*SOCKETS, *TERMINALS) if version == OURS else SOCKETS)


def test_debuggers_come_and_go_where_pydevd_has_no_library_for_the_processor(launch):
    # Only the main thread can be reached there; the others keep a mark in their frames that does nothing.
    env, only = {"PYDEVD_LOAD_NATIVE_LIB": "NO"}, {"main", "young", "process"}
    come_and_go(launch, sys.executable, SOCKETS, rounds=5, env=env, only=only)


def come_and_go(launch, python: str, leaving, rounds: int = 20, env=None, only: set[str] | None = None) -> None:
    job = launch("--no-torchrun", UNTRACED, python=python, env={"PYTHONPATH": str(REPOSITORY), **(env or {})})
    job.wait_state("dormant")
    assert left_over(job) == {}
    for turn in range(rounds):
        leaving[turn % len(leaving)](job)
        job.wait_state("dormant")
        before = turns(job)

        def is_clean() -> bool:
            return not [place for place in left_over(job) if only is None or place in only]

        wait_for(is_clean, 20, "no trace of a debugger")
        assert turns(job) > before
    finish(job)
