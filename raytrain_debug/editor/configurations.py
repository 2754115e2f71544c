"""What VS Code is told about a job: the debug configurations, compounds and tasks, as plain dicts."""

from __future__ import annotations

import ipaddress
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from raytrain_debug.errors import UsageError
from raytrain_debug.run.words import counted

PREFIX = "Ray Train: "
GROUP = "Ray Train"
ATTACH_NAME = PREFIX + "attach to the running job"
POSTMORTEM_NAME = PREFIX + "post-mortem"
"""Both the configuration and its task."""
DEFAULT_BASE_PORT = 5678
DEFAULT_POSTMORTEM_PORT = DEFAULT_BASE_PORT - 1
LOOPBACK = "127.0.0.1"
TOKEN = "raytrainDebugToken"

# The order in which VS Code lists them; a fresh window starts the first.
_JOB, _SINGLE, _ATTACH, _POSTMORTEM = 1, 2, 3, 4

# What `launch` prints on stderr. A background task that dies before the end pattern makes VS Code go on to the debug
# sessions all the same, unless the task left a problem: hence the pattern that makes one of the reason.
PROBLEM_MATCHER = {
    "owner": "raytrain_debug",
    "source": "raytrain_debug",
    "severity": "error",
    "fileLocation": ["relative", "${workspaceFolder}"],
    "pattern": {
        "kind": "file",
        "regexp": "^(?=.*(raytrain_debug))(raytrain_debug: error: .*|.* launch: error: .*|.*: No module named .*)$",
        "file": 1,
        "message": 2,
    },
    "background": {
        "activeOnStart": True,
        "beginsPattern": "^raytrain_debug: starting",
        "endsPattern": "^raytrain_debug: gateway ready on ",
    },
}
POSTMORTEM_MATCHER = {
    **PROBLEM_MATCHER,
    "background": {
        "activeOnStart": True,
        "beginsPattern": "^raytrain_debug: opening",
        "endsPattern": "^raytrain_debug: post-mortem ready on ",
    },
}


@dataclass(frozen=True)
class JobSpec:
    """A job as VS Code shall know it: `program` (a path) or `module`, and how `launch` runs it.

    Without `nproc_per_node` it is a single-process job. Rank R is debugged at `node_hosts[R // nproc_per_node]`, port
    `base_port + R`. `torchrun_args` are more options of `launch` for the torchrun job. `label` is what the entries call
    the script; its file name or the module when empty. With `ray` the ranks are Ray Train's workers, which the script
    starts; `faithful` is launch's option. Raises UsageError when the parts do not fit together.
    """

    program: str | None = None
    module: str | None = None
    args: tuple[str, ...] = ()
    nproc_per_node: int | None = None
    nnodes: int = 1
    node_hosts: tuple[str, ...] = (LOOPBACK,)
    base_port: int = DEFAULT_BASE_PORT
    python: str = sys.executable
    torchrun_args: tuple[str, ...] = ()
    label: str = ""
    ray: bool = False
    faithful: bool = False

    def __post_init__(self) -> None:
        if bool(self.program) == bool(self.module):
            raise UsageError("name a script or, with -m, a module", "python -m raytrain_debug configure SCRIPT")
        if self.nproc_per_node is not None and self.nproc_per_node < 1:
            raise UsageError(f"--nproc-per-node {self.nproc_per_node} is no number of ranks", "write 1 or more")
        if self.ray and (self.nproc_per_node is None or self.nnodes != 1):
            raise UsageError("how many workers does the script start with Ray?", "add --workers N, without --nnodes")
        if self.nnodes < 1:
            raise UsageError(f"--nnodes {self.nnodes} is no number of nodes", "write 1 or more")
        if self.nnodes > 1 and self.nproc_per_node is None:
            raise UsageError(f"how many ranks has each of the {self.nnodes} nodes?", "add --nproc-per-node N")
        if len(self.node_hosts) != self.nnodes:
            raise UsageError(
                f"{self.nnodes} node(s) but {len(self.node_hosts)} host(s)", "name one a node: --node-hosts a,b"
            )
        last = self.base_port + self.world_size - 1
        if self.base_port < 1 or last > 65535:
            raise UsageError(
                f"ports {self.base_port} to {last} do not all exist", "choose a --base-port so that all are in 1..65535"
            )

    @property
    def world_size(self) -> int:
        """Ranks on all nodes."""
        return self.nnodes * (self.nproc_per_node or 1)

    @property
    def target(self) -> str:
        """The script's path or the module's name."""
        return self.program or self.module or ""

    @property
    def called(self) -> str:
        """What the names of the entries call the script."""
        return self.label or self.module or os.path.basename(self.target)

    @property
    def postmortem_port(self) -> int:
        """Where a run that has ended is opened: below the ranks, or above them where there is nothing below."""
        return self.base_port - 1 or self.base_port + self.world_size

    @property
    def local(self) -> bool:
        """Whether all ranks run on the machine VS Code runs its tasks on, so that a task can start the job."""
        return self.nnodes == 1 and all(map(is_loopback, self.node_hosts))


def is_loopback(host: str) -> bool:
    """True for `localhost` and loopback addresses."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def job_name(spec: JobSpec) -> str:
    """The compound over all ranks of a torchrun job."""
    return f"{PREFIX}{spec.called} {_ranks(spec)}"


def single_name(spec: JobSpec) -> str:
    """The configuration of the single-process job."""
    return f"{PREFIX}{spec.called} (single process)"


def rank_name(spec: JobSpec, rank: int) -> str:
    """The attach configuration of one rank, which is also what its debug session is called."""
    return f"Rank {rank}: {spec.called}"


def start_name(spec: JobSpec) -> str:
    """The entry that F5 shall start."""
    return single_name(spec) if spec.nproc_per_node is None else job_name(spec)


def ranks_options(spec: JobSpec) -> list[str]:
    """The options of `launch` that say which ranks there are."""
    if spec.nproc_per_node is None:
        return ["--no-torchrun"]
    return [*(["--ray", "--workers"] if spec.ray else ["--nproc-per-node"]), str(spec.nproc_per_node)]


def mode_options(spec: JobSpec) -> list[str]:
    """What `launch` needs to know of how Ray Train's local mode shall be."""
    return ["--faithful"] if spec.faithful else []


def configurations(spec: JobSpec) -> list[dict[str, Any]]:
    """The entries of launch.json's `configurations`: an attach a rank, hidden, and the single-process job."""
    hidden = {"presentation": {"hidden": True, "group": GROUP}}
    entries = [{**_attach(rank_name(spec, rank), spec, rank), **hidden} for rank in range(spec.world_size)]
    if spec.local and not spec.ray:
        task, shown = _task_label(spec, "(single process)"), {"group": GROUP, "order": _SINGLE}
        entries.append({**_attach(single_name(spec), spec, 0), "preLaunchTask": task, "presentation": shown})
    if spec.local:
        entries.append(_postmortem(spec))
    return entries


def compounds(spec: JobSpec) -> list[dict[str, Any]]:
    """The entries of launch.json's `compounds`: the torchrun job, and the running job whoever started it."""
    ranks = [rank_name(spec, rank) for rank in range(spec.world_size)]
    entries: list[dict[str, Any]] = []
    if spec.nproc_per_node is not None:
        job: dict[str, Any] = {"name": job_name(spec), "configurations": ranks}
        if spec.local:
            job["preLaunchTask"] = _task_label(spec, _ranks(spec))
        entries.append({**job, "stopAll": True, "presentation": {"group": GROUP, "order": _JOB}})
    presentation = {"group": GROUP, "order": _ATTACH}
    entries.append({"name": ATTACH_NAME, "configurations": ranks, "stopAll": True, "presentation": presentation})
    return entries


def tasks(spec: JobSpec) -> list[dict[str, Any]]:
    """The entries of tasks.json's `tasks`: the job of all ranks, the single process, the post-mortem; none for other
    machines."""
    if not spec.local:
        return []
    entries = []
    if spec.nproc_per_node is not None:
        entries.append(_task(spec, _ranks(spec), [*spec.torchrun_args, *ranks_options(spec)]))
    if not spec.ray:
        entries.append(_task(spec, "(single process)", ["--no-torchrun"]))
    entries.append(_postmortem_task(spec))
    return entries


def _attach(name: str, spec: JobSpec, rank: int) -> dict[str, Any]:
    host = spec.node_hosts[rank // (spec.nproc_per_node or 1)]
    entry = _attach_to(name, host, spec.base_port + rank)
    if not is_loopback(host):
        entry["pathMappings"] = [{"localRoot": "${workspaceFolder}", "remoteRoot": "."}]
        entry[TOKEN] = "${env:RAYTRAIN_DEBUG_TOKEN}"
    return entry


def _attach_to(name: str, host: str, port: int) -> dict[str, Any]:
    return {
        "name": name,
        "type": "debugpy",
        "request": "attach",
        "connect": {"host": host, "port": port},
        "justMyCode": False,
        "subProcess": False,
    }


def _postmortem(spec: JobSpec) -> dict[str, Any]:
    """The newest run, as it lies on disk: one for all scripts of the folder."""
    return {
        **_attach_to(POSTMORTEM_NAME, LOOPBACK, spec.postmortem_port),
        "preLaunchTask": POSTMORTEM_NAME,
        "internalConsoleOptions": "openOnSessionStart",  # where the verdict is told
        "presentation": {"group": GROUP, "order": _POSTMORTEM},
    }


def _postmortem_task(spec: JobSpec) -> dict[str, Any]:
    options = ["--serve", str(spec.postmortem_port), "--once", *_run_root(spec.torchrun_args)]
    return {
        "label": POSTMORTEM_NAME,
        "type": "process",
        "command": spec.python,
        "args": ["-m", "raytrain_debug", "postmortem", *options],
        "options": {"cwd": "${workspaceFolder}"},
        "isBackground": True,
        "problemMatcher": POSTMORTEM_MATCHER,
        "presentation": {"reveal": "silent", "panel": "dedicated", "clear": True, "showReuseMessage": False},
    }


def _run_root(options: Sequence[str]) -> list[str]:
    """The --run-root among options of `launch`, if there is one: where runs are, they are looked for."""
    for at, option in enumerate(options):
        if option.startswith("--run-root"):
            return [option] if "=" in option else list(options[at : at + 2])
    return []


def _task(spec: JobSpec, what: str, options: list[str]) -> dict[str, Any]:
    launch = ["-m", "raytrain_debug", "launch", "--wait", "all", "--stop-with-debugger"]
    target = ["-m", spec.module] if spec.module else [spec.target]
    return {
        "label": _task_label(spec, what),
        "type": "process",
        "command": spec.python,
        "args": [*launch, "--base-port", str(spec.base_port), *mode_options(spec), *options, *target, *spec.args],
        "options": {"cwd": "${workspaceFolder}"},
        "isBackground": True,
        "problemMatcher": PROBLEM_MATCHER,
        "presentation": {"reveal": "always", "panel": "dedicated", "clear": True, "showReuseMessage": False},
    }


def _task_label(spec: JobSpec, what: str) -> str:
    return f"{PREFIX}launch {spec.called} {what}"


def _ranks(spec: JobSpec) -> str:
    return f"({counted(spec.world_size, 'rank')})"
