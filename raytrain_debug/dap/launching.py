"""Pure translations for the adapter: an editor's configuration to a `launch` command, and to a rank's configuration."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raytrain_debug.errors import UsageError
from raytrain_debug.run import layout
from raytrain_debug.run.ranks import parse_ranks

TYPE = "raytrain"
NO_RANKS = "none"

# What a rank's debugger understands: these properties of the job's configuration are passed on to every rank's.
FOR_RANKS = (
    "justMyCode",
    "pathMappings",
    "raytrainDebugToken",
    "redirectOutput",
    "rules",
    "showReturnValue",
    "steppingResumesAllThreads",
    "variablePresentation",
)


@dataclass(frozen=True)
class LaunchPlan:
    """How to start a job: `command` in `cwd` with `environment`; its runs are recorded below `run_root`."""

    command: tuple[str, ...]
    cwd: Path
    environment: dict[str, str]
    run_root: Path


def plan_launch(arguments: dict[str, Any]) -> LaunchPlan:
    """The `launch` command for a configuration's properties; raises UsageError for what makes no sense.

    Without `nprocPerNode` and `torchrunArgs` it is a single-process job.
    """
    program, module = _text(arguments, "program"), _text(arguments, "module")
    if bool(program) == bool(module):
        raise UsageError('name either "program", a script, or "module"')
    cwd = Path(_text(arguments, "cwd") or os.getcwd())
    if not cwd.is_dir():
        raise UsageError(f'"cwd" {cwd} is no directory')
    if program and not Path(cwd, program).is_file():
        raise UsageError(f'"program" {program} is not there')
    options = ["--base-port", _text(arguments, "basePort") or "auto"]
    if wanted_ranks(arguments) != ():
        options += ["--wait", _text(arguments, "waitRanks") or "all"]
    run_root = _text(arguments, "runRoot")
    if run_root:
        options += ["--run-root", run_root]
    if "keepCheckpoints" in arguments:
        options += ["--keep-checkpoints", _text(arguments, "keepCheckpoints")]
    torchrun = _texts(arguments, "torchrunArgs")
    if "nprocPerNode" in arguments:
        options += ["--nproc-per-node", _text(arguments, "nprocPerNode")]
    elif not torchrun:
        options += ["--no-torchrun"]
    target = [program] if program else ["-m", module]
    python = _text(arguments, "python") or sys.executable
    command = (python, "-m", "raytrain_debug", "launch", *options, *torchrun, *target, *_texts(arguments, "args"))
    root = Path(cwd, run_root) if run_root else layout.default_root(cwd)
    return LaunchPlan(command, cwd, _environment(arguments), root)


def wanted_ranks(arguments: dict[str, Any]) -> tuple[int, ...] | None:
    """The ranks to open from the start (None for all): `waitRanks` of a launched job, `ranks` of one attached to."""
    text = _text(arguments, "waitRanks") or _text(arguments, "ranks") or "all"
    return () if text == NO_RANKS else parse_ranks(text)


def rank_configuration(
    arguments: dict[str, Any], rank: int, host: str, port: int, stop_on_entry: bool = False
) -> dict[str, Any]:
    """The configuration of one rank's session in a job that was configured with `arguments`."""
    passed = {name: arguments[name] for name in FOR_RANKS if name in arguments}
    token = os.environ.get("RAYTRAIN_DEBUG_TOKEN")
    if token:
        passed.setdefault("raytrainDebugToken", token)
    return {
        "name": f"rank {rank}",
        "type": TYPE,
        "request": "attach",
        "connect": {"host": host, "port": port},
        "justMyCode": False,
        "subProcess": False,
        "raytrainDebugStopOnEntry": stop_on_entry,
        "rank": rank,
        **passed,
    }


def _environment(arguments: dict[str, Any]) -> dict[str, str]:
    environment = dict(os.environ)
    changes = arguments.get("env") or {}
    if not isinstance(changes, dict):
        raise UsageError('"env" must be an object of names and values')
    for name, value in changes.items():
        if value is None:
            environment.pop(name, None)
        else:
            environment[name] = str(value)
    return environment


def _text(arguments: dict[str, Any], name: str) -> str:
    value = arguments.get(name)
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise UsageError(f'"{name}" must be a text or a number')
    return str(value)


def _texts(arguments: dict[str, Any], name: str) -> list[str]:
    value = arguments.get(name) or []
    if not isinstance(value, list):
        raise UsageError(f'"{name}" must be a list: ["--epochs", "3"]')
    return [str(each) for each in value]
