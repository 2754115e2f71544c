"""Numbers of reports over time, and which ranks come late."""

from __future__ import annotations

import math
import sys
from array import array
from pathlib import Path

import pytest

from raytrain_debug.postmortem.lateness import lateness
from raytrain_debug.postmortem.series import RankSeries, read_series
from tests.unit.made_runs import START, MadeRun


def made(rank: int, times: dict[int, float]) -> RankSeries:
    return RankSeries(rank, array("q", times), array("d", times.values()))


def test_numbers_of_all_reports_are_read_nested_ones_by_dotted_name(tmp_path: Path) -> None:
    run = MadeRun(tmp_path / "root")
    run.started(0)
    run.reported(0, 0, {"loss": 0.5, "eval": {"top1": 0.1}, "note": "x", "ok": True})
    run.reported(0, 1, {"loss": float("nan")})
    run.reported(0, 3, {"loss": 10**400, "late": -math.inf})
    with open(run.paths.rank(0).reports, "a") as file:
        file.write('{"broken\n{"index": "no", "time": 1}\n[]\n{"index": 9')
    series = read_series(run.write().ranks[0])
    assert list(series.index) == [0, 1, 3]
    assert series.time[0] == START + 10
    assert set(series.metrics) == {"loss", "eval.top1", "late"}
    assert [repr(y) for y in series.metrics["loss"].y] == ["0.5", "nan", repr(sys.float_info.max)]
    assert (list(series.metrics["late"].at), list(series.metrics["late"].y)) == ([2], [-math.inf])
    assert len(series.rss.y) == 0


def test_a_rank_without_reports_has_empty_series(tmp_path: Path) -> None:
    run = MadeRun(tmp_path / "root")
    series = read_series(run.write().ranks[0])
    assert len(series.index) == 0
    assert lateness([series, series]).stragglers == ()


def test_a_rank_that_comes_last_again_and_again_is_a_straggler() -> None:
    ranks = [made(0, {i: 10.0 * i for i in range(20)}), made(1, {i: 10.0 * i + 4 for i in range(10)})]
    ranks.append(made(2, {i: 10.0 * i + 0.5 for i in range(20)}))
    found = lateness(ranks)
    assert found.usual == 10.0
    assert found.shared == 20
    (straggler,) = found.stragglers
    assert (straggler.rank, straggler.times, straggler.median, straggler.most) == (1, 10, 4.0, 4.0)
    assert list(found.late[1]) == [4.0] * 10
    assert set(found.late[0]) == {0.0}


def test_reports_are_held_against_those_of_the_same_index() -> None:
    found = lateness([made(0, {0: 0.0, 1: 1.0, 2: 2.0}), made(1, {2: 9.0})])
    assert list(found.late[1]) == [7.0]
    assert found.shared == 1


@pytest.mark.parametrize("times", [{}, {0: 5.0}, {0: 5.0, 1: 5.0}])
def test_without_an_interval_nobody_is_late(times: dict[int, float]) -> None:
    found = lateness([made(0, times), made(1, {index: time + 3 for index, time in times.items()})])
    assert found.usual == 0.0
    assert found.stragglers == ()
