"""F5 on what `configure` wrote, in a real VS Code with no extension of ours."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.conftest import REPOSITORY, free_base_port, wait_for
from tests.vscode.conftest import HERE
from tests.vscode.workbench import Server, Workbench, code_server

SCRIPT = "digits_ddp.py"
SOURCE = (REPOSITORY / "examples" / SCRIPT).read_text()
BREAKPOINT = SOURCE[: SOURCE.index("loss.backward()")].count("\n") + 1
COMPOUND = f"Ray Train: {SCRIPT} (2 ranks)"
ATTACH = "Ray Train: attach to the running job"


@pytest.fixture(scope="module")
def server(code_server_installation: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("code-server")
    shutil.copytree(HERE / "debugpy-stub", directory / "extensions" / "debugpy-stub")
    with code_server(code_server_installation, directory, directory / "extensions") as running:
        yield running


def make_workspace(directory: Path, epochs: int) -> tuple[Path, int]:
    """A folder with the digits example configured for two ranks, and its base port."""
    workspace, base_port = directory / "workspace", free_base_port(2)
    workspace.mkdir()
    shutil.copy(REPOSITORY / "examples" / SCRIPT, workspace)
    command = [sys.executable, "-m", "raytrain_debug", "configure", SCRIPT, "--nproc-per-node", "2"]
    command += ["--base-port", str(base_port), "--", "--epochs", str(epochs)]
    subprocess.run(command, cwd=workspace, check=True, capture_output=True, timeout=60)
    return workspace, base_port


def is_free(port: int) -> bool:
    """Whether the port can be bound on both loopback addresses. It is never connected to: that would be a client."""
    for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError as error:
                if "in use" in str(error):
                    return False
    return True


def processes_of(workspace: Path) -> list[psutil.Process]:
    """The launchers and ranks that run in the workspace."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.cwd() == str(workspace) and "raytrain_debug" in " ".join(process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return found


def is_paused(window: Workbench) -> bool:
    """Whether the call stack shows both ranks paused at a breakpoint."""
    wanted = {f"Session Rank {rank}: {SCRIPT} Paused on breakpoint" for rank in (0, 1)}
    return wanted <= set(window.call_stack())


def wait_paused(window: Workbench) -> None:
    wait_for(
        lambda: is_paused(window),
        45,
        lambda: f"both ranks paused\n{window.call_stack()}\n{window.complaints()}",
    )


def test_f5_stops_both_ranks_and_the_end_of_debugging_ends_the_job(server, tmp_path, open_window, image):
    workspace, base_port = make_workspace(tmp_path, epochs=20)
    window = open_window(server, workspace)
    window.open_file(SCRIPT)
    window.set_breakpoint(BREAKPOINT)
    window.press("F5")
    wait_paused(window)
    variables = wait_for(lambda: [row for row in window.variables() if row.startswith("loss")], 20, "the local `loss`")
    assert "tensor(" in variables[0]
    assert window.complaints() == []
    window.widen_side_bar(120)
    image(window, "vscode-two-ranks.png")

    window.press("Shift+F5")
    wait_for(lambda: not window.is_debugging(), 20, "the end of debugging")
    wait_for(lambda: not processes_of(workspace), 20, lambda: f"the end of {processes_of(workspace)}")
    assert is_free(base_port)
    assert is_free(base_port + 1)


def test_attaches_to_a_job_of_a_terminal_and_leaves_it_running(server, tmp_path, open_window, launch):
    workspace, base_port = make_workspace(tmp_path, epochs=60)
    window = open_window(server, workspace)
    window.open_file(SCRIPT)
    window.set_breakpoint(BREAKPOINT)
    job = launch("--nproc-per-node", "2", SCRIPT, "--epochs", "12", cwd=workspace, base_port=base_port)
    job.wait_state("dormant", (0, 1))
    window.start_debugging(ATTACH)
    wait_paused(window)
    window.press("Shift+F5")
    wait_for(lambda: not window.is_debugging(), 20, "the end of debugging")
    assert job.wait() == 0
    assert "done: accuracy 0.9" in job.output
