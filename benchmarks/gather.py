"""The stacks of 32 dormant Python processes (no torch), gathered and merged; py-spy on the same ones. Budget: 1 s.

    python benchmarks/gather.py [--processes 32] [--rounds 5]

Half of the processes sleep, half work in Python. py-spy is started once a process, as nothing else in it shows many.
The rows after the first are of new processes, from their start to their end: what a person waits for.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.table import Table

from raytrain_debug.across.ask import Address, ask_all
from raytrain_debug.across.stacks import fold, merge, read_sample, stacks_of
from raytrain_debug.run import layout
from raytrain_debug.run.reader import read_record
from raytrain_debug.run.records import ProcessRecord
from raytrain_debug.shim.settings import Settings

SCRIPT = """
import sys, time
print("here", flush=True)
def wait():
    time.sleep(1000)
def work():
    while True:
        time.sleep(0.001)
        sum(range(1000))
(wait if int(sys.argv[1]) % 2 else work)()
"""


@contextmanager
def dormant(count: int, directory: Path) -> Iterator[list[Address]]:
    """`count` processes in the shim, as a launcher starts them."""
    run = layout.create_run(directory / layout.ROOT_NAME)
    script = directory / "train.py"
    script.write_text(SCRIPT)
    settings = Settings(str(run.directory), launcher="", launcher_pid=os.getpid())
    processes = [
        subprocess.Popen(
            [sys.executable, "-u", "-m", "raytrain_debug.shim", script, str(rank)],
            env={**os.environ, **settings.to_environment(), "RANK": str(rank), "WORLD_SIZE": str(count)},
            stdout=subprocess.PIPE,
        )
        for rank in range(count)
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            process.stdout.readline()
        records = [read_record(run.rank(rank).process, ProcessRecord) for rank in range(count)]
        yield [Address(record.rank, record.control, record.pid) for record in records if record is not None]
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def seconds(action: object, rounds: int) -> float:
    """The median time of an action."""
    taken = []
    for _ in range(rounds):
        start = time.perf_counter()
        action()  # type: ignore[operator]
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    table = Table("what", "seconds")
    with tempfile.TemporaryDirectory() as name, dormant(options.processes, Path(name)) as addresses:
        assert len(addresses) == options.processes

        def gather() -> None:
            sample = read_sample(ask_all(addresses, {"op": "stacks"}, 5.0))
            assert not sample.silent, sample.silent
            merge(fold(stacks_of(sample)))

        def command() -> None:
            stacks = [sys.executable, "-m", "raytrain_debug", "stacks"]
            subprocess.run(stacks, cwd=name, stdout=subprocess.DEVNULL, check=True)

        table.add_row(f"gather and merge {options.processes} processes", f"{seconds(gather, options.rounds):.3f}")
        table.add_row("python -m raytrain_debug stacks", f"{seconds(command, options.rounds):.3f}")
        beside = Path(sys.executable).with_name("py-spy")
        program = str(beside) if beside.exists() else shutil.which("py-spy")
        if program is None:
            table.add_row("py-spy dump", "not installed")
        else:
            for flag in ([], ["--nonblocking"]):
                dump = [program, "dump", *flag, "--pid"]

                def spy(dump: list[str] = dump) -> None:
                    with ThreadPoolExecutor(os.cpu_count()) as pool:
                        done = list(
                            pool.map(
                                lambda each: subprocess.run([*dump, str(each.pid)], capture_output=True, check=False),
                                addresses,
                            )
                        )
                    if any(each.returncode for each in done):
                        raise SystemExit(f"py-spy may not do this here: {done[0].stderr.decode()}")

                words = " ".join(["py-spy dump", *flag, "for each process"])
                table.add_row(words, f"{seconds(spy, options.rounds):.3f}")
    Console().print(table)


if __name__ == "__main__":
    main()
