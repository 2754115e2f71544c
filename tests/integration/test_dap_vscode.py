"""What VS Code does on F5, played by a client without a window, on what `configure` wrote."""

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from raytrain_debug.errors import DapError
from tests.conftest import TARGETS, free_base_port, wait_for
from tests.dap_vscode import TaskFailed, VsCode

LOOP = TARGETS / "loop.py"
SEEN = next(number for number, text in enumerate(LOOP.read_text().splitlines(), 1) if 'seen["steps"] =' in text)
JOB, ATTACH, SINGLE = (
    "Ray Train: train.py (2 ranks)",
    "Ray Train: attach to the running job",
    "Ray Train: train.py (single process)",
)
RANKS = ["Rank 0: train.py", "Rank 1: train.py"]


@pytest.fixture
def workspace(tmp_path):
    """A folder with a script and the configurations for two ranks of it."""
    (tmp_path / "train.py").write_text(LOOP.read_text())
    base_port = str(free_base_port(2))
    command = ["-m", "raytrain_debug", "configure", "train.py", "--nproc-per-node", "2", "--base-port", base_port]
    subprocess.run([sys.executable, *command], cwd=tmp_path, check=True, capture_output=True)
    return tmp_path


def test_f5_stops_every_rank_at_a_gutter_breakpoint_and_stopping_ends_the_job(workspace):
    script = workspace / "train.py"
    with VsCode(workspace) as code:
        breakpoints = {script: [{"line": SEEN, "condition": "number == 2 + __rank__"}]}
        sessions = code.start_compound(JOB, breakpoints)
        assert sorted(sessions) == RANKS
        for rank, name in enumerate(RANKS):
            stopped = sessions[name].wait_stopped()
            assert (stopped.reason, Path(stopped.file), stopped.line) == ("breakpoint", script, SEEN)
            assert stopped.locals["number"] == str(2 + rank)
            assert sessions[name].evaluate("__rank__") == str(rank)
            assert all(each["verified"] for each in sessions[name].set_breakpoints)
        first = sessions[RANKS[0]]
        first.step("next")
        assert first.wait_stopped().line == SEEN + 1
        first.continue_()
        first.pause()
        assert first.wait_stopped().reason == "pause"
        processes = psutil.Process(code.tasks[0].process.pid).children(recursive=True)
        first.stop()
        assert sessions[RANKS[1]].ended, "stopAll does not stop the sibling"
        code.tasks[0].wait()
        wait_for(lambda: not any(each.is_running() for each in processes), what="the ranks to end")


def test_the_attach_compound_takes_up_a_job_that_a_terminal_started_and_leaves_it(workspace, launch):
    base_port = VsCode(workspace).launch_json["configurations"][0]["connect"]["port"]
    job = launch("--nproc-per-node", "2", "train.py", cwd=workspace, base_port=base_port)
    job.wait_state("dormant", (0, 1))
    with VsCode(workspace) as code:
        sessions = code.start_compound(ATTACH, {workspace / "train.py": [SEEN]})
        assert [sessions[name].wait_stopped().line for name in RANKS] == [SEEN, SEEN]
        assert job.status()[1]["client"] == "Visual Studio Code"
        assert code.tasks == []
    job.wait_state("dormant", (0, 1))
    (workspace / "stop").touch()
    assert job.wait() == 0


def test_a_session_attaches_again_to_a_rank_that_starts_anew(workspace, launch):
    base_port = VsCode(workspace).launch_json["configurations"][0]["connect"]["port"]
    arguments = ["--nproc-per-node", "1", "--max-restarts", "1", "train.py"]
    job = launch(*arguments, cwd=workspace, base_port=base_port)
    job.wait_state("dormant")
    with VsCode(workspace) as code:
        session = code.start(RANKS[0], {workspace / "train.py": [SEEN]})
        session.wait_stopped()
        psutil.Process(job.status()[0]["pid"]).kill()
        session.wait_attached_again()
        assert "rank 0 was killed by SIGKILL" in session.console
        assert session.wait_stopped().line == SEEN
        (workspace / "stop").touch()
        session.request("setBreakpoints", {"source": {"path": str(workspace / "train.py")}, "breakpoints": []})
        session.continue_()
        session.wait_ended()
        assert "rank 0 finished" in session.console
    assert job.wait() == 0


def test_what_vs_code_shows_as_a_dialog_is_an_error(workspace):
    with VsCode(workspace) as code:
        with pytest.raises(DapError, match="Connection refused"):
            code.start_compound(ATTACH)
        tasks = workspace / ".vscode" / "tasks.json"
        # A Python that does not have us installed.
        tasks.write_text(tasks.read_text().replace('"-m"', '"-I", "-S", "-m"'))
        with pytest.raises(TaskFailed, match="No module named raytrain_debug"):
            code.start(SINGLE)
