"""The pytest fixture `raytrain_run`: a real fit in the test's own process, with everything that it reported."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import ray.train
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

import raytrain_debug
from raytrain_debug.pytest_plugin import recorded
from tests.conftest import REPOSITORY


def fit(train_loop) -> ray.train.Result:
    return DataParallelTrainer(train_loop, scaling_config=ray.train.ScalingConfig(num_workers=0)).fit()


def report_three_times():
    for number in range(3):
        with tempfile.TemporaryDirectory() as directory:
            Path(directory, "number.txt").write_text(str(number))
            ray.train.report({"number": number}, checkpoint=ray.train.Checkpoint.from_directory(directory))


def test_the_example_passes_as_its_first_lines_say():
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "examples/test_training.py"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout


def test_the_directory_of_the_test_is_left_to_it(raytrain_run, tmp_path):
    assert list(tmp_path.iterdir()) == []


def test_every_report_is_there_with_its_checkpoint_alive(raytrain_run):
    result = fit(report_three_times)
    assert not Path(result.checkpoint.path).exists()  # what Ray hands over
    assert [report.metrics["number"] for report in raytrain_run.reports] == [0, 1, 2]
    for report in raytrain_run.reports:
        assert Path(report.checkpoint.path, "number.txt").read_text() == str(report.metrics["number"])
        assert Path(report.where.file).name == "test_fixture.py"
        assert report.context["world_size"] == 1


def test_reports_before_an_exception_are_there(raytrain_run):
    def fail():
        ray.train.report({"number": 1})
        raise ValueError("no further")

    with pytest.raises(ValueError, match="no further"):
        fit(fail)
    assert [report.metrics["number"] for report in raytrain_run.reports] == [1]
    assert "Rank 0 failed with ValueError: no further at " in raytrain_run.run.verdict
    assert "in fail, after 1 report." in raytrain_run.run.verdict


def test_two_fits_of_a_test_are_one_run(raytrain_run):
    fit(report_three_times)
    fit(report_three_times)
    assert [report.index for report in raytrain_run.reports] == list(range(6))


def test_the_run_is_one_for_load_run_and_the_commands(raytrain_run):
    fit(report_three_times)
    assert raytrain_debug.load_run(raytrain_run.path).ranks[0].reports == raytrain_run.reports
    done = subprocess.run(
        [sys.executable, "-m", "raytrain_debug", "postmortem", raytrain_run.path], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "number" in done.stdout


def test_recording_ends_with_its_block_and_one_inside_another_has_its_own(tmp_path):
    def report():
        ray.train.report({"number": 1})

    with recorded(tmp_path / "outer", "outer") as outer:
        with recorded(tmp_path / "inner", "inner") as inner:
            fit(report)
        fit(report)
        fit(report)
        assert outer.run.verdict == "The run is running."
    fit(report)
    assert (len(inner.reports), len(outer.reports)) == (1, 2)
    assert outer.run.verdict == inner.run.verdict == "It was recorded in a test, which is over."


def test_the_plugin_costs_nothing_where_it_is_not_used():
    code = "import sys, raytrain_debug.pytest_plugin; print(sorted({'ray', 'torch', 'wrapt'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
