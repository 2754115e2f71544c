"""F5 to all ranks stopped at the first breakpoint: our task and compound against debugpy's own `subProcess` launching
torchrun. Budget 0.8.

    python benchmarks/first_stop.py [--pairs 3]

Both clients do what VS Code does: start the process, connect as soon as they may, set one breakpoint in the training
loop, and wait until both ranks stand at it.
"""

from __future__ import annotations

import argparse
import os
import queue
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from raytrain_debug.dap.client import Client
from raytrain_debug.errors import DapError

SCRIPT = """import torch
import torch.distributed as dist

def main():
    dist.init_process_group("gloo")
    for i in range(1000000):
        value = torch.ones(2)
        dist.all_reduce(value)

main()
"""
LINE = 7
RANKS = 2


def free_port() -> int:
    with socket.socket() as each:
        each.bind(("127.0.0.1", 0))
        port: int = each.getsockname()[1]
        return port


def start(command: list[str], directory: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command, cwd=directory, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip


def play_vscode(host: str, port: int, arguments: dict[str, Any], script: str, stopped: queue.Queue[Any]) -> None:
    """A client that attaches with one breakpoint, tells `stopped`, and follows child processes as VS Code does."""
    while True:
        try:
            client = Client.connect(host, port)
            break
        except DapError:
            time.sleep(0.02)
    initialized = threading.Event()

    def on_event(event: dict[str, Any]) -> None:
        if event["event"] == "initialized":
            initialized.set()
        elif event["event"] == "stopped":
            stopped.put(event)
        elif event["event"] == "debugpyAttach":
            child = event["body"]
            address = child["connect"]
            follow = (address["host"], address["port"], child, script, stopped)
            threading.Thread(target=play_vscode, args=follow, daemon=True).start()

    client.start(on_event)
    client.request("initialize", {"clientID": "vscode", "adapterID": "debugpy", "pathFormat": "path"}, timeout=None)
    client.send("attach", {"justMyCode": False, **arguments})
    initialized.wait(60)
    client.request("setBreakpoints", {"source": {"path": script}, "breakpoints": [{"line": LINE}]})
    client.request("configurationDone")


def ours(directory: str) -> float:
    """Seconds from starting the task to both ranks stopped, as the generated compound goes about it."""
    begin = time.perf_counter()
    command = [sys.executable, "-m", "raytrain_debug", "launch", "--wait", "all", "--base-port", "auto"]
    process = start([*command, "--nproc-per-node", str(RANKS), "train.py"], directory)
    assert process.stderr is not None
    found = next(filter(None, (re.search(r"gateway ready on [\d.]+:(\d+)", line) for line in process.stderr)))
    threading.Thread(target=process.stderr.read, daemon=True).start()
    stopped: queue.Queue[Any] = queue.Queue()
    for rank in range(RANKS):
        where = ("127.0.0.1", int(found[1]) + rank, {"subProcess": False}, str(Path(directory, "train.py")), stopped)
        threading.Thread(target=play_vscode, args=where, daemon=True).start()
    return time_to_stop(begin, stopped, process)


def debugpys(directory: str) -> float:
    """The same through `python -m debugpy --listen` with torchrun as the module, following its child processes."""
    begin = time.perf_counter()
    port = free_port()
    debugpy = ["-m", "debugpy", "--listen", f"127.0.0.1:{port}", "--wait-for-client", "-m", "torch.distributed.run"]
    process = start([sys.executable, *debugpy, "--nproc-per-node", str(RANKS), "train.py"], directory)
    assert process.stderr is not None
    threading.Thread(target=process.stderr.read, daemon=True).start()
    stopped: queue.Queue[Any] = queue.Queue()
    where = ("127.0.0.1", port, {"subProcess": True}, str(Path(directory, "train.py")), stopped)
    threading.Thread(target=play_vscode, args=where, daemon=True).start()
    return time_to_stop(begin, stopped, process)


def time_to_stop(begin: float, stopped: queue.Queue[Any], process: subprocess.Popen[str]) -> float:
    """Wait until every rank has stopped, end the job, and return the seconds since `begin`."""
    workers = []
    try:
        for _ in range(RANKS):
            stopped.get(timeout=60)
        seconds = time.perf_counter() - begin
        workers = psutil.Process(process.pid).children(recursive=True)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        for each in workers:
            each.kill()
        process.wait()
    return seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=3)
    options = parser.parse_args()
    theirs, mine = [], []
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "train.py").write_text(SCRIPT)
        while len(mine) < options.pairs:
            try:
                theirs.append(debugpys(directory))
            except queue.Empty:
                print("debugpy's own launch did not reach the breakpoint within 60 s; again", file=sys.stderr)
                continue
            mine.append(ours(directory))
    ratio = statistics.median(ours / other for ours, other in zip(mine, theirs, strict=True))
    table = Table("to both ranks stopped", "debugpy subProcess", "launch and compound", "ratio", "budget")
    medians = [f"{statistics.median(each):.2f} s" for each in (theirs, mine)]
    table.add_row("median", *medians, f"{ratio:.2f}", "<= 0.80")
    Console().print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
