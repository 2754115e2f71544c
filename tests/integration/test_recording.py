"""Reports of real training under torchrun and of Ray's single-process local mode, recorded by the hooks."""

import json
import os
import random
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from raytrain_debug.run import layout, reader
from tests.conftest import REPOSITORY, TARGETS

KILLS = int(os.environ.get("RAYTRAIN_DEBUG_TEST_KILLS", "4"))
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY)}


@pytest.fixture
def run(tmp_path):
    return layout.create_run(tmp_path / layout.ROOT_NAME)


def recorded(run, script, *arguments, keep=2):
    """The arguments of python that run a script with the hooks installed."""
    return [str(TARGETS / "record_run.py"), str(run.directory), str(keep), str(script), *arguments]


def python(*arguments, timeout=120, **environment):
    return subprocess.run(
        [sys.executable, *arguments],
        env={**ENVIRONMENT, **environment},
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def torchrun(*arguments, nproc=2, timeout=170, **environment):
    return python(
        "-m", "torch.distributed.run", "--nproc-per-node", str(nproc), *arguments, timeout=timeout, **environment
    )


def test_the_digits_example_trains_and_every_rank_leaves_its_reports_and_snapshots(run):
    start = time.monotonic()
    done = torchrun(*recorded(run, REPOSITORY / "examples" / "digits_ddp.py"))
    seconds = time.monotonic() - start
    assert done.returncode == 0, done.stderr
    assert not run.errors.exists(), run.errors.read_text()
    ranks = reader.load_run(run).ranks
    assert [rank.rank for rank in ranks] == [0, 1]
    for rank in ranks:
        assert [report.index for report in rank.reports] == list(range(10))
        assert {report.attempt for report in rank.reports} == {0}
        context = rank.last_report.context
        assert (context["world_size"], context["world_rank"], context["local_world_size"]) == (2, rank.rank, 2)
        where = rank.last_report.where
        assert where.function == "train_loop"
        assert "ray.train.report(" in Path(where.file).read_text().splitlines()[where.line - 1]
        assert rank.last_report.metrics["accuracy"] >= 0.95
        assert sorted(os.listdir(rank.paths.checkpoints)) == ["8", "9"]
        weights = torch.load(rank.snapshot / "model.pt", weights_only=True)
        assert weights["0.weight"].shape == (16, 1, 3, 3)
        sizes = {file.path: file.size for file in rank.last_checkpoint.files}
        assert sizes == {path.name: path.stat().st_size for path in rank.snapshot.iterdir()}
        assert not os.path.exists(rank.last_checkpoint.source)
    assert float(re.search(r"done: accuracy ([\d.]+)", done.stdout)[1]) >= 0.95
    assert seconds < 60


def test_the_single_process_example_is_rank_0(run):
    done = python(*recorded(run, REPOSITORY / "examples" / "linear_single.py", "--epochs", "3"))
    assert done.returncode == 0, done.stderr
    (rank,) = reader.load_run(run).ranks
    assert (rank.rank, rank.report_count, rank.last_report.context["world_size"]) == (0, 3, 1)
    assert torch.load(rank.snapshot / "model.pt", weights_only=True)["weight"].shape == (1, 1)


def test_ray_behaves_towards_the_script_as_without_us(run):
    script = TARGETS / "observe_ray.py"
    plain, ours = python(str(script)), python(*recorded(run, script))
    assert plain.returncode == ours.returncode == 0, ours.stderr
    assert json.loads(ours.stdout) == json.loads(plain.stdout)
    assert [re.sub(r"^\S+ \S+", "", line) for line in ours.stderr.splitlines()] == [
        re.sub(r"^\S+ \S+", "", line) for line in plain.stderr.splitlines()
    ]
    assert reader.load_run(run).ranks[0].report_count == 3


def test_children_of_a_rank_record_nothing(run, tmp_path):
    script = tmp_path / "fork.py"
    script.write_text(
        "import os, sys, ray.train\n"
        "from ray.train.torch import TorchTrainer\n"
        "def train():\n"
        "    child = os.fork()\n"
        "    ray.train.report({'child': not child})\n"
        "    if not child:\n"
        "        os._exit(0)\n"
        "    os.waitpid(child, 0)\n"
        "TorchTrainer(train, scaling_config=ray.train.ScalingConfig(num_workers=0)).fit()\n"
    )
    done = python(*recorded(run, script))
    assert done.returncode == 0, done.stderr
    assert [report.metrics for report in reader.load_run(run).ranks[0].reports] == [{"child": False}]


def test_a_ray_without_the_place_for_our_hook_is_said_once(run, tmp_path):
    script = tmp_path / "old.py"
    script.write_text("import ray.train, ray.train.torch\n")
    done = python(*recorded(run, script), RAY_TRAIN_V2_ENABLED="0")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("reports need Ray Train V2") == 1
    assert "RAY_TRAIN_V2_ENABLED" in run.errors.read_text()


def test_restarted_ranks_number_their_reports_on(run, tmp_path):
    script = tmp_path / "crash.py"
    script.write_text(
        "import os, ray.train\n"
        "from ray.train.torch import TorchTrainer\n"
        "def train():\n"
        "    for step in range(2):\n"
        "        ray.train.report({'step': step})\n"
        "    if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0':\n"
        "        raise RuntimeError('the first attempt fails')\n"
        "TorchTrainer(train, scaling_config=ray.train.ScalingConfig(num_workers=0)).fit()\n"
    )
    done = torchrun("--max-restarts", "1", *recorded(run, script), nproc=1)
    assert done.returncode == 0, done.stderr
    (rank,) = reader.load_run(run).ranks
    assert [(report.index, report.attempt) for report in rank.reports] == [(0, 0), (1, 0), (2, 1), (3, 1)]


@pytest.mark.timeout(60 + 20 * KILLS)
def test_kills_at_random_instants_leave_every_completed_record_readable(run, tmp_path):
    """RAYTRAIN_DEBUG_TEST_KILLS=100 runs it as often; each kill is one more attempt in the same run directory."""
    checkpoints = tmp_path / "checkpoints"
    checkpoints.mkdir()
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    completed = 0
    for attempt in range(KILLS):
        size = chance.choice([80, 800_000])
        environment = {**ENVIRONMENT, "CHECKPOINTS": str(checkpoints), "TORCHELASTIC_RESTART_COUNT": str(attempt)}
        with subprocess.Popen(
            [sys.executable, *recorded(run, TARGETS / "report_forever.py", str(size))],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        ) as child:
            printed = [child.stdout.readline()]
            time.sleep(chance.uniform(0, 0.3))
            child.kill()
            printed += child.stdout.read().splitlines()
        assert printed[0], "the target did not start"
        (rank,) = reader.load_run(run).ranks
        numbers = [report.metrics["number"] for report in rank.reports if report.attempt == attempt]
        context = f"seed {seed}, attempt {attempt}"
        assert numbers == list(range(len(numbers))), context
        assert len(numbers) >= len([line for line in printed if line.strip()]), context
        completed += len(numbers)
        assert len(rank.reports) == completed, context
        assert [report.index for report in rank.reports] == list(range(completed)), context
        for report in rank.reports[-3:]:
            snapshot = rank.snapshot_of(report.checkpoint) if report.checkpoint else None
            if snapshot is not None:
                expected = b"%08d" % report.metrics["number"] * (report.checkpoint.files[0].size // 8)
                assert (snapshot / "model.pt").read_bytes() == expected, context
        assert rank.snapshot is not None, context
    assert rank.damaged <= KILLS


def test_a_big_checkpoint_in_a_temporary_directory_survives_it_without_a_copy(run, tmp_path):
    checkpoints = tmp_path / "checkpoints"
    checkpoints.mkdir()
    size = 64 << 20
    script = TARGETS / "report_forever.py"
    done = python(*recorded(run, script, str(size), "4"), CHECKPOINTS=str(checkpoints))
    assert done.returncode == 0, done.stderr
    (rank,) = reader.load_run(run).ranks
    assert [report.checkpoint.kept for report in rank.reports[::2]] == ["hard links", "hard links"]
    for number in (0, 2):
        path = rank.snapshot_of(rank.reports[number].checkpoint) / "model.pt"
        assert path.read_bytes() == b"%08d" % number * (size // 8)
    assert not run.errors.exists(), run.errors.read_text()
