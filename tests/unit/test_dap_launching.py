"""What an editor's configuration becomes: a `launch` command, and a configuration for each rank."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from raytrain_debug.dap.launching import plan_launch, rank_configuration, wanted_ranks
from raytrain_debug.errors import UsageError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").touch()
    return tmp_path


def command(folder: Path, **arguments: Any) -> tuple[str, ...]:
    made = plan_launch({"cwd": str(folder), "program": "train.py", **arguments}).command
    assert made[1:4] == ("-m", "raytrain_debug", "launch")
    return made[4:]


def test_a_torchrun_job(folder):
    assert command(
        folder, nprocPerNode=4, args=["--epochs", 3], torchrunArgs=["--max-restarts", "2"], waitRanks="0,2-3"
    ) == (
        *("--base-port", "auto", "--wait", "0,2-3", "--nproc-per-node", "4", "--max-restarts", "2"),
        *("train.py", "--epochs", "3"),
    )


def test_a_single_process_job_is_one_without_ranks(folder):
    assert command(folder) == ("--base-port", "auto", "--wait", "all", "--no-torchrun", "train.py")


def test_a_module_in_place_of_a_script(folder):
    assert command(folder, program=None, module="pkg.train", nprocPerNode="gpu")[-4:] == (
        "--nproc-per-node",
        "gpu",
        "-m",
        "pkg.train",
    )


def test_nobody_is_waited_for_when_it_says_none(folder):
    assert "--wait" not in command(folder, waitRanks="none", nprocPerNode=2)
    assert wanted_ranks({"waitRanks": "none"}) == ()
    assert wanted_ranks({}) is None
    assert wanted_ranks({"ranks": "1,3"}) == (1, 3)


def test_where_runs_go_and_which_python_runs_them(folder):
    plan = plan_launch({"cwd": str(folder), "program": "train.py", "runRoot": "runs", "basePort": 6000})
    assert plan.run_root == folder / "runs"
    assert plan.command[0] == sys.executable
    assert plan.command[4:6] == ("--base-port", "6000")
    assert plan_launch({"cwd": str(folder), "program": "train.py", "python": "py3"}).command[0] == "py3"


def test_environment_variables_are_added_and_removed(folder, monkeypatch):
    monkeypatch.setenv("GONE", "1")
    plan = plan_launch({"cwd": str(folder), "program": "train.py", "env": {"GONE": None, "NEW": 3}})
    assert "GONE" not in plan.environment
    assert plan.environment["NEW"] == "3"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"module": "pkg"}, "either"),
        ({"program": "other.py"}, "is not there"),
        ({"cwd": "/no/where"}, "is no directory"),
        ({"args": "--epochs 3"}, '"args" must be a list'),
        ({"env": ["A=1"]}, '"env" must be an object'),
        ({"nprocPerNode": 1.5}, '"nprocPerNode" must be a text or a number'),
        ({"waitRanks": "one"}, "does not name ranks"),
    ],
)
def test_what_makes_no_sense_is_told(folder, arguments, words):
    with pytest.raises(UsageError, match=words):
        command(folder, **arguments)


def test_the_configuration_of_a_rank_has_what_its_debugger_understands_and_no_more():
    made = rank_configuration({"justMyCode": True, "program": "train.py", "showReturnValue": True}, 1, "::1", 5679)
    assert made == {
        "name": "rank 1",
        "type": "raytrain",
        "request": "attach",
        "connect": {"host": "::1", "port": 5679},
        "justMyCode": True,
        "showReturnValue": True,
        "subProcess": False,
        "raytrainDebugStopOnEntry": False,
        "rank": 1,
    }
