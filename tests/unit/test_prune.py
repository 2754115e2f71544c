"""Old runs are removed, and only those: never one that is at work."""

from __future__ import annotations

import json
import os
import socket
import time
from pathlib import Path

import pytest

from raytrain_debug.cli import main
from raytrain_debug.errors import UsageError
from raytrain_debug.postmortem.pruning import parse_age
from raytrain_debug.run import layout, writer
from raytrain_debug.run.records import LauncherRecord, RunRecord
from tests.unit.made_runs import this_process_as_launcher

DAY = 86400.0


def made(root: Path, number: int, days_ago: float = 0.0, launcher: LauncherRecord | None = None) -> layout.RunPaths:
    """A run that ended so long ago, or is at work when it has a launcher."""
    run = layout.create_run(root, f"20260101-00000{number}-aaaa")
    ended = None if launcher is not None else time.time() - days_ago * DAY
    started = time.time() - days_ago * DAY - 60
    writer.write_record(
        run.record, RunRecord(run.id, ("t.py",), "/", "single", started, 1, launcher=launcher, ended=ended)
    )
    (run.directory / "big").write_bytes(b"x" * 100_000)
    return run


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / layout.ROOT_NAME


def left(root: Path) -> list[int]:
    return [int(run.id[14]) for run in layout.list_runs(root)]


def prune(root: Path, *arguments: str) -> int:
    return main(["runs", "prune", "--run-root", str(root), *arguments])


def test_keep_leaves_the_newest_and_latest_still_names_one(root, capsys):
    for number in range(4):
        made(root, number)
    assert prune(root, "--keep", "2") == 0
    assert left(root) == [2, 3]
    assert layout.find_run(None, root).id.startswith("20260101-000003")
    out = capsys.readouterr().out
    assert "2 runs removed, 2" in out
    assert "KiB" in out


def test_older_than_counts_from_the_end_of_a_run(root):
    made(root, 0, days_ago=9)
    made(root, 1, days_ago=6)
    prune(root, "--older-than", "7d")
    assert left(root) == [1]


def test_both_bounds_must_give_a_run_up(root):
    for number in range(4):
        made(root, number, days_ago=10 - 3 * number)
    prune(root, "--keep", "1", "--older-than", "5d")
    assert left(root) == [2, 3]


def test_a_run_at_work_stays_however_old(root, capsys):
    made(root, 0, days_ago=100, launcher=this_process_as_launcher())
    made(root, 1, days_ago=100)
    assert prune(root, "--keep", "0") == 0
    assert left(root) == [0]
    assert "kept: at work" in capsys.readouterr().out


def test_a_run_on_another_machine_that_has_not_ended_counts_as_at_work(root):
    elsewhere = LauncherRecord(1, 1.0, socket.gethostname() + "-other", "/nowhere.sock")
    made(root, 0, days_ago=100, launcher=elsewhere)
    prune(root, "--keep", "0")
    assert left(root) == [0]


def test_a_run_whose_launcher_was_killed_is_removed(root):
    made(root, 0, days_ago=100, launcher=this_process_as_launcher(alive=False))
    prune(root, "--keep", "0")
    assert left(root) == []


def test_a_run_that_has_just_been_made_stays_though_it_has_no_record_yet(root):
    run = layout.create_run(root)
    prune(root, "--keep", "0")
    assert [each.id for each in layout.list_runs(root)] == [run.id]
    for path in (run.directory, run.ranks):
        os.utime(path, (1e9, 1e9))
    run_without_record = layout.create_run(root, "20200101-000000-aaaa")
    for path in (run_without_record.ranks, run_without_record.directory):
        os.utime(path, (1e9, 1e9))
    prune(root, "--keep", "0")
    assert run_without_record.id not in [each.id for each in layout.list_runs(root)]


def test_removing_the_latest_points_latest_at_the_newest_left(root):
    made(root, 0, launcher=this_process_as_launcher())
    made(root, 1)
    prune(root, "--keep", "0")
    assert layout.find_run(None, root).id.startswith("20260101-000000")


def test_removing_all_leaves_no_dangling_latest(root):
    made(root, 0)
    prune(root, "--keep", "0")
    assert not (root / "latest").is_symlink()


def test_dry_run_removes_nothing_and_says_what_it_would(root, capsys):
    made(root, 0)
    prune(root, "--keep", "0", "--dry-run")
    assert left(root) == [0]
    assert "1 run would be removed" in capsys.readouterr().out


def test_json_tells_runs_sizes_and_reasons(root, capsys):
    made(root, 0)
    made(root, 1, launcher=this_process_as_launcher())
    prune(root, "--keep", "0", "--json")
    told = json.loads(capsys.readouterr().out)
    assert [each["run"] for each in told["removed"]] == ["20260101-000000-aaaa"]
    assert told["freed"] == told["removed"][0]["size"] >= 100_000
    assert told["kept"][0]["why"] == "at work"


def test_what_a_killed_prune_left_is_taken_away(root):
    made(root, 0)
    hidden = root / "runs" / ".20250101-000000-aaaa.removed"
    hidden.mkdir()
    (hidden / "big").write_bytes(b"x")
    prune(root, "--keep", "5")
    assert not hidden.exists()
    assert left(root) == [0]


def test_a_symbolic_link_in_a_run_is_removed_and_not_what_it_names(root, tmp_path):
    outside = tmp_path / "precious"
    outside.mkdir()
    (outside / "file").write_text("x")
    (made(root, 0).directory / "link").symlink_to(outside)
    prune(root, "--keep", "0")
    assert (outside / "file").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may remove anything")
def test_a_run_that_cannot_be_removed_is_told_and_the_others_go(root, capsys):
    made(root, 0)
    (root / "runs").chmod(0o500)
    try:
        assert prune(root, "--keep", "0") == 1
    finally:
        (root / "runs").chmod(0o700)
    assert "cannot be removed" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments", [["prune"], ["prune", "--keep", "-1"], ["prune", "--older-than", "soon"], ["--keep", "2"]]
)
def test_wrong_usage_is_told_in_words(root, arguments, capsys):
    assert main(["runs", "--run-root", str(root), *arguments]) == 2
    assert "error" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("30m", 1800), ("12h", 43200), ("7d", 7 * DAY), ("2", 2 * DAY)]
)
def test_ages(text, seconds):
    assert parse_age(text) == seconds


def test_an_age_without_sense_is_refused():
    with pytest.raises(UsageError):
        parse_age("-1d")
