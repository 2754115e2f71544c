"""F5 on "Ray Train: post-mortem" in a real VS Code: the dead job opens like a core dump."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from raytrain_debug.editor.configurations import POSTMORTEM_NAME, JobSpec
from raytrain_debug.editor.files import write_configurations
from tests.conftest import free_base_port, wait_for
from tests.dead_runs import RAISES, SOURCE, DeadRun
from tests.vscode.conftest import HERE
from tests.vscode.workbench import Server, Workbench, code_server


@pytest.fixture(scope="module")
def server(code_server_installation: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("code-server")
    shutil.copytree(HERE / "debugpy-stub", directory / "extensions" / "debugpy-stub")
    with code_server(code_server_installation, directory, directory / "extensions") as running:
        yield running


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A folder with a job that has died, and the configurations of its script."""
    folder = tmp_path / "workspace"
    folder.mkdir()
    DeadRun(folder)
    port = free_base_port(3) + 1
    write_configurations(JobSpec(program=str(folder / "train.py"), nproc_per_node=2, base_port=port), folder)
    return folder


def open_dead_job(window: Workbench) -> None:
    window.start_debugging(POSTMORTEM_NAME)
    wait_for(
        lambda: "loss is nan" in " ".join(window.call_stack()),
        45,
        lambda: f"the dead job\n{window.call_stack()}\n{window.complaints()}",
    )


def answers(server: Server, commands: set[str]) -> list[dict[str, Any]]:
    """The answers to `commands` that VS Code got."""
    messages = [json.loads(line)["message"] for line in server.trace.read_text().splitlines()]
    return [each for each in messages if each["type"] == "response" and each["command"] in commands]


def test_f5_opens_the_dead_job_at_its_exception(server, workspace, open_window, image):  # type: ignore[no-untyped-def]
    window = open_window(server, workspace)
    window.open_file("train.py")
    window.set_breakpoint(3)
    open_dead_job(window)
    wait_for(lambda: "caused by KeyError: 'lr'" in " ".join(window.call_stack()), 20, lambda: f"{window.call_stack()}")
    rows = window.call_stack()
    assert any("rank 1: ValueError" in row for row in rows)
    assert any("rank 0: ended with the job" in row and "in all_reduce" in row for row in rows), rows
    variables = wait_for(
        lambda: [row for row in window.variables() if row.startswith("names")], 20, "the local `names`"
    )
    assert "['a', 'b']" in variables[0]
    assert {"Scope Last report", "Scope Context", "Scope Checkpoint"} <= set(window.variables())
    shown = wait_for(lambda: window.texts(".exception-widget"), 20, "the exception in place")
    assert "loss is nan" in shown[0]
    assert window.page.locator(".monaco-editor .debug-top-stack-frame-line").count() > 0
    assert f"Ln {RAISES}" in " ".join(window.texts(".statusbar-item"))
    assert window.complaints() == []
    window.widen_side_bar(120)
    image(window, "vscode-postmortem.png")

    window.press("F10")  # a step: there is none, and it is said
    wait_for(
        lambda: any("dead" in text for text in window.complaints()), 20, lambda: f"a refusal; {window.complaints()}"
    )
    looked = answers(server, {"initialize", "attach", "threads", "stackTrace", "scopes", "variables", "exceptionInfo"})
    assert len(looked) > 6
    assert [each for each in looked if not each["success"]] == []
    window.press("Shift+F5")
    wait_for(lambda: not window.is_debugging(), 20, "the end of debugging")
    wait_for(lambda: not servers_of(workspace), 20, "the end of the server")


def test_a_file_that_has_changed_since_is_shown_as_it_was(server, workspace, open_window):  # type: ignore[no-untyped-def]
    script = workspace / "train.py"
    script.write_text("# a new first line\n" + SOURCE)
    window = open_window(server, workspace)
    window.open_file("train.py")
    open_dead_job(window)
    line = wait_for(lambda: window.texts(".monaco-editor .debug-top-stack-frame-line ~ *"), 20, "the line")
    assert line
    raises = SOURCE.splitlines()[RAISES - 1].strip()
    wait_for(lambda: raises in " ".join(window.texts(".view-line")).replace("\xa0", " "), 20, "the recorded text")
    assert "# a new first line" not in " ".join(window.texts(".view-line")).replace("\xa0", " ")
    before = len(answers(server, {"restart"}))
    window.press("Control+Shift+F5")  # the run is looked at again
    wait_for(lambda: len(answers(server, {"restart"})) > before, 30, lambda: f"a restart\n{window.complaints()}")
    assert answers(server, {"restart"})[-1]["success"]
    assert window.complaints() == []
    assert "loss is nan" in " ".join(window.call_stack())
    window.press("Shift+F5")
    wait_for(lambda: not window.is_debugging(), 20, "the end of debugging")
    wait_for(lambda: not servers_of(workspace), 20, "the end of the server")


def servers_of(workspace: Path) -> list[psutil.Process]:
    """Post-mortem servers that run in the workspace."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.cwd() == str(workspace) and "postmortem" in process.cmdline():
                found.append(process)
        except psutil.Error:
            continue
    return found
