"""What the prompt on several ranks says and chooses, without ranks: merging, focus, tables, who is missing."""

from __future__ import annotations

import threading

import pytest

from raytrain_debug.across.hang import Ended
from raytrain_debug.across.stacks import Frame as SampledFrame
from raytrain_debug.across.stacks import RankStacks, Sample, Stack
from raytrain_debug.cli.prompt import focus, missing
from raytrain_debug.cli.prompt.breaks import Table, format_table
from raytrain_debug.cli.prompt.merge import about, merged, said_of_ranks
from raytrain_debug.cli.prompt.notes import Notes
from raytrain_debug.cli.prompt.view import CommandError, View
from raytrain_debug.dap.breakpoints import Breakpoint
from raytrain_debug.dap.group import Group
from raytrain_debug.dap.model import Frame
from raytrain_debug.dap.session import Session
from raytrain_debug.errors import DapError

TRAIN = [Frame(1, "step", "/w/data/train.py", 88), Frame(2, "<module>", "/w/data/train.py", 120)]
LOAD = [Frame(1, "load_batch", "/w/data/data.py", 12), *TRAIN[1:]]


def test_equal_texts_come_once_and_the_odd_ones_first():
    assert merged({0: "0.25", 1: "nan", 2: "0.25", 3: "0.25"}) == "1: nan\n0,2-3: 0.25"
    assert merged({3: "a", 2: "b", 1: "a", 0: "b"}) == "0,2: b\n1,3: a"
    assert merged({0: "", 1: "a\n", 2: ""}) == "1: a"
    assert merged({0: "a\nb", 1: "c"}) == "0:\na\nb\n1: c"
    assert merged({0: "> train.py(31)train()\n-> loss", 1: "> train.py(31)train()\n-> loss"}) == (
        "0-1 > train.py(31)train()\n-> loss"
    )
    assert merged({}) == ""


def test_what_is_said_of_one_rank_is_said_of_several():
    killed = {rank: f"rank {rank} was killed by SIGKILL" for rank in range(4)}
    assert said_of_ranks({**killed, 4: "rank 4 finished"}) == ["ranks 0-3 were killed by SIGKILL", "rank 4 finished"]
    waiting = {rank: f"waiting for rank {rank} to start" for rank in (1, 10)}
    assert said_of_ranks(waiting) == ["waiting for ranks 1, 10 to start"]
    assert said_of_ranks({1: "the connection was closed"}) == ["the connection was closed"]
    assert about((2,), "goes on") == "rank 2 goes on"
    assert about((0, 2), "is attached again") == "ranks 0, 2 are attached again"


def test_notes_of_several_ranks_are_told_together_and_none_twice(capsys):
    notes = Notes(several=True)
    for rank in range(3):
        notes.say(rank, f"rank {rank} finished\n")
        notes.say(rank, f"rank {rank} finished")
        notes.say(rank, "pydevd: advice")
    notes.say(1, "rank 1 starts anew")
    notes.flush()
    assert capsys.readouterr().err == "raytrain_debug: ranks 0-2 finished\nraytrain_debug: rank 1 starts anew\n"


def test_notes_of_one_rank_are_told_at_once(capsys):
    Notes(several=False).say(0, "rank 0 finished")
    assert capsys.readouterr().err == "raytrain_debug: rank 0 finished\n"


@pytest.mark.parametrize(
    ("argument", "chosen"),
    [
        ("", (1,)),
        ("all", (0, 1, 3)),
        ("0,3", (0, 3)),
        ("0-1", (0, 1)),
        ("where train.py:88", (0, 3)),
        ("where train:88", (0, 3)),
        ("where /w/data/train.py:88", (0, 3)),
        ("where data/data.py:12", (1,)),
        ("where load_batch", (1,)),
        ("where Loader.load_batch", (1,)),
        ("where <module>", (0, 1, 3)),
    ],
)
def test_focus_chooses_by_number_and_by_place(argument, chosen):
    assert focus.choose(argument, (1,), {0: TRAIN, 1: LOAD, 3: TRAIN}) == chosen


@pytest.mark.parametrize("argument", ["2", "0-3", "x", "3-1", "where", "where nobody", "where ain.py:88", "where :3"])
def test_a_focus_on_nobody_is_a_mistake(argument):
    with pytest.raises(CommandError):
        focus.choose(argument, (1,), {0: TRAIN, 1: LOAD, 3: TRAIN})


def test_the_overview_marks_the_ranks_in_focus():
    places = {0: "train.py(88)step()", 1: "running", 2: "train.py(88)step()", 10: "running"}
    assert focus.overview((1, 10), places) == "> 1,10  running\n  0,2   train.py(88)step()"


def test_breakpoints_of_several_ranks_are_listed_once():
    plain = Breakpoint(1, "train.py", 31, id=5, verified=True, hits=2)
    other = Breakpoint(1, "train.py", 31, id=9, verified=True)
    second = Breakpoint(2, "train.py", 40, condition="loss > 1", id=7, verified=True, hits=1)
    assert format_table({0: Table((plain,)), 2: Table((other, second)), 3: Table((other,))}) == (
        "Num Type         Disp Enb   Where\n"
        "1   breakpoint   keep yes   at train.py:31 on ranks 0, 2, 3\n"
        "\tbreakpoint already hit 2 times by rank 0\n"
        "2   breakpoint   keep yes   at train.py:40 on rank 2\n"
        "\tstop only if loss > 1\n"
        "\tbreakpoint already hit 1 time by rank 2"
    )
    assert format_table({0: Table(()), 1: Table(())}) == ""
    assert "on rank" not in format_table({0: Table((plain,))})


def test_places_below_the_working_directory_are_short_for_several_ranks(tmp_path):
    view = View(Session("127.0.0.1", 1), "it", str(tmp_path), relative=True)
    assert view.where(Frame(1, "train", str(tmp_path / "a" / "train.py"), 3)) == "> a/train.py(3)train()"
    assert view.where(Frame(1, "train", f"{tmp_path}x/train.py", 3)) == f"> {tmp_path}x/train.py(3)train()"


def stack(rank, function="step", line=88, waiting_in=None, state="running"):
    frames = (SampledFrame("/w/train.py", line, function),)
    peers = waiting_in is not None and waiting_in != "breakpoint"
    return RankStacks(rank, state, (Stack(rank, frames, waiting_in, peers),), mark=line)


def test_who_keeps_ranks_waiting_is_named():
    reduce = {rank: stack(rank, waiting_in="all_reduce") for rank in (0, 2)}
    stands = stack(1, "load", 12, "breakpoint", "paused")
    sample = Sample({**reduce, 1: stands}, {})
    waits = "ranks 0, 2 wait in all_reduce at train.py:88"
    assert missing.what_keeps(sample, (), {0, 2}, (0, 1, 2), "/w") == f"{waits} for rank 1, which stands"
    assert missing.what_keeps(sample, (), {0, 2}, (0, 2), "/w") == f"{waits} for ranks not in focus (rank 1)"
    ended = Sample(reduce, {})
    assert missing.what_keeps(ended, (Ended(1, "has returned"),), {0, 2}, (0, 2), "/w") == (
        f"{waits} for rank 1, which has ended"
    )
    assert missing.what_keeps(ended, (), {0, 2, 7}, (0, 2, 7), "/w") == (f"{waits}; rank 7 cannot be asked where it is")
    works = Sample({**reduce, 1: stack(1, "load", 12)}, {})
    assert missing.what_keeps(works, (), {0, 1, 2}, (0, 1, 2), "/w") == f"{waits}; rank 1 is in load at train.py:12"


def seconds_waited(away, *ranks, back=False):
    """For how long a Watch, looking at ranks that stay as they are, waits for `away`; None for ever."""
    sample = Sample({rank.rank: rank for rank in ranks}, {})
    watch = missing.Watch(lambda: (sample, ()), "/w", patience=3.0)
    if back:
        watch.came_back(0.0)
    looks = (number * watch.pause for number in range(100))
    return next((now for now in looks if watch.why_not_wait(away, {0, 1}, now) is not None), None)


def test_ranks_that_nobody_can_release_are_not_waited_for():
    waits, stands = stack(0, waiting_in="all_reduce"), stack(1, "load", 12, "breakpoint", "paused")
    assert seconds_waited({0}, waits, stands) == 0.5


def test_ranks_that_another_may_release_are_waited_for_longer():
    waits, works = stack(0, waiting_in="all_reduce"), stack(1, "load", 12)
    assert 3.0 <= seconds_waited({0}, waits, works) <= 4.0


def test_ranks_that_work_are_waited_for_until_others_have_been_back_for_long():
    assert seconds_waited({0}, stack(0, "load", 12)) is None
    assert 3.0 <= seconds_waited({0}, stack(0, "load", 12), back=True) <= 3.5


def test_a_rank_that_has_come_to_stand_meanwhile_is_not_missing():
    assert seconds_waited({0}, stack(0, "load", 12, "breakpoint", "paused"), back=True) is None


def test_a_group_asks_all_at_the_same_time_and_keeps_errors_apart():
    group = Group({rank: Session("127.0.0.1", 1, f"rank {rank}") for rank in range(8)}, lambda rank: None)
    barrier = threading.Barrier(8, timeout=10)

    def answer(rank):
        barrier.wait()
        if rank == 5:
            raise DapError("no")
        return rank * 2

    answers = group.each({rank: lambda rank=rank: answer(rank) for rank in group.ranks})
    assert list(answers) == list(range(8))
    assert isinstance(answers.pop(5), DapError)
    assert answers == {rank: rank * 2 for rank in answers}


def test_a_fault_of_ours_in_a_group_is_no_answer():
    group = Group({rank: Session("127.0.0.1", 1) for rank in range(2)}, lambda rank: None)
    with pytest.raises(ZeroDivisionError):
        group.each({rank: lambda: 1 // 0 for rank in group.ranks})
