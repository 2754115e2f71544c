"""The command `check`: what it prints, its exit code, and what it takes from the records of a run."""

import json
import sys
from dataclasses import replace

import pytest
import torch

from raytrain_debug.check.rules import RULES
from raytrain_debug.cli import main
from raytrain_debug.render.check import format_rules
from raytrain_debug.run import writer
from raytrain_debug.run.records import CheckpointRecord, FileEntry
from raytrain_debug.shim.guard import Guard
from raytrain_debug.shim.recorder import Recorder
from tests.conftest import REPOSITORY
from tests.unit.made_runs import MadeRun

BAD = "from ray import train\nprint(train.get_world_rank())\n"
LOOP = "from ray import train\ndef loop():\n    train.report({'loss': 1.0})\n"


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def recorded(here, write, mode="torchrun", ranks=2, script="train.py", exit_code=0):
    """A run of `script` that has ended; `write(run)` makes its reports."""
    run = MadeRun(here / ".raytrain_debug", ranks, mode)
    for rank in range(ranks):
        run.started(rank)
        run.ended(rank, exit_code=exit_code)
    write(run)
    record = run.write().record
    writer.write_record(run.paths.record, replace(record, argv=(script, "--lr", "1"), cwd=str(here)))
    return run.paths.id


def check(capsys, *arguments):
    code = main(["check", *arguments, "--json"])
    said = json.loads(capsys.readouterr().out)
    return code, said, [finding["rule"] for finding in said["findings"]]


def test_a_finding_is_told_with_its_remedy_and_exit_code_3(here, capsys):
    (here / "train.py").write_text(BAD)
    assert main(["check", "train.py"]) == 3
    said = capsys.readouterr().out
    assert "train.py:2  rank-helper  from Ray 2.7" in said
    assert "→ ray.train.get_context().get_world_rank()" in said
    assert "1 finding in train.py; no run of it is recorded here" in said


def test_nothing_found_is_exit_code_0(here, capsys):
    (here / "train.py").write_text("print(1)\n")
    assert main(["check", "train.py"]) == 0
    assert "nothing found in train.py" in capsys.readouterr().out


def test_json_has_all_of_a_finding(here, capsys):
    (here / "train.py").write_text(BAD)
    code, said, _ = check(capsys, "train.py")
    assert code == 3
    assert said["script"] == "train.py"
    assert said["run"] is None
    (finding,) = said["findings"]
    assert finding.keys() == {"rule", "file", "line", "reason", "remedy", "since", "guess"}
    assert (finding["file"], finding["line"], finding["since"]) == ("train.py", 2, "2.7")


def test_a_rule_is_left_out_when_asked_to(here, capsys):
    (here / "train.py").write_text(BAD)
    assert check(capsys, "train.py", "--ignore", "rank-helper")[0] == 0
    assert main(["check", "train.py", "--ignore", "rank-helpers"]) == 2
    assert "rank-helper" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "code"), [("nothing.py", 2), ("notes.txt", 1), ("n.ipynb", 1)])
def test_what_is_no_script_is_told_in_words(here, capsys, name, code):
    (here / "notes.txt").write_text("no Python at all")
    (here / "n.ipynb").write_text('{"cells": [], "nbformat": 4}')
    assert main(["check", name]) == code
    assert capsys.readouterr().err.startswith("raytrain_debug: error: ")


def uneven(run):
    for index in range(3):
        run.reported(0, index)
    run.reported(1)


def test_ranks_that_reported_different_numbers_of_times_are_named(here, capsys):
    (here / "train.py").write_text(LOOP)
    run = recorded(here, uneven)
    code, said, rules = check(capsys, "train.py")
    assert (code, said["run"], rules) == (3, run, ["report-counts"])
    assert "rank 1 reported once, rank 0 3 times" in said["findings"][0]["reason"]
    assert said["findings"][0]["line"] == 88  # the report that rank 1 did not make


def test_a_rank_that_was_ended_early_is_no_finding(here, capsys):
    (here / "train.py").write_text(LOOP)
    recorded(here, uneven, exit_code=1)
    assert check(capsys, "train.py")[2] == []


def test_only_the_last_attempt_counts(here, capsys):
    def restarted(run):
        run.reported(0, 0)
        for rank in range(2):
            run.ended(rank, attempt=1)
            run.reported(rank, 1, attempt=1)

    (here / "train.py").write_text(LOOP)
    recorded(here, restarted)
    assert check(capsys, "train.py")[2] == []


def test_checkpoints_that_overwrite_each_other_are_named(here, capsys):
    def reports(run):
        for rank, size in enumerate((100, 200)):
            files = (FileEntry("model.pt", size), FileEntry(f"rank-{rank}.pt", size))
            run.reported(rank, checkpoint=CheckpointRecord("/tmp/there", None, files))

    (here / "train.py").write_text(LOOP)
    recorded(here, reports)
    _, said, rules = check(capsys, "train.py")
    assert rules == ["checkpoint-overwritten"]
    assert "model.pt, of 100 and 200 bytes" in said["findings"][0]["reason"]


def test_a_tensor_among_recorded_metrics_is_named(here, capsys):
    def reports(run):
        for rank in range(2):
            tensor = {"$type": "torch.Tensor", "shape": [2], "dtype": "torch.float32", "repr": "tensor([1., 2.])"}
            run.reported(rank, metrics={"loss": 0.5, "each": tensor})

    (here / "train.py").write_text(LOOP)
    recorded(here, reports)
    _, said, rules = check(capsys, "train.py")
    assert rules == ["tensor-metric"]
    assert "'each'" in said["findings"][0]["reason"]


def test_a_recorded_metric_that_was_a_tensor_of_one_element_is_named(here, capsys):
    (here / "train.py").write_text(LOOP)

    def reports(run):
        for rank in range(2):
            recorder = Recorder(run.paths.rank(rank), Guard(run.paths.errors), 0)
            recorder.record({"loss": torch.tensor(0.5), "lr": 0.1}, None, None, sys._getframe())

    recorded(here, reports)
    _, said, rules = check(capsys, "train.py")
    assert rules == ["tensor-metric"]
    assert "'loss'" in said["findings"][0]["reason"]


def test_a_local_run_tells_what_the_source_leaves_open(here, capsys):
    (here / "train.py").write_text(
        "import sys, ray.train\nfrom ray.train.torch import TorchTrainer\n"
        "def loop():\n    ray.train.get_context().get_storage()\n"
        "workers = int(sys.argv[1])\n"
        "TorchTrainer(loop, datasets={'a': 1}, scaling_config=ray.train.ScalingConfig(num_workers=workers))\n"
    )
    assert check(capsys, "train.py")[2] == []
    recorded(here, lambda run: None)
    _, said, rules = check(capsys, "train.py")
    assert rules == ["local-only", "datasets-torchrun"]
    assert [finding["guess"] for finding in said["findings"]] == [False, False]


def test_the_newest_run_of_the_script_is_taken_or_the_one_that_is_named(here, capsys):
    for name in ("train.py", "other.py"):
        (here / name).write_text(LOOP)
    first = recorded(here, uneven)
    second = recorded(here, lambda run: None)
    recorded(here, uneven, script="other.py")
    newest = max(first, second)
    assert check(capsys, "train.py")[1]["run"] == newest
    assert check(capsys, "train.py", "--run", first)[2] == ["report-counts"]
    assert main(["check", "train.py", "--run", "19700101"]) == 1


def test_the_table_of_rules_in_the_docs_is_the_one_that_is_run():
    assert format_rules(RULES) in (REPOSITORY / "docs" / "check.md").read_text()


def test_the_examples_of_this_project_have_no_finding(capsys):
    for script in sorted((REPOSITORY / "examples").rglob("*.py")):
        code, said, _ = check(capsys, str(script), "--run-root", "nowhere")
        assert code == 0, said["findings"]
