"""What tests share: a real `launch` in a directory of its own, ended with everything it started."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pytest

from raytrain_debug.dap.session import Session
from raytrain_debug.run import channel, layout
from raytrain_debug.run.reader import Run, load_run

REPOSITORY = Path(__file__).resolve().parent.parent
TARGETS = REPOSITORY / "tests" / "targets"

T = TypeVar("T")

# A shell starts what it puts into the background with these ignored, and everything below would inherit that: Ctrl-C
# would end nothing that a test has started.
for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


os.environ.pop("COLUMNS", None)  # what is printed into a pipe is as wide as it is; test workers set a width


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show why a test was run once more: a fault that comes now and then is to be found as well."""
    for report in terminalreporter.getreports("rerun"):
        terminalreporter.write_sep("_", f"first try of {report.nodeid}")
        terminalreporter.write_line(report.longreprtext)
        for name, text in report.sections:
            terminalreporter.write_sep("-", name)
            terminalreporter.write_line(text[-4000:])


def wait_for(condition: Callable[[], T], timeout: float = 30.0, what: str | Callable[[], str] = "condition") -> T:
    """Poll until `condition()` is truthy and return it; fails the test after `timeout` seconds, saying `what`."""
    end = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            pytest.fail(f"waited {timeout:g} s in vain for {what() if callable(what) else what}")
        time.sleep(0.02)


@contextlib.contextmanager
def alone(name: str) -> Iterator[None]:
    """Of several test workers one at a time installs or builds the thing of that `name`; the others find it there."""
    with open(Path(tempfile.gettempdir()) / f"raytrain_debug-tests-{os.geteuid()}-{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def free_base_port(count: int = 2) -> int:
    """A port with `count` free ones from it on, outside the range that the kernel gives to outgoing connections."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 2  # two do not look in one place
    first = 20000 + worker * 6000
    for base in range(first + os.getpid() % 3000, first + 6000, count):
        sockets = []
        try:
            for port in range(base, base + count):
                each = socket.socket()
                sockets.append(each)
                each.bind(("127.0.0.1", port))
            return base
        except OSError:
            continue
        finally:
            for each in sockets:
                each.close()
    raise AssertionError("no free ports")


class Launch:
    """A running `python -m raytrain_debug launch` of a test."""

    def __init__(
        self, cwd: Path, arguments: list[str], env: dict[str, str], base_port: int, python: str = sys.executable
    ) -> None:
        self.cwd, self.base_port = cwd, base_port
        self.log = cwd / "launch.log"
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [python, "-m", "raytrain_debug", "launch", "--base-port", str(base_port), *arguments],
                cwd=cwd,
                env={**os.environ, "OMP_NUM_THREADS": "1", **env},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._seen: set[int] = set()

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace")

    @property
    def paths(self) -> layout.RunPaths:
        return layout.find_run(None, self.cwd / layout.ROOT_NAME)

    @property
    def run(self) -> Run:
        return load_run(self.paths)

    def wait_output(self, text: str, timeout: float = 60.0) -> str:
        """Wait until the job has printed `text`; returns all it has printed."""

        def printed() -> bool:
            if text in self.output:
                return True
            if self.process.poll() is not None:
                pytest.fail(f"the job ended ({self.process.returncode}) before it printed {text!r}:\n{self.output}")
            return False

        wait_for(printed, timeout, lambda: f"{text!r} in\n{self.output}")
        return self.output

    def status(self) -> dict[int, dict[str, Any]]:
        """What the launcher says of each rank; empty while it does not answer yet."""
        try:
            record = self.run.record
            if record is None or record.launcher is None:
                return {}
            ranks = channel.ask(record.launcher.socket, {"op": "status"})["ranks"]
        except Exception:
            return {}
        self._seen.update(rank["pid"] for rank in ranks.values() if rank["pid"])
        return {int(number): rank for number, rank in ranks.items()}

    def wait_state(self, state: str, ranks: tuple[int, ...] = (0,), timeout: float = 60.0) -> dict[int, dict[str, Any]]:
        """Wait until `ranks` are all in `state`."""

        def reached() -> dict[int, dict[str, Any]] | None:
            status = self.status()
            if all(status.get(rank, {}).get("state") == state for rank in ranks):
                return status
            if self.process.poll() is not None:
                pytest.fail(f"the job ended before ranks {ranks} were {state}:\n{self.output}")
            return None

        def what() -> str:
            return f"ranks {ranks} {state}; now {self.status()}\n{self.output}"

        return wait_for(reached, timeout, what)  # type: ignore[return-value]

    def session(self, rank: int = 0, **arguments: Any) -> Session:
        """A debugger attached to `rank` through its gateway port."""
        self.wait_output("gateway ready")
        session = Session("127.0.0.1", self.base_port + rank, f"rank {rank}")
        session.attach(arguments, timeout=60)
        return session

    def wait(self, timeout: float = 90.0) -> int:
        """Wait for the job to end; its exit code."""
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            pytest.fail(f"the job did not end:\n{self.output}")

    def kill(self) -> None:
        """End the launcher and whatever of it is left."""
        self.status()
        children = []
        try:
            children = psutil.Process(self.process.pid).children(recursive=True)
        except psutil.Error:
            pass
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        for child in children:
            try:
                child.kill()
            except psutil.Error:
                pass


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Callable[..., Launch]]:
    """`launch("--nproc-per-node", "2", "train.py", cwd=..., env={...}, base_port=...)` starts a job."""
    started: list[Launch] = []

    def start(
        *arguments: str | Path,
        cwd: Path | None = None,
        env: dict[str, str] | None = None,
        base_port: int | None = None,
        python: str = sys.executable,
    ) -> Launch:
        words = [str(each) for each in arguments]
        job = Launch(cwd or tmp_path, words, env or {}, base_port or free_base_port(4), python)
        started.append(job)
        return job

    yield start
    for job in started:
        job.kill()
