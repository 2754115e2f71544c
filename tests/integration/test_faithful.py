"""`launch --faithful` on real torchrun: calls that ranks make together do on one machine what they do on a cluster."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from raytrain_debug.cli import main
from raytrain_debug.postmortem.verdict import verdict
from raytrain_debug.run import layout
from raytrain_debug.shim.settings import Settings
from tests.conftest import TARGETS

TARGET = TARGETS / "faithful.py"


def line_of(text):
    lines = TARGET.read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


def check_history(seen, files, paths):
    """What one rank has seen of five reports with checkpoints, of which the two with the best score are kept."""
    assert seen["history"] == [
        # Of equal scores the later is the better; the newest is kept whatever its score.
        [f"the-{number}", {"number": number, "score": -abs(number - 1), "rank": 0}, files(str(number)), "COMMITTED"]
        for number in (3, 2, 1)
    ]
    assert seen["latest"] == files("3")
    assert seen["storage"] == str(paths.storage / "first")
    assert "Torch tensors" in seen["tensor"]
    assert seen["uploaded"] == ["uploaded"]
    assert seen["after upload"] == seen["result"] == files("1 by upload")


def test_ranks_wait_for_each_other_and_see_one_history_in_every_attempt(launch):
    # A store for each attempt, kept by rank 0: in the one that attempts share, gloo may find addresses of the last.
    own_store = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    options = ("--standalone", "--nproc-per-node", "2", "--max-restarts", "1")
    job = launch("--faithful", *options, TARGET, "all", "fails", env=own_store)
    assert job.wait() == 0, job.output
    zero, one = (json.loads((job.cwd / f"seen-{rank}.json").read_text()) for rank in (0, 1))
    for seen in (zero, one):
        assert (seen["barrier"], seen["report"], seen["broadcast waits"]) == (True, True, True)
        assert seen["broadcast"] == [0, False, True]
        both = {f"of-rank-{rank}.txt": "9" for rank in (0, 1)}
        assert seen["at first"] == [both, 1], "it goes on where the first attempt has failed"
        check_history(seen, lambda text: {"of-rank-0.txt": text, "of-rank-1.txt": text}, job.paths)
    assert zero["history"] == one["history"]
    assert one["said"] == [], "callbacks run on rank 0, as they run once, in the controller, on a cluster"
    both = [{"number": 0, "score": -1, "rank": 0}, {"number": 0, "score": -1, "rank": 1}]
    assert ["first", both, "the-0"] in zero["said"]
    assert ["first", [{"number": 4}, {"number": 4}], None] in zero["said"]
    assert len(zero["said"]) == 7
    assert (
        "rank 0: rank 1 has raised RuntimeError: planted in the first attempt; this rank waits for it in" in job.output
    )
    assert [json.loads(line) for line in (job.cwd / "after_exception.jsonl").read_text().splitlines()] == [
        [1, 0, {"1": ["UserExceptionWithTraceback", "RuntimeError: planted in the first attempt"]}]
    ]
    run = job.run
    assert [len(rank.reports) for rank in run.ranks] == [10, 9], "reports are recorded when they are made"
    judged = verdict(run)
    assert (judged.state, judged.earlier[0].rank) == ("finished", 1)


def test_one_process_is_a_world_of_its_own(launch):
    job = launch("--faithful", "--no-torchrun", TARGET, "all", "again")
    assert job.wait() == 0, job.output
    seen = json.loads((job.cwd / "seen-0.json").read_text())
    assert seen["broadcast"] == [0, False, True]
    assert seen["at first"] is None
    check_history(seen, lambda text: {"of-rank-0.txt": text}, job.paths)
    assert ["first", [{"number": 0, "score": -1, "rank": 0}], "the-0"] in seen["said"]
    assert [entry[0] for entry in seen["said by the second"]] == ["second"], "a second fit() has a history of its own"


def test_a_trainer_without_torch_makes_each_process_of_a_job_a_world_of_its_own(tmp_path):
    script = tmp_path / "alone.py"
    script.write_text(
        "import ray.train\n"
        "from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer\n"
        "def train():\n"
        "    ray.train.report({'loss': 1})\n"
        "    print(ray.train.get_context().get_storage().experiment_fs_path)\n"
        "DataParallelTrainer(\n"
        "    train,\n"
        "    scaling_config=ray.train.ScalingConfig(num_workers=0),\n"
        "    run_config=ray.train.RunConfig(name='same'),\n"
        ").fit()\n"
    )
    run = layout.create_run(tmp_path / layout.ROOT_NAME)
    settings = Settings(str(run.directory), "", os.getpid(), faithful=True)
    environment = {**os.environ, **settings.to_environment(), "RANK": "1", "WORLD_SIZE": "2"}
    command = [sys.executable, "-m", "raytrain_debug.shim", str(script)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == str(run.storage / "of-rank-1" / "same"), "beside those of rank 0"


def test_who_waits_is_seen_bears_a_debugged_peer_and_is_told_at_once_of_one_that_returns(launch, capsys, monkeypatch):
    job = launch("--faithful", "--nproc-per-node", "2", TARGET, "leaves")
    job.wait_state("waiting", (1,))
    monkeypatch.chdir(job.cwd)

    def waits():
        assert main(["stacks", "--json"]) == 0
        groups = json.loads(capsys.readouterr().out)["groups"]
        return [group["waiting_in"] for group in groups if group["ranks"] == [0]]

    while waits() != ["report"]:
        assert job.process.poll() is None, job.output
    session = job.session(1)
    assert session.wait_for_stop(60)
    assert job.status()[0]["state"] == "dormant"
    session.resume()
    session.disconnect()
    assert job.wait() == 1, job.output
    where = line_of("where rank 0 waits")
    assert (
        "RanksDiffer: rank 1 has returned from its training function after 1 report; "
        f"rank 0 waits in ray.train.report (its report 2) at faithful.py:{where} in leave. "
        "Calls of ray.train.report so far: 1 by rank 1, 2 by rank 0."
    ) in job.output
    first = verdict(job.run).first_failure
    assert (first.rank, first.where.line) == (0, where)


def test_a_rank_that_goes_without_a_word_is_named(launch):
    job = launch("--faithful", "--nproc-per-node", "2", TARGET, "dies")
    output = job.wait_output("this rank waits for it in ray.train.report (its report 2) at faithful.py")
    assert "rank 0: rank 1 (pid" in output
    assert "has died after 1 report;" in output


@pytest.mark.parametrize("arguments", [["--faithful", "--ray", str(TARGET)]])
def test_real_workers_need_no_faithful_mode(arguments, capsys):
    assert main(["launch", *arguments]) == 2
    assert "follow a cluster's rules anyway" in capsys.readouterr().err
