"""A run directory on a full disk, on a read-only one, or deleted meanwhile: training goes on, and it is said once."""

import os
import re
import shutil
import subprocess
import sys

import pytest

from raytrain_debug.run import layout
from tests.conftest import wait_for

TRAIN = """
import os, sys, time
import ray.train
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer

def train():
    for step in range(int(sys.argv[1])):
        ray.train.report({"step": step, "text": "x" * 1000})
        if step == 2:
            open(os.path.join(os.path.dirname(__file__), "reporting-" + os.environ.get("RANK", "0")), "w").close()
        while step == 4 and not os.path.exists(os.path.join(os.path.dirname(__file__), "go")):
            time.sleep(0.01)
    print("trained", step + 1, flush=True)

TorchTrainer(train, scaling_config=ScalingConfig(num_workers=0)).fit()
"""

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to mount a small file system")


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 256 KiB."""
    directory = tmp_path / "disk"
    directory.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", directory], check=True)
    yield directory
    while os.path.ismount(directory):
        subprocess.run(["umount", "-l", directory], check=True)


def make_read_only(directory):
    """From now on every path in it is on a read-only disk, whatever files of it are open."""
    subprocess.run(["mount", "--bind", directory, directory], check=True)
    subprocess.run(["mount", "-o", "remount,bind,ro", directory], check=True)


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(TRAIN)
    return path


def complaints(output):
    return [line for line in output.splitlines() if re.search("goes on", line)]


def reporting(job, ranks=1):
    names = {f"reporting-{rank}" for rank in range(ranks)}
    return lambda: names <= set(os.listdir(job.cwd)) or job.process.poll() is not None


@needs_root
def test_a_disk_that_fills_up(launch, small_disk, script, tmp_path):
    (tmp_path / "go").touch()
    job = launch("--no-torchrun", "--run-root", small_disk / "runs-of-us", script, "400")
    assert job.wait() == 0
    assert "trained 400" in job.output
    said = complaints(job.output)
    assert sum("writing to the run directory failed" in line for line in said) == 1
    assert all("No space left on device" in line for line in said)
    assert len(said) <= 2, "each process says it once: the rank, and the launcher where it had to write then"
    # What was whole before is whole still.
    (run,) = layout.list_runs(small_disk / "runs-of-us")
    reports = run.rank(0).reports.read_bytes().splitlines()
    assert len(reports) > 50


@needs_root
def test_a_disk_that_becomes_read_only(launch, small_disk, script, tmp_path):
    job = launch("--nproc-per-node", "2", "--run-root", small_disk, script, "50")
    wait_for(reporting(job, 2), 60, "both ranks to report")
    make_read_only(small_disk)
    (tmp_path / "go").touch()
    assert job.wait() == 0
    assert job.output.count("trained 50") == 2
    said = complaints(job.output)
    assert sum("writing to the run directory failed" in line for line in said) == 2, "each of two ranks says it once"
    assert sum("what becomes of it is not recorded" in line for line in said) == 1
    assert all("Read-only file system" in line for line in said)
    assert "Traceback" not in job.output


def test_a_run_directory_that_is_deleted_during_the_run(launch, script, tmp_path):
    job = launch("--no-torchrun", script, "50")
    wait_for(reporting(job), 60, "the rank to report")
    shutil.rmtree(tmp_path / layout.ROOT_NAME)
    (tmp_path / "go").touch()
    assert job.wait() == 0
    assert "trained 50" in job.output
    said = complaints(job.output)
    assert sum("writing to the run directory failed" in line for line in said) == 1
    assert len(said) == 2
    assert not (tmp_path / layout.ROOT_NAME).exists(), "what was deleted has come back"


@needs_root
def test_a_working_directory_that_cannot_be_written_has_its_runs_elsewhere(small_disk, script):
    shutil.copy(script, small_disk / "train.py")
    (small_disk / "go").touch()
    (small_disk / "reporting-0").touch()
    make_read_only(small_disk)
    line = [sys.executable, "-m", "raytrain_debug"]
    done = subprocess.run(
        [*line, "launch", "--no-torchrun", "--base-port", "auto", "train.py", "2"],
        cwd=small_disk,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "trained 2" in done.stdout
    assert done.returncode == 0
    (root,) = re.findall(
        r"cannot record the run in .*: Read-only file system\n.*give other commands --run-root (.*)\n", done.stderr
    )
    status = subprocess.run(
        [*line, "status", "--run-root", root], cwd=small_disk, capture_output=True, text=True, timeout=60
    )
    assert "train.py 2" in status.stdout
    named = subprocess.run(
        [*line, "launch", "--no-torchrun", "--base-port", "auto", "--run-root", "runs", "train.py", "2"],
        cwd=small_disk,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert named.returncode == 1
    assert f"cannot record a run in {small_disk}/runs: Read-only file system" in named.stderr
    assert "trained" not in named.stdout
