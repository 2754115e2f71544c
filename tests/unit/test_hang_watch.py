"""What counts as a hang, and what is said about it."""

import io

import pytest
from rich.console import Console

from raytrain_debug.across.hang import Ended, HangDetector, notes, ranks_in_words, report_difference, sentence
from raytrain_debug.across.progress import Follower, RankProgress, rate_of, rows
from raytrain_debug.across.stacks import Frame, RankStacks, Sample, Stack
from raytrain_debug.render.live import render
from raytrain_debug.render.stacks import render_hang

STEP = Frame("/job/train.py", 88, "step")
LOAD = Frame("/job/data.py", 12, "load_batch")
RETURNED = Ended(3, "has returned (exit code 0)")


def waits(rank: int, label: str = "all_reduce", mark: int = 1, **rest: object) -> RankStacks:
    return RankStacks(rank, "running", (Stack(rank, (STEP,), label, peers=True),), mark=mark, **rest)  # type: ignore[arg-type]


def loads(rank: int, mark: int = 2, work: tuple[float, ...] = (1.0, 5), state: str = "running") -> RankStacks:
    return RankStacks(rank, state, (Stack(rank, (LOAD,)),), mark=mark, work=work)


def sample(*ranks: RankStacks, silent: dict[int, str] | None = None) -> Sample:
    return Sample({rank.rank: rank for rank in ranks}, silent or {})


HUNG = sample(waits(0), loads(1), waits(2))


def test_no_rank_moving_for_long_is_a_hang_told_once():
    detector = HangDetector(10, "/job")
    told = [detector.look(HUNG, float(now)) for now in range(0, 40, 2)]
    assert [index for index, hang in enumerate(told) if hang] == [5]
    assert told[5] is not None
    assert told[5].sentence == "ranks 0, 2 wait in all_reduce at train.py:88; rank 1 is in load_batch at data.py:12"
    assert told[5].seconds == 10


def test_one_rank_that_moves_is_no_hang_and_the_next_hang_is_told_again():
    detector = HangDetector(10, "/job")
    for now in range(40):
        assert detector.look(sample(waits(0), loads(1, mark=now)), float(now)) is None
    told = [detector.look(HUNG, float(now)) for now in range(40, 80)]
    told += [detector.look(sample(waits(0), loads(1, mark=99), waits(2)), 80.0)]
    told += [detector.look(HUNG, float(now)) for now in range(81, 100)]
    assert sum(hang is not None for hang in told) == 2


def test_collectives_that_complete_at_one_line_are_movement():
    detector = HangDetector(10)
    assert not any(
        detector.look(sample(waits(0, started={"0": now}), waits(1, started={"0": now})), float(now))
        for now in range(40)
    )


def test_a_loop_seen_at_one_line_works_unless_others_wait_for_it():
    alone, awaited = HangDetector(10), HangDetector(10)
    looping = [loads(1, work=(1.0, float(now))) for now in range(40)]
    assert not any(alone.look(sample(each), float(now)) for now, each in enumerate(looping))
    assert any(awaited.look(sample(waits(0), each), float(now)) for now, each in enumerate(looping))


@pytest.mark.parametrize("state", ["paused", "waiting"])
def test_a_rank_that_is_debugged_or_waits_for_a_debugger_is_no_hang(state):
    detector = HangDetector(10)
    assert not any(detector.look(sample(waits(0), loads(1, state=state)), float(now)) for now in range(100))
    assert not any(detector.look(HUNG, float(now)) for now in range(100, 109))
    assert any(detector.look(HUNG, float(now)) for now in range(109, 120))


def test_what_the_launcher_holds_is_no_hang():
    detector = HangDetector(10)
    assert not any(detector.look(HUNG, float(now), held=True) for now in range(100))


def test_a_rank_that_never_answers_does_not_move():
    detector = HangDetector(10)
    frozen = sample(waits(0), silent={1: "no answer within 2 s: native code keeps Python busy in it"})
    hang = next(filter(None, (detector.look(frozen, float(now)) for now in range(20))))
    assert hang.sentence.endswith("rank 1 gives no answer within 2 s: native code keeps Python busy in it")


def test_a_job_whose_ranks_have_all_ended_is_no_hang():
    detector = HangDetector(10)
    assert not any(detector.look(sample(), float(now), ended=[RETURNED]) for now in range(40))


def test_a_rank_that_returned_while_others_wait_is_in_the_sentence():
    found = sample(waits(0), waits(1), waits(2))
    assert sentence(found, [RETURNED], "/job") == (
        "ranks 0-2 wait in all_reduce at train.py:88; rank 3 has returned (exit code 0)"
    )
    assert "rank 3 will not take part in what the others wait for" in notes(found, [RETURNED])


def test_ranks_in_different_collectives_are_pointed_out_but_not_the_two_ends_of_a_message():
    found = notes(sample(waits(0), waits(1, "broadcast")))
    assert any("different collectives (rank 0 in all_reduce, rank 1 in broadcast)" in note for note in found)
    assert not notes(sample(waits(0, "send"), waits(1, "recv")))


def test_ranks_behind_in_the_count_of_collectives_are_pointed_out():
    found = notes(sample(waits(0, started={"0": 12}), waits(1, started={"0": 11}), waits(2, started={"0": 12})))
    assert any("rank 1 has begun 11, ranks 0, 2 have begun 12" in note for note in found)


def test_different_report_counts_are_pointed_out():
    words = report_difference({0: 10, 1: 10, 2: 0})
    assert words is not None
    assert words.startswith("ranks 0, 1 have made 10 reports; rank 2 has made 0 reports")
    assert report_difference({0: 3, 1: 3}) is None
    assert not notes(HUNG, reports={0: 10, 1: 9})
    assert notes(HUNG, reports={0: 10, 1: 8})


def test_a_collective_under_way_is_told_of_a_rank_that_computes():
    rank = RankStacks(0, "running", (Stack(0, (STEP,)),), pending=(("0", "all_reduce", 7, 3.0),))
    assert sentence(sample(rank), cwd="/job") == "rank 0 is in step at train.py:88 with all_reduce under way"


def test_ranks_in_words():
    assert ranks_in_words([1]) == "rank 1"
    assert ranks_in_words([3, 0, 2]) == "ranks 0, 2, 3"
    assert ranks_in_words(range(64)) == "ranks 0-63"
    assert ranks_in_words([0, 1, 2, 7, 8]) == "ranks 0-2, 7, 8"


def test_report_of_a_hang_has_the_verdict_the_tree_and_where_to_look():
    detector = HangDetector(1, "/job")
    detector.look(HUNG, 0.0)
    hang = detector.look(HUNG, 61.0)
    assert hang is not None
    out = io.StringIO()
    console = Console(file=out, width=120)
    for part in render_hang(hang, "/job"):
        console.print(part)
    assert out.getvalue().startswith("no rank has moved for 1 min 1 s: ranks 0, 2 wait in all_reduce at train.py:88;")
    assert "1    load_batch  data.py:12" in out.getvalue()
    assert "attach --rank 1" in out.getvalue()


# The live table.


def live(rank: int, now: RankStacks | None, **rest: object) -> RankProgress:
    return RankProgress(rank, "dormant", now, **rest)  # type: ignore[arg-type]


def test_ranks_that_are_alike_share_a_row_and_the_straggler_is_first():
    ranks = [live(rank, waits(rank), still=9.0, reports=5, age=9.0, rss=2**30 + rank) for rank in range(63)]
    found = rows([*ranks, live(63, loads(63), still=20.0, reports=5, age=21.0)])
    assert [row.ranks for row in found] == [(63,), tuple(range(63))]
    assert [row.remark for row in found] == ["others wait for it", ""]
    out = io.StringIO()
    console = Console(file=out, width=160)
    for part in render(found, "a job", "/job"):
        console.print(part)
    lines = out.getvalue().splitlines()
    assert len(lines) == 4
    assert lines[2].split()[:2] == ["63", "dormant"]
    assert "← others wait for it" in lines[2]
    assert "waits in all_reduce at train.py:88" in lines[3]
    assert "1.0 GiB" in lines[3]


def test_a_rank_behind_in_reports_stands_out():
    found = rows([live(0, loads(0), reports=9, age=1.0), live(1, loads(1), reports=4, age=30.0)])
    assert [(row.ranks, row.remark) for row in found] == [((1,), "5 reports behind"), ((0,), "")]


STOPPED = "no answer within 1 s: its process is stopped, by SIGSTOP or Ctrl-Z"


def test_a_rank_that_does_not_answer_is_who_others_wait_for():
    silent = live(3, None, still=4.0, reports=5, silent=STOPPED)
    ranks = [live(0, waits(0), still=9.0, reports=9), live(1, loads(1), still=30.0, reports=9), silent]
    found = rows([*ranks, live(2, loads(2, mark=5), still=9.0, reports=2)])
    assert [(row.ranks, row.remark) for row in found] == [
        ((3,), "others wait for it"),
        ((2,), "7 reports behind"),
        ((1,), ""),
        ((0,), ""),
    ]
    out = io.StringIO()
    Console(file=out, width=200).print(*render(found, "a job", "/job"))
    assert f"3      dormant  {STOPPED}  ← others wait for it" in out.getvalue()


def test_a_rank_that_does_not_answer_comes_first_though_nobody_waits():
    found = rows([live(0, loads(0), still=60.0), live(1, None, silent=STOPPED), live(2, None, silent=STOPPED)])
    assert [(row.ranks, row.remark, row.silent) for row in found] == [((1, 2), "", STOPPED), ((0,), "", "")]


@pytest.mark.parametrize("width", [30, 60, 200])
def test_live_table_fits(width):
    out = io.StringIO()
    console = Console(file=out, width=width)
    for part in render(rows([live(rank, waits(rank, f"label {rank}")) for rank in range(64)]), "a job", "/job"):
        console.print(part)
    assert all(len(line) <= width for line in out.getvalue().splitlines())


def test_rates():
    assert rate_of([None, 0.5, 0.5]) == 2.0
    assert rate_of([None]) is None
    follower = Follower()
    follower.look(sample(waits(0, started={"0": 10})), 100.0)
    follower.look(sample(waits(0, started={"0": 30})), 104.0)
    assert follower.rates == {0: 5.0}
    assert follower.still(0, 106.0) == 2.0
