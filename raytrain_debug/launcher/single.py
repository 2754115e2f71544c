"""`launch --no-torchrun`: Ray Train's single-process local mode, one process that is rank 0."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Sequence

from raytrain_debug.launcher.host import Host
from raytrain_debug.launcher.job import Job


def run(command: Sequence[str], host: Host, job: Job) -> int:
    """Run `python -u -m raytrain_debug.shim COMMAND` to its end; its return code (-n for signal n).

    SIGTERM and SIGHUP are passed on, once the process has written down what it does. Ctrl-C reaches the process by
    itself, as it is in the terminal's foreground group with us.
    """
    process = subprocess.Popen([sys.executable, "-u", "-m", "raytrain_debug.shim", *command])
    host.exit_status = lambda pid: process.returncode if pid == process.pid else None
    host.run(lambda: job.attempt_started(0, 1, {0: process.pid}))
    host.watch([process.pid])
    return see_through(process, host, job)


def see_through(process: subprocess.Popen[bytes], host: Host, job: Job) -> int:
    """Wait for the end of the process that runs the script, and pass on to it what asks us to end; its return code."""

    def note(number: int, frame: object) -> None:
        host.call_soon(lambda: job.stopped_by(signal.Signals(number).name))

    def pass_on(number: int, frame: object) -> None:
        note(number, frame)
        host.leave_cores()
        process.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, pass_on)
    signal.signal(signal.SIGINT, note)
    return process.wait()


def die_as(return_code: int) -> int:
    """The exit code that passes `return_code` on; a signal's end becomes ours, so that a shell sees the same."""
    if return_code >= 0:
        return return_code
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(-return_code, signal.SIG_DFL) if -return_code not in (signal.SIGKILL, signal.SIGSTOP) else None
    sys.stdout.flush()
    sys.stderr.flush()
    os.kill(os.getpid(), -return_code)
    return 128 - return_code
