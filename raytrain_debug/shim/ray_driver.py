"""The driver of Ray Train: the process that runs the script and calls `fit()`. It finds the launcher, or is its own."""

from __future__ import annotations

import atexit
import dataclasses
import os
import signal
import socket
import sys
import time
from functools import partial
from typing import Any

from raytrain_debug.run import layout
from raytrain_debug.run.records import LauncherRecord, RunRecord
from raytrain_debug.shim import breakpoints, standalone
from raytrain_debug.shim.rank import process_create_time
from raytrain_debug.shim.ray_environment import LAUNCHER
from raytrain_debug.shim.settings import Settings

_own: str | None = None


def launcher() -> str | None:
    """The launcher's control socket; without `launch`, that of one in this process, which then has a run of its own.

    None where all is switched off. Raises UnsafeDirectory, OSError.
    """
    global _own
    if not breakpoints.enabled():
        return None
    if _own is None:
        _own = os.environ.get(LAUNCHER) or _launch_here()
    return _own


def _launch_here() -> str:
    from raytrain_debug.launcher.gateway import Gateway
    from raytrain_debug.launcher.host import Host
    from raytrain_debug.launcher.job import Job
    from raytrain_debug.launcher.node_ports import NodePorts
    from raytrain_debug.launcher.ports import DEFAULT_BASE_PORT
    from raytrain_debug.launcher.ray_job import RayJob

    paths = layout.create_run(layout.default_root())
    socket_path = layout.socket_path(paths.id, "launcher")
    script = getattr(sys.modules.get("__main__"), "__file__", None) or "-"
    record = RunRecord(
        id=paths.id,
        argv=(script, *sys.argv[1:]),
        cwd=os.getcwd(),
        mode="ray",
        started=time.time(),
        world_size=0,
        launcher=LauncherRecord(os.getpid(), process_create_time(), socket.gethostname(), str(socket_path)),
    )
    job = Job(paths, record, announce=partial(standalone.announce, paths.id), complain=standalone.say)
    job.write()
    host = Host(job, socket_path)
    host.start()
    gateway = Gateway(job, lambda reason: os.kill(os.getpid(), signal.SIGTERM), standalone.say)
    ports = NodePorts(host, gateway, "127.0.0.1", DEFAULT_BASE_PORT, standalone.say)
    RayJob(host, job, ports, Settings(str(paths.directory), str(socket_path), 0, mode="ray"), None, standalone.say)
    atexit.register(_finish, job, host, os.getpid())
    return str(socket_path)


def _finish(job: Any, host: Any, pid: int) -> None:
    if os.getpid() == pid:
        host.run(lambda: setattr(job, "record", dataclasses.replace(job.record, ended=time.time())))
        host.run(job.write)
        host.stop()
