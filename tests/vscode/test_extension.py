"""Our extension in a real VS Code, as it is shipped: F5 without launch.json, the view, comparisons, the report.

The stock Python Debugger is there beside it (as a stand-in), as it is for most people.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from raytrain_debug.run import codec, layout, writer
from raytrain_debug.run.reader import load_run
from raytrain_debug.run.records import CallSite, ReportRecord, to_dict
from tests.conftest import REPOSITORY, wait_for
from tests.dead_runs import DeadRun
from tests.vscode.conftest import HERE
from tests.vscode.test_stock import is_free, processes_of
from tests.vscode.workbench import Server, Workbench, code_server

DIGITS = (REPOSITORY / "examples" / "digits_ddp.py").read_text()
BREAKPOINT = DIGITS[: DIGITS.index("loss.backward()")].count("\n") + 1
VIEW = "Ray Train"
CRASHING = """\
import os
import torch.distributed as dist

dist.init_process_group("gloo")


def step(value):
    if os.environ["RANK"] == "1":
        raise ValueError(f"<b>planted</b> {value}")
    dist.barrier()


step(3)
"""
# Goes on until somebody makes a file "enough".
LOOP = """\
import os
import time
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
world = dist.get_world_size()


def step(i):
    enough = torch.tensor(float(os.path.exists("enough")))
    dist.all_reduce(enough)
    time.sleep(0.02)
    return enough.item() == 0


i = 0
while step(i):
    i += 1
dist.destroy_process_group()
"""
SLEEP = LOOP[: LOOP.index("    time.sleep")].count("\n") + 1
# Each attempt waits for a file; rank 0 dies in the first.
ELASTIC = """\
import os
import time

attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
while not os.path.exists("go-" + attempt):
    time.sleep(0.05)
if attempt == "0":
    if os.environ["RANK"] == "0":
        os._exit(3)
    time.sleep(600)
"""


@pytest.fixture(scope="module")
def server(
    code_server_installation: Path, extension: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("code-server")
    shutil.copytree(extension, directory / "extensions" / "raytrain-debug.raytrain-debug-0.1.0")
    for stub in ("debugpy-stub", "python-stub"):
        shutil.copytree(HERE / stub, directory / "extensions" / stub)
    settings = {"raytrain.python": sys.executable}
    with code_server(code_server_installation, directory, directory / "extensions", settings) as running:
        yield running


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    folder.mkdir()
    for name, source in [("digits_ddp.py", DIGITS), ("crash.py", CRASHING), ("loop.py", LOOP), ("elastic.py", ELASTIC)]:
        (folder / name).write_text(source)
    return folder


def f5(window: Workbench, ranks: str = "2 ranks") -> None:
    """Press F5 where there is no launch.json, and answer what VS Code and the extension ask."""
    window.press("F5")
    window.pick("Ray Train")
    window.pick(ranks)


def wait_rows(window: Workbench, *wanted: str) -> None:
    """Wait until each of `wanted` is the beginning of a row of the call stack."""
    wait_for_rows(window, window.call_stack, wanted)


def wait_view(window: Workbench, *wanted: str) -> None:
    """Wait until each of `wanted` is the beginning of a row of our view."""
    wait_for_rows(window, lambda: window.pane_rows(VIEW), wanted)


def wait_for_rows(window, rows, wanted):
    def there() -> bool:
        found = rows()
        return all(any(row.startswith(each) for row in found) for each in wanted)

    wait_for(there, 90, lambda: f"{wanted} in {rows()}\n{window.complaints()}\n{window.side_bar()}")


def wait_no_debugging(window: Workbench) -> None:
    wait_for(lambda: not window.is_debugging(), 40, lambda: f"the end of debugging; {window.call_stack()}")


def wait_line(window: Workbench, line: int) -> None:
    said: dict[str, None] = {}  # complaints vanish after a while

    def there() -> bool:
        said.update(dict.fromkeys(window.complaints()))
        return window.position().startswith(f"Ln {line},")

    wait_for(there, 30, lambda: f"line {line}, not {window.position()}\n{list(said)}")


def open_view(window: Workbench) -> None:
    window.press("Control+Shift+d")
    window.open_pane(VIEW)


def refusals(server: Server) -> list[dict[str, Any]]:
    """The requests of all windows that were refused, for the words of a test that fails."""
    messages = [json.loads(line)["message"] for line in server.trace.read_text().splitlines()]
    return [each for each in messages if each["type"] == "response" and not each["success"]]


def write_report(run: layout.RunPaths, rank: int, index: int) -> None:
    """Leave what `ray.train.report` leaves."""
    report = ReportRecord(index, time.time(), 0, {}, {"loss": 0.5}, None, CallSite("train.py", 1, "train"))
    writer.append_line(run.rank(rank).reports, codec.dumps(to_dict(report)))


def test_f5_without_launch_json_debugs_every_rank(server, workspace, open_window, image):
    window = open_window(server, workspace)
    window.open_file("digits_ddp.py")
    window.set_breakpoint(BREAKPOINT)
    f5(window)
    paused = [f"Session rank {rank} Paused on breakpoint" for rank in (0, 1)]
    wait_rows(window, "Session Ray Train: digits_ddp.py (2 ranks) Running", *paused)
    assert window.complaints() == []
    ports = load_run(layout.find_run(None, workspace / layout.ROOT_NAME)).record.launcher.ports.values()

    open_view(window)
    wait_view(window, "digits_ddp.py running", "rank 0 paused", "rank 1 paused")
    window.press("Control+j")  # no panel below: room for a picture

    window.press("Control+1")
    window.go_to_line(BREAKPOINT, 9)
    window.press("Control+Shift+ArrowRight")
    window.run_command("Ray Train: Compare across Ranks")
    values = [
        row.split("\t") for row in window.webview("Compare across Ranks").locator("table").inner_text().splitlines()
    ]
    assert [row[0] for row in values] == ["ranks", "0", "1"]
    assert all(2 < float(row[1]) < 3 for row in values[1:])
    wait_for(lambda: "rank 1" in "".join(window.texts(".monaco-hover")), 30, "the values as a hover")
    window.widen_side_bar(60)
    image(window, "vscode-extension.png")

    window.run_command("Ray Train: Merged Stacks")
    stacks = window.webview("train_one_epoch")
    assert "ranks 0-1" in stacks.locator("body").inner_text()
    stacks.locator(".place").filter(has_text="digits_ddp.py").first.click()
    wait_line(window, DIGITS[: DIGITS.rindex("    main()")].count("\n") + 1)
    window.click_row(VIEW, "rank 1")
    wait_line(window, BREAKPOINT)

    window.run_command("Ray Train: Step All Ranks Over")
    wait_rows(window, "Session rank 0 Paused on step", "Session rank 1 Paused on step")

    window.click_action(VIEW, "rank 1", "Detach")
    wait_view(window, "rank 0 paused", "rank 1 dormant")
    wait_for(lambda: not any("rank 1" in row for row in window.call_stack()), 30, "rank 1 gone from the call stack")
    window.click_action(VIEW, "rank 1", "Attach")
    wait_rows(window, "Session rank 1 Running")

    window.click_action(VIEW, "digits_ddp.py", "Stop the Job")
    wait_no_debugging(window)
    wait_view(window, "digits_ddp.py stopped")
    wait_for(lambda: not processes_of(workspace), 30, lambda: f"the end of {processes_of(workspace)}")
    assert all(is_free(port) for port in ports)
    assert window.complaints() == []


def test_a_crash_stops_where_it_happens_and_opens_the_report(server, workspace, open_window, image):
    window = open_window(server, workspace)
    window.open_file("crash.py")
    f5(window)
    wait_rows(window, "Session rank 1 <b>planted</b> 3", "Stack Frame step, line 9")
    window.press("F5")
    report = window.webview("Rank 1 failed first with ValueError", 60)
    assert "<b>planted</b> 3" in report.locator(".verdict").inner_text()
    open_view(window)
    wait_view(window, "crash.py failed · rank 1 failed: ValueError")
    window.unfold_row(VIEW, "crash.py")
    wait_view(window, "rank 0 ", "rank 1 failed first: ValueError: <b>planted</b> 3")
    window.press("Control+j")
    window.press("Control+1")
    window.go_to_line(1)
    window.run_command("Notifications: Clear All Notifications")
    image(window, "vscode-report.png")
    report.locator("a[data-file]").filter(has_text="crash.py:9").first.click()
    wait_line(window, 9)

    window.start_offered("Ray Train", "Ray Train: post-mortem of the last run")
    wait_rows(window, "Thread rank 1: ValueError", "Stack Frame step, line 9")
    window.press("Shift+F5")
    wait_no_debugging(window)


def test_a_job_of_a_terminal_is_followed_and_taken_up(server, workspace, open_window, launch):
    folders = [workspace.parent / "other", workspace]
    folders[0].mkdir()
    both = workspace.parent / "both.code-workspace"
    both.write_text(json.dumps({"folders": [{"path": str(folder)} for folder in folders]}))
    window = open_window(server, both, "workspace")
    window.open_file("loop.py")
    open_view(window)
    wait_for(lambda: "No run is recorded" in window.pane(VIEW).inner_text(), 30, "a welcome")
    job = launch("--nproc-per-node", "2", "loop.py", cwd=workspace)
    wait_view(window, "loop.py running", "rank 0 dormant", "rank 1 dormant")

    for index in range(3):
        write_report(job.paths, 0, index)
    wait_view(window, "rank 0 dormant · 3 reports · loss 0.5", "rank 1 dormant · 3 behind")
    window.press("Control+1")
    window.go_to_line(LOOP[: LOOP.index("world")].count("\n") + 1)
    window.press("Control+Shift+ArrowRight")
    window.run_command("Ray Train: Compare across Ranks")
    assert window.webview("Compare across Ranks").locator("table").inner_text().splitlines()[1:] == ["0-1\t2"]

    window.press("Control+1")
    window.choose_at_line(SLEEP, "Breakpoint on Ranks")
    window.type_answer("1-3")
    wait_for(lambda: "on ranks 1-3" in window.label_after_line(SLEEP), 30, "a label in the editor")
    window.start_offered("Ray Train", "Ray Train: attach to a live run")
    wait_rows(window, "Session rank 0 Running", "Session rank 1 Paused on breakpoint")
    wait_view(window, "rank 0 attached", "rank 1 paused")

    # Stopping one rank lets it go; stopping the session of the job lets the other go; the job runs on.
    window.press("Shift+F5")
    wait_view(window, "rank 1 dormant")
    window.focus_session("Ray Train: attach")
    window.press("Shift+F5")
    wait_no_debugging(window)
    wait_view(window, "rank 0 dormant", "rank 1 dormant")
    (workspace / "enough").touch()
    assert job.wait() == 0
    wait_view(window, "loop.py finished")
    assert window.complaints() == []


def test_ranks_have_sessions_when_they_are_attached_to_and_after_a_restart(server, workspace, open_window):
    (workspace / ".vscode").mkdir()
    configuration = {
        "name": "elastic",
        "type": "raytrain",
        "request": "launch",
        "program": "${workspaceFolder}/elastic.py",
    }
    more = {"nprocPerNode": 2, "torchrunArgs": ["--max-restarts", "1"], "waitRanks": "0"}
    (workspace / ".vscode" / "launch.json").write_text(json.dumps({"configurations": [{**configuration, **more}]}))
    window = open_window(server, workspace)
    window.open_file("elastic.py")
    window.press("F5")
    open_view(window)
    wait_view(window, "elastic.py running", "rank 0 attached", "rank 1 dormant")
    wait_rows(window, "Session elastic Running", "Session rank 0 Running")
    window.click_action(VIEW, "rank 1", "Attach")
    wait_view(window, "rank 0 attached", "rank 1 attached")

    def pause_all() -> bool:
        """Pause those that run and are debugged by now."""
        window.run_command("Ray Train: Pause All Ranks")
        window.page.wait_for_timeout(1000)
        return sum(row.endswith("Paused on pause") for row in window.call_stack()) == 2

    def end_attempt(number: int) -> None:
        wait_for(pause_all, 90, lambda: f"both ranks paused: {window.call_stack()}\n{refusals(server)}")
        wait_rows(window, "Session elastic Running")
        wait_view(window, "rank 0 paused", "rank 1 paused")
        (workspace / f"go-{number}").touch()
        window.run_command("Ray Train: Continue All Ranks")

    end_attempt(0)
    run = layout.find_run(None, workspace / layout.ROOT_NAME)
    wait_for(lambda: load_run(run).record.attempt == 1, 90, "the second attempt")
    end_attempt(1)
    wait_no_debugging(window)
    wait_view(window, "elastic.py finished")


def test_runs_of_all_folders_are_listed_with_what_they_left(server, tmp_path, open_window):
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder in folders:
        folder.mkdir()
        DeadRun(folder)
    workspace = tmp_path / "both.code-workspace"
    workspace.write_text(json.dumps({"folders": [{"path": str(folder)} for folder in folders]}))
    window = open_window(server, workspace, "workspace")
    open_view(window)
    wait_view(window, "train.py failed · rank 1 failed: ValueError")

    def folders_shown() -> set[str]:
        return {row.rpartition(" · ")[2] for row in window.pane_rows(VIEW)}

    wait_for(lambda: folders_shown() == {"first", "second"}, 30, lambda: f"the runs of both folders: {folders_shown()}")
    window.unfold_row(VIEW, "train.py")
    wait_view(window, "rank 0 ", "rank 1 failed first: ValueError: loss is nan")

    window.choose_in_menu(VIEW, "rank 1", "Open Last Report")
    wait_for(lambda: '"metrics"' in "".join(window.texts(".view-line")).replace("\xa0", " "), 30, "the report")
    window.choose_in_menu(VIEW, "rank 1", "Open Last Checkpoint")
    assert "float32" in window.webview("Checkpoint of rank 1").locator("body").inner_text()


def test_it_sleeps_until_used_and_asks_the_selected_python_for_raytrain_debug(server, workspace, open_window):
    (workspace / ".interpreter").write_text("/usr/bin/python3")
    window = open_window(server, workspace)
    window.open_file("crash.py")
    window.set_breakpoint(1)  # the window is ready once that works
    before = server.activations("raytrain-debug.raytrain-debug")
    f5(window, "single process")
    wait_for(window.complaints, 30, "a complaint")
    assert window.complaints() == [
        "raytrain_debug is not installed for /usr/bin/python3: install it from a clone of its repository."
    ]
    assert "Install in Terminal" in "".join(window.texts(".notification-list-item-buttons-container"))
    wait_for(lambda: server.activations("raytrain-debug.raytrain-debug") == before + 1, 30, "its activation in the log")
