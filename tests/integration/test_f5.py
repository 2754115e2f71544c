"""F5 on what `configure` writes, pressed by a client that plays VS Code (a real one: tests/vscode)."""

import os
import re
import socket
import subprocess
import sys

import pytest

from tests.conftest import TARGETS, free_base_port, wait_for
from tests.dap_vscode import TaskFailed, VsCode

SCRIPT = (TARGETS / "steps.py").read_text()
IN_STEP = 14


def port_is_free(port):
    with socket.socket() as each:
        each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            each.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


@pytest.fixture
def base_port():
    return free_base_port(4)


@pytest.fixture
def workspace(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path


def configure(workspace, base_port, *arguments, script_arguments=("200", "0.05")):
    subprocess.run(
        [sys.executable, "-m", "raytrain_debug", "configure", "train.py", "--base-port", str(base_port), *arguments,
         "--", *script_arguments],
        cwd=workspace, check=True, capture_output=True,
    )  # fmt: skip


def test_f5_stops_every_rank_at_a_gutter_breakpoint_and_shift_f5_ends_the_job(workspace, base_port):
    configure(workspace, base_port, "--nproc-per-node", "2")
    script = str(workspace / "train.py")
    with VsCode(workspace) as code:
        sessions = code.start_compound("Ray Train: train.py (2 ranks)", breakpoints={script: [IN_STEP]})
        assert len(sessions) == 2
        for rank, session in enumerate(sessions.values()):
            assert session.wait_stopped(60).line == IN_STEP
            assert session.evaluate("__rank__") == str(rank)
            assert session.evaluate("local") == "1.0"
        code.stop()
        wait_for(lambda: port_is_free(base_port) and port_is_free(base_port + 1), 30, "free ports")


def test_a_rank_condition_stops_one_rank_only(workspace, base_port):
    configure(workspace, base_port, "--nproc-per-node", "2", script_arguments=("20", "0.05"))
    condition = {"line": IN_STEP, "condition": "__rank__ == 1 and i == 3"}
    with VsCode(workspace) as code:
        sessions = list(
            code.start_compound(
                "Ray Train: train.py (2 ranks)", breakpoints={str(workspace / "train.py"): [condition]}
            ).values()
        )
        assert sessions[1].wait_stopped(60).line == IN_STEP
        assert sessions[1].evaluate("i") == "3"
        sessions[1].continue_()
        for session in sessions:
            session.wait_ended(60)
            assert re.search(r"rank \d finished", session.console)


def test_single_process_f5(workspace, base_port):
    (workspace / "train.py").write_text("import sys\n\nfor i in range(3):\n    last = i * i\nprint(last)\n")
    configure(workspace, base_port)
    with VsCode(workspace) as code:
        session = code.start("Ray Train: train.py (single process)", breakpoints={str(workspace / "train.py"): [4]})
        assert session.wait_stopped(60).line == 4
        assert session.evaluate("i") == "0"


def test_attaching_to_a_running_job_leaves_it_running(workspace, base_port, launch):
    job = launch(
        "--vscode", "--nproc-per-node", "2", "train.py", "150", "0.05", cwd=workspace, base_port=base_port
    )  # fmt: skip
    job.wait_state("dormant", (0, 1))
    script = str(workspace / "train.py")
    with VsCode(workspace) as code:
        sessions = code.start_compound("Ray Train: attach to the running job", breakpoints={script: [IN_STEP]})
        for session in sessions.values():
            assert session.wait_stopped(60).line == IN_STEP
        code.stop()
        job.wait_state("dormant", (0, 1))
    assert job.wait() == 0
    assert "rank 1 done 1.0" in job.output


def test_a_taken_port_fails_the_task_with_its_holder_named(workspace, base_port):
    configure(workspace, base_port, "--nproc-per-node", "2")
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", base_port + 1))
        holder.listen()
        with (
            VsCode(workspace) as code,
            pytest.raises(TaskFailed, match=rf"port {base_port + 1} is taken by .*pid {os.getpid()}"),
        ):
            code.start_compound("Ray Train: train.py (2 ranks)")
