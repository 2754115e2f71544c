"""`configure` as it is typed, and what it wrote as VS Code would use it: the task started, its ports attached to."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from raytrain_debug.dap.session import Session
from raytrain_debug.editor import jsonc
from tests.conftest import Launch, free_base_port, wait_for

SCRIPT = """\
import os, sys
rank = os.environ.get("RANK", "alone")
print("rank", rank, "got", sys.argv[1:], flush=True)
"""


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path


def configure(workspace: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "raytrain_debug", "configure", *arguments],
        cwd=workspace,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def read(workspace: Path, name: str) -> Any:
    return jsonc.parse((workspace / ".vscode" / name).read_text()).value


class Task:
    """A background task of tasks.json, run as VS Code runs it."""

    def __init__(self, workspace: Path, label: str) -> None:
        (task,) = [each for each in read(workspace, "tasks.json")["tasks"] if each["label"] == label]
        folder = {"${workspaceFolder}": str(workspace)}

        def filled(text: str) -> str:
            for variable, value in folder.items():
                text = text.replace(variable, value)
            return text

        assert task["type"] == "process"
        assert task["isBackground"]
        self.matcher = task["problemMatcher"]
        self.log = workspace / "task.log"
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                [filled(task["command"]), *map(filled, task["args"])],
                cwd=filled(task["options"]["cwd"]),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                start_new_session=True,
            )

    def seen(self, pattern: str) -> re.Match[str] | None:
        return re.search(pattern, self.log.read_text(errors="replace"), re.MULTILINE)

    def wait_ready(self) -> None:
        """Until VS Code would start the debug sessions."""
        background = self.matcher["background"]
        wait_for(lambda: self.seen(background["endsPattern"]) or self.process.poll() is not None, 60, "the end pattern")
        assert self.process.poll() is None, self.log.read_text()
        assert self.seen(background["beginsPattern"])
        assert not self.seen(self.matcher["pattern"]["regexp"])


def attach(entry: dict[str, Any]) -> Session:
    """A client that sends what VS Code sends: every property of the configuration."""
    session = Session(entry["connect"]["host"], entry["connect"]["port"], entry["name"])
    session.attach(entry, timeout=60)
    return session


def test_what_was_written_is_said_and_a_second_time_nothing_changes(workspace: Path) -> None:
    done = configure(workspace, "train.py", "--nproc-per-node", "2", "--", "--lr", "0.1", "--", "-m")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[:2] == ["wrote .vscode/tasks.json", "wrote .vscode/launch.json"]
    assert '"Ray Train: train.py (2 ranks)"' in done.stdout
    assert "F5" in done.stdout
    assert read(workspace, "tasks.json")["tasks"][0]["args"][-5:] == ["train.py", "--lr", "0.1", "--", "-m"]
    assert read(workspace, "tasks.json")["tasks"][0]["command"] == sys.executable
    again = configure(workspace, "--nproc-per-node=2", "train.py", "--", "--lr", "0.1", "--", "-m")
    assert again.stdout.splitlines()[:2] == ["unchanged: .vscode/tasks.json", "unchanged: .vscode/launch.json"]


def test_a_dry_run_shows_a_diff_and_json_says_the_same_for_programs(workspace: Path) -> None:
    done = configure(workspace, "train.py", "--dry-run")
    assert '+            "label": "Ray Train: launch train.py (single process)",' in done.stdout
    assert not (workspace / ".vscode").exists()
    told = json.loads(configure(workspace, "train.py", "--nproc-per-node", "1", "--json", "--dry-run").stdout)
    assert told["start"] == "Ray Train: train.py (1 rank)"
    assert [Path(file["path"]).name for file in told["files"]] == ["tasks.json", "launch.json"]
    assert all(file["changed"] and file["created"] and file["diff"] for file in told["files"])
    assert told["tasks"] == [
        "Ray Train: launch train.py (1 rank)",
        "Ray Train: launch train.py (single process)",
        "Ray Train: post-mortem",
    ]
    assert not (workspace / ".vscode").exists()
    configure(workspace, "train.py")
    assert "nothing to change" in configure(workspace, "train.py", "--dry-run").stdout


def test_several_nodes_are_configured_and_the_command_for_each_is_told(workspace: Path) -> None:
    arguments = ["train.py", "--nnodes", "2", "--nproc-per-node", "2", "--node-hosts", "10.0.0.1,10.0.0.2"]
    done = configure(workspace, *arguments, "--", "a b")
    assert done.returncode == 0, done.stderr
    for host in ("10.0.0.1", "10.0.0.2"):
        assert f"launch --host {host} --wait all" in done.stdout
    assert "train.py 'a b'" in done.stdout
    connects = [entry["connect"] for entry in read(workspace, "launch.json")["configurations"]]
    assert [f"{each['host']}:{each['port']}" for each in connects] == [
        "10.0.0.1:5678",
        "10.0.0.1:5679",
        "10.0.0.2:5680",
        "10.0.0.2:5681",
    ]


@pytest.mark.parametrize(
    ("arguments", "what", "remedy"),
    [
        ([], "name a script", "configure SCRIPT"),
        (["nope.py"], "no script nope.py", "-m MODULE"),
        (["train.py", "-m", "train"], "name a script", "configure SCRIPT"),
        (["train.py", "--nproc-per-node", "gpu"], "--nproc-per-node gpu", "--nproc-per-node N"),
        (["train.py", "--nproc-per-node", "0"], "--nproc-per-node 0", "1 or more"),
        (["train.py", "--base-port", "65536"], "65536", "--base-port"),
        (["train.py", "--nproc-per-node", "2", "--nnodes", "2"], "2 node(s) but 0 host(s)", "--node-hosts a,b"),
        (["train.py", "--nproc-per-node", "2", "--nnodes", "2", "--node-hosts", "a"], "but 1 host", "--node-hosts"),
        (["train.py", "--node-hosts", "a,"], "empty host", "--node-hosts a,b"),
        (["train.py", "--python", "./no-such"], "--python ./no-such", "raytrain_debug"),
        (["train.py", "--workspace", "nowhere"], "--workspace nowhere", "folder"),
        (["train.py", "--launch-args", "'"], "--launch-args", "quote"),
    ],
)
def test_a_wrong_command_line_is_told_with_the_remedy(
    workspace: Path, arguments: list[str], what: str, remedy: str
) -> None:
    done = configure(workspace, *arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    first, *rest = done.stderr.splitlines()
    assert what in first
    assert remedy in "\n".join(rest)
    assert not (workspace / ".vscode").exists()


def test_a_broken_file_ends_it_with_code_1_and_the_place(workspace: Path) -> None:
    (workspace / ".vscode").mkdir()
    path = workspace / ".vscode" / "launch.json"
    path.write_text('{\n  "configurations": [\n')
    done = configure(workspace, "train.py")
    assert done.returncode == 1
    assert "launch.json, line 2, column 21: this [ is never closed" in done.stderr
    assert path.read_text() == '{\n  "configurations": [\n'


def test_f5_on_the_compound_starts_the_job_and_every_session_finds_its_rank(workspace: Path) -> None:
    configure(workspace, "train.py", "--nproc-per-node", "2", "--base-port", str(free_base_port(2)), "--", "x y", "$z")
    launch = read(workspace, "launch.json")
    entries = {entry["name"]: entry for entry in launch["configurations"]}
    task = Task(workspace, launch["compounds"][0]["preLaunchTask"])
    try:
        task.wait_ready()
        for name in launch["compounds"][0]["configurations"]:
            attach(entries[name])
        assert task.process.wait(60) == 0, task.log.read_text()
    finally:
        task.process.kill()
    for rank in (0, 1):
        assert f"rank {rank} got ['x y', '$z']" in task.log.read_text()


def test_f5_on_the_single_process_runs_it_without_torchrun(workspace: Path) -> None:
    configure(workspace, "train.py", "--base-port", str(free_base_port(1)))
    entries = read(workspace, "launch.json")["configurations"]
    (entry,) = [each for each in entries if each["name"] == "Ray Train: train.py (single process)"]
    task = Task(workspace, entry["preLaunchTask"])
    try:
        task.wait_ready()
        attach(entry)
        assert task.process.wait(60) == 0, task.log.read_text()
    finally:
        task.process.kill()
    assert "rank alone got []" in task.log.read_text()


def test_a_task_that_cannot_start_the_job_leaves_a_problem_for_vs_code(workspace: Path) -> None:
    port = free_base_port(1)
    configure(workspace, "train.py", "--nproc-per-node", "1", "--base-port", str(port))
    with socket.create_server(("127.0.0.1", port)):
        task = Task(workspace, "Ray Train: launch train.py (1 rank)")
        assert task.process.wait(60) == 1
    problem = task.seen(task.matcher["pattern"]["regexp"])
    assert problem is not None
    assert f"port {port}" in problem.group(task.matcher["pattern"]["message"])
    assert not task.seen(task.matcher["background"]["endsPattern"])


def test_launch_writes_the_configurations_of_exactly_its_job(workspace: Path, launch: Callable[..., Launch]) -> None:
    job = launch("--vscode", "--nproc-per-node", "1", "--max-restarts", "3", "--keep-checkpoints", "1", "train.py", "7")
    assert job.wait() == 0
    assert "wrote .vscode/launch.json" in job.output
    value = read(workspace, "launch.json")
    ports = [each["connect"]["port"] for each in value["configurations"]]
    assert ports == [job.base_port, job.base_port, job.base_port - 1]
    assert [each["name"] for each in value["compounds"]] == [
        "Ray Train: train.py (1 rank)",
        "Ray Train: attach to the running job",
    ]
    args = read(workspace, "tasks.json")["tasks"][0]["args"]
    assert args[args.index("--base-port") :] == [
        "--base-port",
        str(job.base_port),
        "--keep-checkpoints=1",
        "--max-restarts=3",
        "--nproc-per-node",
        "1",
        "train.py",
        "7",
    ]
