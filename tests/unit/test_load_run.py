"""A recorded run in Python: `raytrain_debug.load_run`, as its documentation shows it."""

from __future__ import annotations

import doctest
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

import raytrain_debug
from raytrain_debug.errors import CheckpointError, RunNotFound
from raytrain_debug.postmortem import loaded
from raytrain_debug.run import layout
from raytrain_debug.shim import core
from tests.conftest import REPOSITORY
from tests.unit.made_runs import GONE, MadeRun, exception


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MadeRun:
    """Two ranks that reported twice; then rank 1 failed. It is the newest run of the working directory."""
    monkeypatch.chdir(tmp_path)
    run = MadeRun(tmp_path / layout.ROOT_NAME)
    for rank in (0, 1):
        run.started(rank)
        for index in (0, 1):
            torch.save(torch.nn.Linear(3, 2).state_dict(), run.snapshot(rank, index) / "model.pt")
            run.reported(rank, index, {"loss": 0.5 / (1 + index), "nested": {"a": 1}}, run.kept(rank, index))
    leave_core(run.paths.rank(1))
    run.thread_ended(0, exception("'key'", "KeyError"), report=1)
    run.ended(1, exit_code=1)
    run.ended(0, exit_code=None, signal="SIGTERM", caused=True)
    run.write(exit_code=1)
    return run


def leave_core(paths: layout.RankPaths) -> None:
    """The core of a real exception, made to look as that of the run's rank."""

    def train_func(step: int) -> None:
        batch = {"x": torch.arange(3.0)}
        rest = object()
        raise ValueError("loss is nan", len(batch), rest)

    try:
        train_func(7)
    except ValueError as error:
        core.of_exception(core.Whose(paths, 0, 0.0), error, threading.current_thread())
    text = paths.core.read_text()
    before, after = f'"pid":{os.getpid()}', f'"pid":{GONE}'
    assert before in text
    paths.core.write_text(text.replace(before, after))


@pytest.mark.parametrize("where", [loaded.__name__, "docs/python.md"])
def test_the_documentation_shows_what_happens(made, where):
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    if where.endswith(".md"):
        result = doctest.testfile(str(REPOSITORY / where), module_relative=False, optionflags=flags)
    else:
        result = doctest.testmod(loaded, optionflags=flags)
    assert result.attempted > 5
    assert result.failed == 0


def test_the_newest_run_one_by_its_id_its_directory_or_its_root(made, tmp_path):
    for name in (None, made.paths.id, made.paths.id[:17], made.paths.directory, tmp_path / layout.ROOT_NAME):
        assert raytrain_debug.load_run(name).id == made.paths.id
    with pytest.raises(RunNotFound):
        raytrain_debug.load_run("20200101")


def test_reports_and_checkpoints_of_every_report_that_has_a_copy(made):
    rank = raytrain_debug.load_run().ranks[0]
    assert [report.metrics["loss"] for report in rank.reports] == [0.5, 0.25]
    first, last = (report.checkpoint.open()["model.pt"]["weight"] for report in rank.reports)
    assert first.shape == last.shape == (2, 3)
    assert not torch.equal(first, last)
    assert rank.checkpoint is rank.reports[-1].checkpoint


def test_a_checkpoint_whose_copy_is_gone_says_so(made):
    for file in (made.paths.rank(0).checkpoints / "0").iterdir():
        file.unlink()
    (made.paths.rank(0).checkpoints / "0").rmdir()
    checkpoint = raytrain_debug.load_run().ranks[0].reports[0].checkpoint
    assert checkpoint.path is None
    with pytest.raises(CheckpointError, match="no copy"):
        checkpoint.open()


def test_locals_of_a_core_are_values_again_where_all_of_them_was_kept(made):
    frame = raytrain_debug.load_run().ranks[1].core.frames[-1]
    assert (frame.function, Path(frame.file).name) == ("train_func", "test_load_run.py")
    assert frame.locals["step"] == 7
    assert frame.locals["batch"]["x"].tolist() == [0.0, 1.0, 2.0]
    assert repr(frame.locals["rest"]) == "<object object>"


def test_a_rank_without_a_core_and_one_that_is_not_there(made):
    run = raytrain_debug.load_run()
    assert run.ranks[0].core is None
    assert run.ranks[0].exit.signal == "SIGTERM"
    assert [rank.rank for rank in run.ranks] == [0, 1]
    with pytest.raises(RunNotFound, match="no rank 7"):
        run.ranks[7]


def test_reports_frame_has_a_row_a_report_and_a_column_a_metric(made):
    made.reported(0, 2, {"loss": 0.1, "time": 3})
    made.write(exit_code=1)
    frame = raytrain_debug.load_run().reports_frame()
    assert list(frame["rank"]) == [0, 1, 0, 1, 0]
    assert list(frame[frame["rank"] == 0]["loss"]) == [0.5, 0.25, 0.1]
    assert frame["nested.a"].notna().sum() == 4
    assert frame["metrics.time"].notna().sum() == 1
    assert str(frame["time"].dtype).startswith("datetime64")


def test_reports_frame_takes_text_that_is_no_unicode(tmp_path):
    run = MadeRun(tmp_path / "runs", world_size=1)
    run.started(0)
    run.reported(0, 0, {"name": "\ud800"})
    frame = raytrain_debug.load_run(run.write().paths.directory).reports_frame()
    assert list(frame["name"]) == ["\\ud800"]


def test_a_snapshot_that_made_room_says_so(made):
    shutil.rmtree(made.paths.rank(0).checkpoints / "0")
    with pytest.raises(CheckpointError, match="it made room for newer ones"):
        raytrain_debug.load_run().ranks[0].reports[0].checkpoint.open()


def test_reports_frame_of_a_run_without_reports_is_empty(tmp_path):
    run = MadeRun(tmp_path / "root")
    run.write()
    frame = raytrain_debug.load_run(run.paths.directory).reports_frame()
    assert len(frame) == 0
    assert "rank" in frame.columns


def test_a_rank_that_died_in_an_earlier_way_still_loads(made):
    made.died(0, exception())
    core_record = raytrain_debug.load_run().ranks[0].core
    assert core_record.frames == ()
    assert core_record.exception.message == "loss is nan"


def test_importing_and_loading_a_run_imports_no_torch(made):
    code = "import sys, raytrain_debug; raytrain_debug.load_run().ranks[0].reports; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_compare_takes_ranks_reports_of_a_rank_and_another_run(made, tmp_path):
    run = raytrain_debug.load_run()
    assert [each.kind for each in run.compare()] == ["ranks"]
    assert [each.rank for each in run.compare(reports=(0, 1), ranks=[0, 1])] == [0, 1]
    same = run.compare(raytrain_debug.load_run())
    assert [each.differs for each in same] == [False, False]
    assert not run.compare(rtol=1e9, atol=1e9)[0].differs
