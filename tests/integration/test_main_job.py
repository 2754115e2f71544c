"""The main job on real data: launch the digits example, then everything a person reads of it afterwards."""

import json
import subprocess
import sys

import pytest
import torch

from tests.conftest import REPOSITORY, TARGETS

DIGITS = REPOSITORY / "examples" / "digits_ddp.py"
CONTEXT = {"world_size", "world_rank", "local_rank", "local_world_size", "node_rank", "experiment_name"}


def command(cwd, *arguments, check=True):
    done = subprocess.run(
        [sys.executable, "-m", "raytrain_debug", *arguments], cwd=cwd, capture_output=True, text=True, check=False
    )
    if check:
        assert done.returncode == 0, done.stderr
    return done


def as_json(cwd, *arguments):
    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(command(cwd, *arguments, "--json").stdout, parse_constant=refuse)


def test_the_digits_job_is_recorded_and_its_checkpoints_survive(launch, tmp_path):
    job = launch("--nproc-per-node", "2", DIGITS, "--epochs", "8")
    assert job.wait() == 0, job.output
    latest = tmp_path / ".raytrain_debug" / "latest"
    for rank in (0, 1):
        directory = latest / "ranks" / str(rank)
        reports = [json.loads(line) for line in (directory / "reports.jsonl").read_text().splitlines()]
        assert [report["index"] for report in reports] == list(range(8))
        last = reports[-1]
        assert last["metrics"]["accuracy"] >= 0.9
        assert set(last["context"]) >= CONTEXT
        assert (last["context"]["world_rank"], last["context"]["world_size"]) == (rank, 2)
        assert last["where"]["file"] == str(DIGITS)
        assert last["where"]["function"] == "train_loop"
        assert last["process"]["rss"] > 1_000_000
        snapshot = directory / last["checkpoint"]["snapshot"]
        for file in last["checkpoint"]["files"]:
            assert (snapshot / file["path"]).stat().st_size == file["size"]
        assert "0.weight" in torch.load(snapshot / "model.pt", weights_only=True)

    status = as_json(tmp_path, "status")
    assert [(rank["rank"], rank["state"], rank["reports"]) for rank in status["ranks"]] == [
        (0, "finished", 8),
        (1, "finished", 8),
    ]
    assert status["ranks"][1]["last_report"]["metrics"]["epoch"] == 7
    result = as_json(tmp_path, "postmortem")
    assert result["run"] == status["run"] == job.paths.id
    assert result["verdict"]["first_failure"] is None
    tensors = result["ranks"][0]["checkpoint"]["tensors"]
    weight = next(tensor for tensor in tensors if tensor["name"] == "0.weight")
    assert (weight["file"], weight["shape"], weight["dtype"], weight["nan"], weight["inf"]) == (
        "model.pt", [16, 1, 3, 3], "float32", 0, 0)  # fmt: skip
    assert weight["min"] < weight["mean"] < weight["max"]
    assert "digits_ddp.py" in command(tmp_path, "runs").stdout


def test_an_exception_on_one_rank_is_the_verdict(launch, tmp_path):
    script = tmp_path / "fails.py"
    script.write_text(
        "import ray.train\nfrom ray.train.torch import TorchTrainer\n\n\n"
        "def train():\n    rank = ray.train.get_context().get_world_rank()\n"
        "    ray.train.report({'loss': float('nan'), 'rank': rank})\n"
        "    if rank == 1:\n        raise ValueError('bad batch')\n    import torch\n\n"
        "    torch.distributed.barrier()\n\n\n"
        "TorchTrainer(train, scaling_config=ray.train.ScalingConfig(num_workers=0)).fit()\n"
    )
    job = launch("--nproc-per-node", "2", script)
    assert job.wait() == 1
    assert "ValueError: bad batch" in job.output
    assert "raytrain_debug/shim" not in job.output, "no frame of ours in the user's traceback"
    failure = as_json(tmp_path, "postmortem")["verdict"]["first_failure"]
    assert (failure["rank"], failure["kind"]) == (1, "exception")
    assert failure["exception"] == "ValueError: bad batch"
    assert failure["where"] == {"file": str(script), "line": 9, "function": "train"}
    shown = command(tmp_path, "postmortem").stdout
    assert shown.startswith("Rank 1 failed first with ValueError: bad batch")
    assert "nan" in shown


@pytest.mark.parametrize(("code", "expected"), [("import sys; sys.exit(3)", 3), ("print('fine')", 0), ("1 / 0", 1)])
def test_single_process_mode_passes_on_the_exit_code(launch, tmp_path, code, expected):
    (tmp_path / "one.py").write_text(code)
    job = launch("--no-torchrun", "one.py")
    assert job.wait() == expected, job.output


def test_a_launcher_leaves_nothing_open_that_python_would_complain_of(launch, tmp_path):
    (tmp_path / "one.py").write_text("print('fine')")
    job = launch("--no-torchrun", "one.py", env={"PYTHONWARNINGS": "always::ResourceWarning"})
    assert job.wait() == 0
    assert "unclosed" not in job.output


def test_single_process_local_mode_is_recorded(launch, tmp_path):
    job = launch("--no-torchrun", REPOSITORY / "examples" / "linear_single.py")
    assert job.wait() == 0, job.output
    rank = job.run.rank(0)
    assert rank.report_count > 0
    assert rank.last_report.context["world_size"] == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ("launch", "--wait", "7", "--nproc-per-node", "2", str(TARGETS / "steps.py"), "1"),
            "rank 7 is not in this job",
        ),
        (("launch", "--nproc-per-node", "0", str(TARGETS / "steps.py")), "--nproc-per-node 0 starts no rank"),
        (("launch", "--nproc-per-node=-1", str(TARGETS / "steps.py")), "--nproc-per-node -1 starts no rank"),
        (("launch", "--nproc-per-node", "1", "-m", "nosuch.module"), "there is no module nosuch.module"),
        (("launch", "--base-port", "x", "--nproc-per-node", "2", "a.py"), "no port"),
        (("launch", "--keep-checkpoints", "-1", "--no-torchrun", "a.py"), "--keep-checkpoints"),
    ],
)
def test_a_mistake_on_the_command_line_is_told_in_words(tmp_path, arguments, words):
    done = command(tmp_path, *arguments, check=False)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_nothing_recorded_yet_says_what_to_type(tmp_path):
    for name in ("status", "postmortem", "attach"):
        done = command(tmp_path, name, *(["--rank", "0"] if name == "attach" else []), check=False)
        assert done.returncode == 1
        assert "launch" in done.stderr
        assert "Traceback" not in done.stderr
