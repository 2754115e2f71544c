"""What torchrun does with the ranks' input and output stays so, and a waiting rank is heard of all the same."""

import os
import subprocess
import sys

import pytest

from tests.conftest import free_base_port

SAYS = """import os, sys
rank = os.environ["RANK"]
print(f"out of rank {rank}", flush=True)
print(f"err of rank {rank}", file=sys.stderr, flush=True)
"""


def run(tmp_path, launcher, *arguments, **more):
    command = [sys.executable, "-m", *launcher, "--nproc-per-node", "2", *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=90, check=False, **more
    )


def ours():
    return "raytrain_debug", "launch", "--base-port", str(free_base_port(4))


def streams(done, logs):
    """What the ranks said: to stdout, to stderr, and into the files of --log-dir."""
    files = {}
    for path in sorted(logs.rglob("std*.log")):
        files["/".join(path.parts[-2:])] = path.read_text()
    said = [sorted(line for line in text.splitlines() if "of rank" in line) for text in (done.stdout, done.stderr)]
    return (*said, files)


@pytest.mark.parametrize(
    "options",
    [(), ("--redirects", "3"), ("--tee", "3"), ("--redirects", "3", "--local-ranks-filter", "0"),
     ("--tee", "3", "--local-ranks-filter", "1")],
)  # fmt: skip
def test_redirects_tee_log_dir_and_filter_mean_what_they_mean_to_torchrun(tmp_path, options):
    (tmp_path / "says.py").write_text(SAYS)
    told = []
    for name, launcher in (("theirs", ("torch.distributed.run",)), ("ours", ours())):
        logs = tmp_path / name
        done = run(tmp_path, launcher, "--log-dir", str(logs), *options, "says.py")
        assert done.returncode == 0, done.stderr
        told.append(streams(done, logs))
    assert told[0] == told[1]


def test_the_ranks_stdin_is_left_to_them(tmp_path):
    (tmp_path / "reads.py").write_text(
        "import os\nif os.environ['RANK'] == '0':\n    print('got', input(), flush=True)\n"
    )
    done = run(tmp_path, ours(), "reads.py", input="a line for rank 0\n")
    assert done.returncode == 0, done.stderr
    assert "got a line for rank 0" in done.stdout


def test_a_waiting_rank_is_announced_where_its_own_output_is_filtered(launch, tmp_path):
    (tmp_path / "stops.py").write_text(SAYS + "import raytrain_debug\nraytrain_debug.breakpoint(rank=1)\nx = 1\n")
    logs = ("--log-dir", tmp_path / "logs", "--redirects", "3", "--local-ranks-filter", "0")
    job = launch("--nproc-per-node", "2", *logs, "stops.py")
    output = job.wait_output("rank 1 waits for a debugger")
    assert "out of rank 1" not in output
    session = job.session(1)
    assert session.wait_for_stop(20) is not None
    session.disconnect()
    assert job.wait() == 0
