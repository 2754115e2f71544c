"""F5 on "Ray Train: post-mortem", with a debug client that plays VS Code: the task, the attach, every request."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from raytrain_debug.editor.configurations import POSTMORTEM_NAME, JobSpec
from raytrain_debug.editor.files import write_configurations
from raytrain_debug.errors import DapError
from tests.conftest import free_base_port, wait_for
from tests.dap_vscode import TaskFailed, VsCode
from tests.dead_runs import RAISES, DeadRun


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A folder with a job that has died, and the configurations of its script."""
    DeadRun(tmp_path)
    write_configurations(JobSpec(program=str(tmp_path / "train.py"), base_port=free_base_port(2) + 1), tmp_path)
    return tmp_path


@pytest.fixture
def code(workspace: Path) -> Iterator[VsCode]:
    with VsCode(workspace) as window:
        yield window


def test_f5_opens_the_dead_job_at_its_exception_and_leaves_nothing_behind(code: VsCode, workspace: Path) -> None:
    script = workspace / "train.py"
    session = code.start(POSTMORTEM_NAME, breakpoints={script: [3]})
    assert [each["verified"] for each in session.set_breakpoints] == [False]
    stop = session.wait_stopped()
    assert (stop.reason, stop.file, stop.line, stop.function) == ("exception", str(script), RAISES, "step")
    assert stop.locals["names"] == "['a', 'b']"
    assert stop.text == "ValueError"
    threads = session.request("threads")["threads"]
    assert {each["name"] for each in threads} >= {"rank 0: ended with the job", "rank 1: ValueError"}
    assert session.request("exceptionInfo", {"threadId": stop.thread_id})["exceptionId"] == "ValueError"
    assert session.evaluate('checkpoint["model.pt"]["0.weight"].norm()') == "tensor(6.)"
    assert session.evaluate("names", context="hover") == "['a', 'b']"
    assert "Rank 1 failed first" in session.console
    for command in ("continue", "next", "stepIn", "stepOut", "pause"):
        with pytest.raises(DapError, match="dead"):
            session.request(command, {"threadId": stop.thread_id})
    session.stop()
    assert code.tasks[0].wait() == 0


def test_f5_on_a_run_that_is_not_there_leaves_a_problem(code: VsCode, workspace: Path) -> None:
    (workspace / ".raytrain_debug").rename(workspace / "gone")
    with pytest.raises(TaskFailed, match=r"raytrain_debug: error: no run is recorded"):
        code.start(POSTMORTEM_NAME)


def test_without_once_debuggers_come_and_go_until_it_is_stopped(workspace: Path) -> None:
    port = free_base_port(1)
    command = [sys.executable, "-m", "raytrain_debug", "postmortem", "--serve", str(port)]
    with subprocess.Popen(command, cwd=workspace, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        try:
            assert server.stderr.readline() == "raytrain_debug: opening the run\n"
            assert server.stderr.readline() == f"raytrain_debug: post-mortem ready on 127.0.0.1:{port}\n"
            write_configurations(JobSpec(program=str(workspace / "train.py"), base_port=port + 1), workspace)
            for _ in range(2):
                with VsCode(workspace) as code:
                    session = code._start([configuration_of(code)], {}, 30)[POSTMORTEM_NAME]
                    assert session.wait_stopped().line == RAISES
            server.send_signal(signal.SIGINT)
            assert server.wait(20) == 0
            assert server.stderr.read() == ""
        finally:
            server.kill()


def configuration_of(code: VsCode) -> dict[str, object]:
    """The post-mortem as it is attached to when its server runs already."""
    (found,) = [each for each in code.launch_json["configurations"] if each["name"] == POSTMORTEM_NAME]
    return {key: value for key, value in found.items() if key != "preLaunchTask"}


def test_a_real_job_that_fails_is_opened(tmp_path: Path, launch) -> None:  # type: ignore[no-untyped-def]
    """What a rank writes at its death, read by what shows it."""
    script = tmp_path / "fails.py"
    script.write_text(REAL)
    base_port = free_base_port(3) + 1
    job = launch("--nproc-per-node", "2", "fails.py", base_port=base_port)
    assert job.wait() != 0
    write_configurations(JobSpec(program=str(script), nproc_per_node=2, base_port=base_port), tmp_path)
    with VsCode(tmp_path) as code:
        session = code.start(POSTMORTEM_NAME)
        stop = session.wait_stopped()
        assert (stop.reason, stop.file, stop.function) == ("exception", str(script), "step")
        assert REAL.splitlines()[stop.line - 1].strip().startswith("raise ValueError")
        assert session.evaluate("batch['x'].sum().item()") == "15.0"
        assert session.evaluate("model.weight.shape") == "torch.Size([1, 2])"
        assert session.evaluate("checkpoint['model.pt']['weight'].sum().item()") == "2.0"
        assert session.evaluate("context['world_size']") == "2"
        names = {thread["name"]: thread["id"] for thread in session.request("threads")["threads"]}
        assert "rank 1: ValueError" in names
        (other_id,) = [number for name, number in names.items() if name.startswith("rank 0: ")]
        other = session.request("stackTrace", {"threadId": other_id})["stackFrames"]
        assert {"train"} <= {frame["name"] for frame in other}
        (frame,) = [frame for frame in other if frame["name"] == "train"]
        answer = session.request("evaluate", {"expression": "mine['x']", "frameId": frame["id"], "context": "repl"})
        assert answer["result"].startswith("tensor([[0., 1., 2.]")
        session.stop()
        wait_for(lambda: code.tasks[0].process.poll() is not None, 20, "the end of the server")


REAL = """
import pathlib, tempfile

import ray.train
import torch
import torch.distributed
from ray.train.torch import TorchTrainer


def step(model, batch):
    if batch["rank"] == 1:
        raise ValueError("a planted fault")


def train():
    rank = ray.train.get_context().get_world_rank()
    model = torch.nn.Linear(2, 1)
    torch.nn.init.ones_(model.weight)
    mine = {"x": torch.arange(6.0).reshape(2, 3), "rank": rank}
    with tempfile.TemporaryDirectory() as directory:
        torch.save(model.state_dict(), pathlib.Path(directory, "model.pt"))
        ray.train.report({"loss": 0.5}, checkpoint=ray.train.Checkpoint.from_directory(directory))
    step(model, mine)
    torch.distributed.barrier()


TorchTrainer(train, scaling_config=ray.train.ScalingConfig(num_workers=0)).fit()
"""
