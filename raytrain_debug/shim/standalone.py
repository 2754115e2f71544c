"""A rank without a launcher: plain `python train.py` that calls `raytrain_debug.breakpoint()` or `enable()`.

The process then hosts its own gateway, in one more daemon thread, and its own run directory.
"""

from __future__ import annotations

import atexit
import dataclasses
import functools
import multiprocessing
import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from raytrain_debug.errors import PortTaken
from raytrain_debug.run import layout
from raytrain_debug.run.records import LauncherRecord, RunRecord
from raytrain_debug.shim import breakpoints, ray_hooks
from raytrain_debug.shim import rank as rank_module
from raytrain_debug.shim.death import Death
from raytrain_debug.shim.rank import Rank, current, process_create_time
from raytrain_debug.shim.recorder import RecorderConfig
from raytrain_debug.shim.settings import Identity, Settings

_started_in: int | None = None


def enable(base_port: int | None = None, run_root: str | os.PathLike[str] | None = None) -> Rank | None:
    """Make this process a rank, once; the rank, or None where that is switched off or not wanted (a rank's child).

    Listens on `base_port` + rank (default 5678, or free ports when that is taken). Raises UnsafeDirectory, OSError.
    """
    global _started_in
    if current() is not None or not breakpoints.enabled() or _is_child() or _helps_ray():
        return current()
    _started_in = os.getpid()
    # Here, not above: the launcher's modules are no business of a rank that has one.
    from raytrain_debug.launcher.gateway import Gateway
    from raytrain_debug.launcher.host import Host
    from raytrain_debug.launcher.job import Job

    identity = Identity.from_environment()
    root = Path(run_root).absolute() if run_root else layout.default_root()
    paths = layout.create_run(root)
    first, bound = _bind(base_port, identity.rank)
    socket_path = layout.socket_path(paths.id, "launcher")
    script = getattr(sys.modules.get("__main__"), "__file__", None) or "-"
    record = RunRecord(
        id=paths.id,
        argv=(script, *sys.argv[1:]),
        cwd=os.getcwd(),
        mode="script",
        started=time.time(),
        world_size=identity.world_size,
        launcher=LauncherRecord(
            pid=os.getpid(),
            create_time=process_create_time(),
            host=socket.gethostname(),
            socket=str(socket_path),
            ports={str(identity.rank): first + identity.rank},
        ),
    )
    job = Job(paths, record, announce=functools.partial(announce, paths.id))
    job.write()
    host = Host(job, socket_path)
    host.start()
    host.open_gateway(Gateway(job, lambda reason: os.kill(os.getpid(), 15), say), bound)
    rank = Rank(Settings(str(paths.directory), str(socket_path), os.getpid(), mode="script"), identity, script)
    rank.start()
    death = Death(rank)
    death.install()
    with rank.guard("report recorder"):
        ray_hooks.install(RecorderConfig(rank.run, identity.rank, identity.attempt, rank.guard))
    breakpoints.install_breakpointhook()
    sys.excepthook = _recording(death, sys.excepthook)
    atexit.register(_finish, job, host, death)
    return rank


def _is_child() -> bool:
    """True in a process that a rank has forked, or that multiprocessing has started: those are no ranks."""
    return rank_module.forked() or multiprocessing.parent_process() is not None


def _helps_ray() -> bool:
    """True in a process that Ray has started and that does not train, one of Ray Data's say: those are no ranks."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized() or ray.get_runtime_context().worker.mode != ray.WORKER_MODE:
        return False
    try:
        sys.modules["ray.train"].get_context()
    except Exception:  # Ray Train is not there, or says that this is no training function of its
        return True
    return False


def _bind(base_port: int | None, rank: int) -> tuple[int, dict[int, list[socket.socket]]]:
    from raytrain_debug.launcher import ports

    if base_port is not None:
        return base_port, ports.bind_ports("127.0.0.1", base_port, [rank])
    try:
        return ports.DEFAULT_BASE_PORT, ports.bind_ports("127.0.0.1", ports.DEFAULT_BASE_PORT, [rank])
    except PortTaken:
        return ports.bind_free_ports("127.0.0.1", [rank])


def announce(run_id: str, rank: Any) -> None:
    where = rank.where
    place = f" at {os.path.relpath(where.file)}:{where.line} in {where.function}" if where is not None else ""
    say(
        f"rank {rank.rank} waits for a debugger{place} (pid {rank.pid})\n"
        f"  terminal: python -m raytrain_debug attach --rank {rank.rank} --run {run_id}\n"
        f"  VS Code:  attach to 127.0.0.1:{rank.port}"
    )


def say(text: str) -> None:
    try:
        print(f"raytrain_debug: {text}", file=sys.stderr, flush=True)
    except (OSError, ValueError):
        pass


def _recording(death: Death, hook: Callable[..., Any]) -> Callable[..., Any]:
    """The user's own excepthook, after core.json has been written."""

    def excepthook(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        death.record(error)
        hook(kind, error, trace)

    return excepthook


def _finish(job: Any, host: Any, death: Death) -> None:
    if os.getpid() == _started_in:
        # Nothing tells at this point with which code the process is going to end, but for an exception.
        stopped = "SIGINT" if death.error is not None and issubclass(death.error, KeyboardInterrupt) else None
        code = 1 if death.error is not None and stopped is None else None
        ended = dataclasses.replace(job.record, ended=time.time(), exit_code=code, stopped=stopped)
        host.run(lambda: setattr(job, "record", ended))
        host.run(job.write)
        host.stop()
