"""The post-mortem as a person reads it, from run directories with real checkpoints."""

import io
import math

import pytest
import torch
from rich.console import Console

from raytrain_debug.postmortem.findings import examine, to_json
from raytrain_debug.render import postmortem
from raytrain_debug.run import writer
from raytrain_debug.run.reader import Run
from raytrain_debug.run.records import CallSite, HangRecord, StackGroup
from tests.unit.made_runs import GONE, START, MadeRun, exception


def printed(findings, width=100_000, **options):
    console = Console(width=width, file=io.StringIO(), emoji=False, highlight=False, **options)
    for part in postmortem.render(findings, START + 100):
        console.print(part, markup=False)
    return "\n".join(line.rstrip() for line in console.file.getvalue().split("\n"))


@pytest.fixture
def failed(tmp_path):
    made = MadeRun(tmp_path / "runs")
    for rank in range(2):
        made.started(rank, pid=GONE + rank)
        weight = torch.ones(4, 3)
        if rank == 1:
            weight[2, 1] = math.nan
        directory = made.snapshot(rank)
        torch.save({"layer": {"weight": weight}, "epoch": 3}, directory / "model.pt")
        (directory / "notes [bold].txt").write_text("hi")
        made.reported(rank, 0, {"loss": 0.25 if rank == 0 else math.nan}, made.kept(rank), local_rank=rank)
        made.reported(rank, 1, {"loss": 0.125}, local_rank=rank)
    made.died(1, exception("loss is nan [/bold]"), pid=GONE + 1)
    made.ended(1, 1, pid=GONE + 1)
    made.ended(0, None, "SIGTERM", caused=True, pid=GONE)
    return made.write(exit_code=1)


def test_the_verdict_comes_first_then_ranks_reports_contexts_and_checkpoints(failed):
    out = printed(examine(failed))
    assert out.startswith(
        "Rank 1 failed first with ValueError: loss is nan [/bold] at train.py:88 in train_func, after 2"
    )
    titles = ["Ranks", "Traceback of rank 1", "Last reports", "Context at the last report", "Last checkpoint of rank 0"]
    places = [out.index(f"\n{title}") for title in titles]
    assert places == sorted(places)
    assert "     0  ended with the job        2  1 min 29 s ago  21 s after the start" in out
    assert "report 1, 1 min 29 s ago, at train.py:88 in train_func" in out
    assert "loss=0.125" in out


def test_what_is_common_to_all_contexts_is_said_once(failed):
    out = printed(examine(failed))
    assert out.count("experiment_name=exp") == 1
    assert "ranks 0-1  world_size=2 experiment_name=exp" in out
    assert "rank 1     world_rank=1 local_rank=1" in out


def test_getters_that_raised_are_named_after_those_that_told_something(tmp_path):
    made = MadeRun(tmp_path / "runs", world_size=1)
    made.started(0)
    gone = {"$error": "DeprecationWarning"}
    made.reported(0, trial_id=gone, storage={"$error": "NotImplementedError"}, trial_dir=gone, local_rank=0)
    lines = [line.strip() for line in printed(examine(made.write())).split("\n")]
    at = next(at for at, line in enumerate(lines) if line.endswith("experiment_name=exp local_rank=0"))
    assert lines[at + 1 : at + 3] == [
        "deprecated in Ray Train: trial_id, trial_dir",
        "not in local mode: storage",
    ]


def test_a_later_report_without_a_checkpoint_does_not_hide_the_last_one(failed):
    out = printed(examine(failed))
    assert "Last checkpoint of rank 1, from report 0" in out
    assert "notes [bold].txt" in out
    assert "epoch=3" in out
    assert "layer.weight  float32  4×3      1    1     1    0  3.317      0  █          1 NaN, first at [2, 1]" in out


def test_a_report_that_is_asked_for_is_shown_with_its_own_checkpoint(failed):
    out = printed(examine(failed, report=0))
    assert "Report 0\n" in out
    assert "loss=nan" in out
    assert "loss=0.125" not in out.split("\nReport 0\n")[1]
    assert "Context at report 0" in out
    assert "Checkpoint of rank 1, from report 0" in out
    out = printed(examine(failed, report=1))
    assert "none was reported with report 1" in out


def test_ranks_with_equal_checkpoints_share_one_table(tmp_path):
    made = MadeRun(tmp_path / "runs", world_size=64)
    for rank in range(64):
        made.started(rank)
        torch.save({"w": torch.zeros(3)}, made.snapshot(rank) / "model.pt")
        made.reported(rank, checkpoint=made.kept(rank))
        made.ended(rank)
    out = printed(examine(made.write()))
    assert "Last checkpoint of ranks 0-63, from report 0 (same files, same statistics)" in out
    assert out.count("float32") == 1


def test_the_state_of_an_optimizer_is_folded_but_for_what_is_wrong_in_it(tmp_path):
    made = MadeRun(tmp_path / "runs", world_size=1)
    made.started(0)
    state = {number: {"exp_avg": torch.zeros(2), "exp_avg_sq": torch.zeros(2)} for number in range(4)}
    state[3]["exp_avg_sq"][1] = math.inf
    torch.save({"w": torch.ones(2), "optimizer": {"state": state}}, made.snapshot(0) / "all.pt")
    made.reported(0, checkpoint=made.kept(0))
    out = printed(examine(made.write()))
    shown = [line.split()[0] for line in out.split("tensor ")[1].splitlines()[1:] if "float32" in line]
    assert shown == ["w", "optimizer.state.3.exp_avg_sq"]
    assert "and 7 tensors of the optimizer's state, all of them finite (--json has all)" in out


def test_norm_and_zeros_are_shown_where_the_width_does(tmp_path):
    made = MadeRun(tmp_path / "runs", world_size=1)
    made.started(0)
    torch.save({"w": torch.tensor([3.0, 4.0, 0.0])}, made.snapshot(0) / "model.pt")
    made.reported(0, checkpoint=made.kept(0))
    findings = examine(made.write())

    def row(width):
        lines = printed(findings, width=width).splitlines()
        at = next(at for at, line in enumerate(lines) if line.startswith("  tensor"))
        return dict(zip(lines[at].split(), lines[at + 1].split(), strict=False))

    assert (row(120)["std"], row(120)["norm"], row(120)["zeros"]) == ("2.082", "5", "1")
    assert row(76)["std"] == "2.082"
    assert not {"norm", "zeros"} & set(row(76))
    assert set(row(60)) == {"tensor"}


def test_an_integer_beyond_all_floats_is_a_number_like_others(tmp_path):
    made = MadeRun(tmp_path / "runs", world_size=1)
    made.started(0)
    made.reported(0, 0, {"seen": 10**400, "lost": -(10**400), "loss": math.inf})
    made.ended(0)
    findings = examine(made.write())
    assert [bad.metric for bad in findings.ranks[0].bad] == ["loss"]
    out = printed(findings)
    assert "seen=1.798e+308" in out
    assert "lost=-1.798e+308" in out
    to_json(findings)


def test_checkpoints_that_were_not_opened_are_not_called_equal(failed):
    made = MadeRun(failed.paths.directory.parent / "again")
    for rank in range(2):
        made.started(rank)
        torch.save({"w": torch.full((3,), float(rank))}, made.snapshot(rank) / "model.pt")
        made.reported(rank, checkpoint=made.kept(rank))
    out = printed(examine(made.write(), tensors=False))
    assert "Last checkpoint of ranks 0-1, from report 0 (same names and sizes; not opened)" in out


def test_a_hang_that_was_seen_while_the_job_ran_is_told(failed):
    group = StackGroup((0,), "all_reduce", (CallSite("/data/train.py", 12, "step"),))
    seen = HangRecord(
        START + 90, 60.0, 0, "rank 0 waits in all_reduce", ("rank 1 is gone",), (group,), {"1": "silence"}
    )
    writer.write_record(failed.paths.hang, seen)
    out = printed(examine(failed))
    title = "Hang, 1 min 30 s after the start: no rank had moved for 1 min\n"
    hang = out.split(title)[1].split("\n\n")[0].split("\n")
    assert [line.strip() for line in hang] == [
        "rank 0 waits in all_reduce",
        "rank 1 is gone",
        "rank 0  waits in all_reduce at /data/train.py:12 in step",
        "rank 1  gave no answer: silence",
    ]
    assert to_json(examine(failed))["hang"]["verdict"] == "rank 0 waits in all_reduce"


def test_threads_that_ended_with_an_exception_are_shown_with_their_traceback_once(tmp_path):
    made = MadeRun(tmp_path / "runs")
    for rank in range(2):
        made.started(rank)
        made.thread_ended(rank, exception("all the same"), report=0)
    made.thread_ended(1, exception("earlier"), "other [bold]", attempt=1, time=-5)
    findings = examine(made.write())
    section = printed(findings).split("Threads that ended with an exception\n")[1].split("\n\n")[0]
    assert [line.strip() for line in section.split("\n") if "Traceback" not in line and "File" not in line] == [
        "rank 1, thread 'other [bold]': ValueError: earlier at train.py:88 in train_func, 10 s after the start, "
        "attempt 1",
        "ValueError: earlier",
        "ranks 0-1, threads 'loader': ValueError: all the same at train.py:88 in train_func, 15 s after the start",
        "ValueError: all the same",
    ]
    (told,) = to_json(findings)["ranks"][0]["thread_exceptions"]
    assert (told["thread"], told["report"], told["exception"]["message"]) == ("loader", 0, "all the same")
    assert "Threads that" not in printed(examine(MadeRun(tmp_path / "other").write()))


def test_of_very_many_exceptions_of_threads_the_first_are_shown_and_the_others_counted(tmp_path):
    made = MadeRun(tmp_path / "runs", world_size=1)
    made.started(0)
    for number in range(23):
        made.thread_ended(0, exception(f"number {number}."))
    out = printed(examine(made.write()))
    assert out.count("Traceback (most recent call last)") == 20
    assert "and 3 other exceptions (--json has all)" in out


@pytest.mark.parametrize("width", [60, 80, 100_000])
def test_nothing_is_cut_off_at_any_width(failed, width):
    out = printed(examine(failed), width=width)
    assert max(map(len, out.split("\n"))) <= width
    assert "…" not in out
    for fact in ("loss is nan [/bold]", "layer.weight", "1 NaN, first at [2, 1]", "world_rank=1"):
        assert fact in out
    assert str(failed.paths.rank(1).checkpoints) in out.replace("\n", "").replace(" ", "")


def test_no_color_leaves_no_colour(failed, monkeypatch):
    coloured = printed(examine(failed), width=80, force_terminal=True, color_system="standard")
    assert "\x1b[31m" in coloured
    monkeypatch.setenv("NO_COLOR", "1")
    plain = printed(examine(failed), width=80, force_terminal=True, color_system="standard")
    assert not any(f"\x1b[{code}m" in plain for code in range(31, 37))


def test_only_the_ranks_asked_for_are_shown_and_their_checkpoints_read(failed):
    findings = examine(failed, ranks=(0,))
    assert [each.rank.rank for each in findings.ranks] == [0]
    out = printed(findings)
    assert out.startswith("Rank 1 failed first")
    assert "Last checkpoint of rank 1" not in out
    assert "Traceback" not in out


def test_a_checkpoint_without_a_snapshot_says_where_it_was(tmp_path):
    made = MadeRun(tmp_path / "runs", world_size=1)
    made.started(0)
    torch.save({}, made.snapshot(0) / "model.pt")
    record = made.kept(0)
    (made.paths.rank(0).checkpoints / "0" / "model.pt").unlink()
    (made.paths.rank(0).checkpoints / "0").rmdir()
    made.reported(0, checkpoint=record)
    out = printed(examine(made.write(ended=False)))
    assert "no snapshot" in out
    assert "/tmp/tmpcheckpoint" in out
    assert "model.pt" in out


def test_a_run_that_left_nothing(tmp_path):
    out = printed(examine(MadeRun(tmp_path / "runs", world_size=0).write(ended=False)), width=60)
    assert "nobody left to tell how" in out


def test_a_run_without_ranks_has_no_table_of_them(tmp_path):
    run = MadeRun(tmp_path / "runs", mode="ray").write(exit_code=1)
    out = printed(examine(Run(run.paths, run.record, ())))
    assert "before a Ray Train worker had started" in out
    assert "Ranks" not in out
