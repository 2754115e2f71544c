"""The tables of `status` and `runs` as a person reads them."""

import dataclasses
import io

import pytest
from rich.console import Console

from raytrain_debug.postmortem.overview import overview
from raytrain_debug.postmortem.status import RankStatus, RunStatus, gather, to_json
from raytrain_debug.postmortem.verdict import Verdict
from raytrain_debug.render import runs, status
from tests.unit.made_runs import GONE, SITE, START, MadeRun, exception


def printed(*parts, width=100_000):
    console = Console(width=width, file=io.StringIO(), emoji=False, highlight=False)
    for part in parts:
        console.print(part, markup=False)
    return "\n".join(line.rstrip() for line in console.file.getvalue().split("\n"))


@pytest.fixture
def live(tmp_path):
    """A status as a launcher tells it."""
    made = MadeRun(tmp_path / "runs", world_size=64)
    for rank in range(64):
        made.started(rank)
        made.reported(rank, 4, {"loss": 0.5, "odd [red]": "x"})
    run = made.write(ended=False)
    last = run.ranks[0].last_report
    ranks = [RankStatus(rank, "dormant", 1000 + rank, 5678 + rank, 5, last) for rank in range(64)]
    ranks[1] = RankStatus(1, "waiting", 1001, 5679, 5, last, where=SITE)
    ranks[2] = RankStatus(2, "attached", 1002, 5680, 0, None, client="pid 77 (code)")
    return RunStatus(run, Verdict("running", 0, None, {}, (), "The run is running."), True, tuple(ranks))


def test_a_line_a_rank_where_the_width_allows(live):
    lines = printed(*status.render(live, START + 20)).split("\n")
    assert len(lines) == 1 + 1 + 64 + 1
    assert "train.py --lr 0.1; started 20 s ago" in lines[0]
    assert lines[1].split() == ["rank", "state", "pid", "port", "reports", "last", "metrics"]
    assert lines[2].split(None, 5)[:5] == ["0", "dormant", "1000", "5678", "5"]
    assert lines[2].endswith("6.0 s ago  loss=0.5 odd [red]=x")
    assert "waiting at train.py:88" in lines[3]
    assert "attached by pid 77 (code)" in lines[4]


def test_a_narrow_terminal_gets_every_fact_too(live):
    out = printed(*status.render(live, START + 20), width=60)
    assert max(map(len, out.split("\n"))) <= 60
    assert "…" not in out
    assert out.count("loss=0.5") == 63
    assert "pid 1063  port 5741  5 reports, 6.0 s ago" in out


def test_json_marks_ranks_that_lag_by_more_than_a_report(live):
    ranks = list(live.ranks)
    ranks[3] = dataclasses.replace(ranks[3], reports=4)
    ranks[4] = dataclasses.replace(ranks[4], reports=None, node="other")
    found = to_json(dataclasses.replace(live, ranks=tuple(ranks)))["ranks"]
    assert {rank["rank"]: rank["behind"] for rank in found if rank["behind"]} == {2: 5}


def test_a_dead_run_is_told_by_its_verdict(tmp_path):
    made = MadeRun(tmp_path / "runs")
    made.started(0, pid=GONE)
    made.started(1, pid=GONE + 1)
    made.died(1, exception(), pid=GONE + 1)
    made.ended(1, 1, pid=GONE + 1)
    made.ended(0, None, "SIGTERM", caused=True)
    found = gather(made.write(exit_code=1))
    assert not found.answered
    assert [(rank.rank, rank.state) for rank in found.ranks] == [(0, "stopped"), (1, "failed")]
    out = printed(*status.render(found, START + 60))
    assert "ended 30 s ago" in out
    assert "Rank 1 failed first with ValueError" in out


def test_runs_are_told_by_how_they_ended(tmp_path):
    made = MadeRun(tmp_path / "runs")
    for rank in range(2):
        made.started(rank, pid=GONE + rank)
    made.died(1, exception("a [bold]\nsecond line"), pid=GONE + 1)
    made.ended(1, 1, pid=GONE + 1)
    made.write(exit_code=1)
    found = overview(made.paths)
    assert (found.state, found.world_size, found.exit_code, found.script) == ("failed", 2, 1, "train.py")
    assert found.size >= 4096
    out = printed(runs.render([found], START + 60))
    assert "30 s" in out
    assert "failed: rank 1, ValueError: a [bold]\n" in out
    narrow = printed(runs.render([found], START + 60), width=60)
    assert max(map(len, narrow.split("\n"))) <= 60
    assert made.paths.id in narrow


@pytest.mark.parametrize("content", [None, "", '{"id": "x", "argv": ["tr', "[]"])
def test_a_run_whose_record_is_torn_is_still_listed(tmp_path, content):
    made = MadeRun(tmp_path / "runs")
    made.started(0)
    if content is not None:
        made.paths.record.write_text(content)
    found = overview(made.paths)
    assert (found.state, found.script) == ("unknown", "train.py")
    assert found.started is not None
    out = printed(runs.render([found], START))
    assert "run.json is missing or damaged" in out
