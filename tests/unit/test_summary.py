"""The paragraph that a post-mortem opens with, from runs as real ones leave them."""

import math

import pytest
import torch

from raytrain_debug.postmortem.findings import examine
from raytrain_debug.postmortem.health import bad_metrics, numbers
from raytrain_debug.postmortem.summary import paragraph
from tests.unit.made_runs import GONE, MadeRun, exception


def checkpoint(made, rank, index, **tensors):
    torch.save(tensors or {"w": torch.ones(2)}, made.snapshot(rank, index) / "m.pt")
    return made.kept(rank, index)


@pytest.fixture
def made(tmp_path):
    run = MadeRun(tmp_path / "runs", world_size=4)
    for rank in range(4):
        run.started(rank, pid=GONE + rank)
    return run


def test_last_reports_are_told_once_with_their_range(made):
    for rank in range(4):
        made.reported(rank, 0, {"step": 0})
        made.reported(rank, 1, {"step": 10, "loss": 0.5 + rank / 10, "nested": {"lr": 0.1}, "name": "x", "ok": True})
    told = paragraph(examine(made.write(ended=False)))
    assert "All 4 ranks reported twice; last: step=10 loss=0.5 to 0.8 nested.lr=0.1." in told
    assert "No checkpoint was reported." in told


def test_ranks_that_fell_behind_are_told_apart(made):
    for rank in range(3):
        for index in range(3 if rank else 2):
            made.reported(rank, index, {"step": index})
    told = paragraph(examine(made.write(ended=False)))
    assert "Reports: rank 0 twice, ranks 1-2 3 times and rank 3 never; last: step=1 to 2." in told


def test_a_metric_is_bad_since_the_first_report_of_those_that_reach_the_end(made):
    losses = {0: [1.0, math.nan, 1.0, math.nan, math.nan], 1: [1.0, 1.0, 1.0, 1.0, math.inf], 2: [1.0] * 5}
    for rank, values in losses.items():
        for index, loss in enumerate(values):
            made.reported(rank, index, {"train": {"loss": loss}})
    run = made.write(ended=False)
    assert [(bad.metric, bad.since) for bad in bad_metrics(run.rank(0))] == [("train.loss", 3)]
    assert bad_metrics(run.rank(2)) == ()
    assert bad_metrics(run.rank(3)) == ()
    told = paragraph(examine(run))
    assert "train.loss is NaN on rank 0 since report 3." in told
    assert "train.loss is Inf on rank 1 since report 4." in told
    assert "train.loss is NaN since report 3." in paragraph(examine(run, ranks=(0,)))


def test_a_usable_checkpoint_is_called_so(made):
    for rank in range(4):
        made.reported(rank, 0, checkpoint=checkpoint(made, rank, 0))
    told = paragraph(examine(made.write(ended=False)))
    assert "The checkpoint of ranks 0-3 from report 0 is usable: 1 tensor, finite." in told


def test_one_that_is_not_finite_or_damaged_names_an_older_one_that_is_good(made):
    bad = torch.tensor([1.0, math.nan])
    for rank in range(2):
        for index in range(3):
            state = {"w": bad, "b": bad.clone()} if index == 2 and rank == 0 else {"w": torch.ones(2)}
            made.reported(rank, index, checkpoint=checkpoint(made, rank, index, **state))
    path = made.paths.rank(1).checkpoints / "2" / "m.pt"
    path.write_bytes(path.read_bytes()[:-30])
    run = made.write(ended=False)
    zero, one = examine(run, ranks=(0, 1)).ranks
    assert (zero.checkpoint.health.state, zero.checkpoint.older) == ("not finite", 1)
    assert (one.checkpoint.health.state, one.checkpoint.older) == ("damaged", 1)
    told = paragraph(examine(run))
    assert "of rank 0 from report 2 is not usable: 1 NaN in w, and 1 tensor more; the one from report 1 is." in told
    assert "of rank 1 from report 2 is not usable: m.pt had " in told


def test_without_an_older_one_that_is_said(made):
    made.reported(0, 0, checkpoint=checkpoint(made, 0, 0, w=torch.tensor([math.inf])))
    assert "not usable: 1 Inf in w; no older one is kept that is." in paragraph(examine(made.write(ended=False)))


def test_what_cannot_be_told_is_not_called_usable(made):
    made.reported(0, 0, checkpoint=checkpoint(made, 0, 0, w=torch.nn.Linear(1, 1)))
    run = made.write(ended=False)
    assert "is there, but safe loading refuses m.pt." in paragraph(examine(run, ranks=(0,)))
    assert "is there, but it was not looked into." in paragraph(examine(run, ranks=(0,), tensors=False))
    assert "is usable: 2 tensors, all of them finite." in paragraph(examine(run, ranks=(0,), unsafe=True))
    path = made.paths.rank(0).checkpoints / "0"
    (path / "m.pt").unlink()
    assert "is not usable: m.pt was reported, but is not in the snapshot" in paragraph(examine(run, ranks=(0,)))
    path.rmdir()
    assert "is gone: no snapshot of it is left." in paragraph(examine(run, ranks=(0,)))


def test_pickles_that_transformers_leaves_beside_a_model_do_not_make_it_doubtful(made):
    directory = made.snapshot(0, 0)
    for name in ("training_args.bin", "rng_state_0.pth"):
        torch.save(torch.nn.Linear(1, 1), directory / name)
    made.reported(0, 0, checkpoint=made.kept(0, 0))
    assert "safe loading refuses rng_state_0.pth, training_args.bin" in paragraph(
        examine(made.write(ended=False), (0,))
    )
    torch.save({"w": torch.ones(2)}, directory / "model.bin")
    made.reported(0, 0, checkpoint=made.kept(0, 0))
    told = paragraph(examine(made.write(ended=False), (0,)))
    assert "is usable: 1 tensor, finite; not looked into: rng_state_0.pth, training_args.bin." in told


def test_a_rank_that_leaves_saving_to_another_has_lost_nothing(made):
    """As of Lightning, whose ranks all report the directory that rank 0 has saved in, each its own."""
    made.reported(0, 0, checkpoint=checkpoint(made, 0, 0, w=torch.ones(2)))
    made.snapshot(1, 0)
    made.reported(1, 0, checkpoint=made.kept(1, 0))
    run = made.write(ended=False)
    (one,) = examine(run, (1,)).ranks
    assert one.checkpoint.health.state == "usable"
    assert "from report 0 is usable: it is empty, and that of rank 0 holds the data." in paragraph(examine(run, (1,)))
    torch.save(torch.nn.Linear(1, 1), made.snapshot(2, 0) / "rng_state_2.pth")  # Transformers'
    made.reported(2, 0, checkpoint=made.kept(2, 0))
    told = paragraph(examine(made.write(ended=False), (2,)))
    assert "is usable: it has only rng_state_2.pth, and that of rank 0 holds the data." in told
    (made.paths.rank(0).checkpoints / "0" / "m.pt").unlink()
    made.snapshot(0, 1)
    made.reported(0, 1, checkpoint=made.kept(0, 1))
    assert "is not usable: it holds no data" in paragraph(examine(made.write(ended=False), (0,)))


def test_numbers_leaves_out_what_is_none():
    assert numbers({"a": 1, "b": True, "c": "x", "d": {"$type": "t", "repr": "1"}, "e": {"f": 2.5}}) == {
        "a": 1,
        "e.f": 2.5,
    }


LOADER = exception("'key'", "KeyError")
ENDED = "with KeyError: 'key' at train.py:88 in train_func"


def ended_well(made):
    for rank in range(4):
        made.ended(rank, 0, pid=GONE + rank)
    return examine(made.write())


def test_a_thread_that_ended_with_an_exception_is_told_of_and_is_no_failure(made):
    before = ended_well(made).verdict
    made.thread_ended(1, LOADER)
    found = ended_well(made)
    assert found.verdict == before
    assert f"All 4 ranks finished. A thread of rank 1, 'loader', had ended {ENDED}. Nothing" in paragraph(found)
    found = examine(made.write(exit_code=1, stopped="SIGINT"))
    assert f"A thread of rank 1, 'loader', had ended {ENDED}." in paragraph(found)


def test_ranks_whose_threads_ended_alike_are_told_together(made):
    for rank in (0, 2, 3):
        made.thread_ended(rank, LOADER)
    assert f"A thread of each of ranks 0,2-3, 'loader', had ended {ENDED}." in paragraph(ended_well(made))
    for number in range(4):
        made.thread_ended(0, LOADER, f"Thread-{number} (feed)")
    assert (
        "7 threads of ranks 0,2-3, 'loader', 'Thread-0 (feed)', 'Thread-1 (feed)' and 2 more, had ended with KeyError"
    ) in paragraph(ended_well(made))


def test_of_many_threads_that_ended_differently_the_first_are_told(made):
    for number in range(5):
        made.thread_ended(1, exception(f"no {number}"), time=-number)
    told = paragraph(ended_well(made))
    assert [number for number in range(5) if f"ValueError: no {number} at" in told] == [2, 3, 4]
    assert "2 more threads had ended with an exception." in told


def test_where_among_the_reports_a_thread_ended_is_told(made):
    for rank in range(2):
        for index in range(3):
            made.reported(rank, index)
    made.thread_ended(0, exception("early"), report=1)
    made.thread_ended(0, exception("both"), report=1, time=1)
    made.thread_ended(1, exception("both"), report=2, time=1)
    made.thread_ended(1, exception("late"), report=3, time=2)
    told = paragraph(ended_well(made))
    for words in ("early {}, before report 1.", "both {}, before reports 1 to 2.", "late {}, after 3 reports."):
        assert words.format("at train.py:88 in train_func") in told


def test_a_thread_that_ended_after_the_first_failure_is_told_as_later(made):
    made.thread_ended(0, exception("Connection closed. Try again.", "RuntimeError"), time=20)
    made.died(1, exception(), pid=GONE + 1)
    made.ended(1, 1, pid=GONE + 1)
    assert (
        "A thread of rank 0, 'loader', ended after that at train.py:88 in train_func, with RuntimeError: "
        "Connection closed. Try again. " in paragraph(examine(made.write(exit_code=1)))
    )


def test_threads_of_an_earlier_attempt_and_of_other_ranks_than_those_asked_for_are_not_in_the_paragraph(made):
    made.thread_ended(1, LOADER)
    assert "A thread of" not in paragraph(examine(made.write(), ranks=(0,)))
    made.started(1, attempt=1)
    assert "A thread of" not in paragraph(examine(made.write(attempt=1)))
