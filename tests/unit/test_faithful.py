"""Faithful local mode without processes: how ranks meet, what is said when they do not, which checkpoints are kept."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import os
import re
import subprocess
import sys
import threading
import time

import pytest

from raytrain_debug.errors import ForgedValue, RanksDiffer
from raytrain_debug.run.records import CallSite
from raytrain_debug.shim.faithful import meeting as meeting_module
from raytrain_debug.shim.faithful import peers
from raytrain_debug.shim.faithful import store as store_module
from raytrain_debug.shim.faithful.history import History
from raytrain_debug.shim.faithful.meeting import (
    REPORT,
    Call,
    Meeting,
    Standing,
    different_calls,
    will_not_come,
)
from raytrain_debug.shim.faithful.store import MemoryStore, SignedStore

BARRIER = "ray.train.collective.barrier"


class Ranks:
    """Threads of this process that meet as the ranks of a job do; `said` is what each has printed."""

    def __init__(self, size: int, store: MemoryStore | None = None) -> None:
        self.store = store or MemoryStore()
        self.said: dict[int, list[str]] = {rank: [] for rank in range(size)}
        signed = SignedStore(self.store, "fit 0", "secret")
        self.meetings = [Meeting(signed, rank, size, self.said[rank].append) for rank in range(size)]
        self.results: dict[int, object] = {}

    def run(self, function) -> dict[int, object]:
        """What `function(rank, meeting)` returns, or raises, on each rank."""

        def work(rank: int, meeting: Meeting) -> None:
            try:
                self.results[rank] = function(rank, meeting)
            except Exception as error:
                self.results[rank] = error

        threads = [
            threading.Thread(target=work, args=(rank, meeting), daemon=True)
            for rank, meeting in enumerate(self.meetings)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in threads), f"they hang; {self.results} {self.said}"
        return self.results


def test_each_rank_gets_rank_zeros_value_and_what_it_makes_of_all_parts():
    def work(rank, meeting):
        first = meeting.begin(b"from %d" % rank)
        again = meeting.share(Call("broadcast"), b"then %d" % rank)
        return first, again, meeting.gather(Call(REPORT), b"%d" % rank, lambda parts: b"-".join(parts))

    assert Ranks(5).run(work) == {rank: (b"from 0", b"then 0", b"0-1-2-3-4") for rank in range(5)}


def test_values_of_any_size_pass(monkeypatch):
    monkeypatch.setattr(store_module, "_PIECE", 50)
    sizes = [0, 17, 18, 19, 50, 67, 68, 69, 1000, 0]  # a signature has 32 bytes

    def work(rank, meeting):
        return [meeting.gather(Call("x"), b"%d" % rank * size, b"-".join) for size in sizes]

    ranks = Ranks(3)
    for results in ranks.run(work).values():
        assert results == [b"-".join(b"%d" % rank * size for rank in range(3)) for size in sizes]
    assert len(ranks.store._values) < 40, "pieces of steps that are over are gone"


def test_nobody_goes_on_before_all_have_come_however_long_that_takes():
    arrived = []

    def work(rank, meeting):
        seen = []
        for turn in range(20):
            if rank == turn % 3:
                time.sleep(0.01)
            arrived.append((turn, rank))
            meeting.share(Call(BARRIER))
            seen.append({other for at, other in list(arrived) if at == turn})
        return seen

    assert all(seen == [{0, 1, 2}] * 20 for seen in Ranks(3).run(work).values())


def test_the_store_does_not_grow_with_the_length_of_training():
    ranks = Ranks(2)

    def work(rank, meeting):
        for turn in range(50):
            meeting.gather(Call(REPORT, reports=turn), b"part", lambda parts: b"")
            meeting.share(Call(BARRIER, reports=turn))

    ranks.run(work)
    assert len(ranks.store._values) + len(ranks.store._counts) < 15


def test_a_rank_that_has_returned_is_named_to_those_that_wait():
    def work(rank, meeting):
        for number in range(1, 3 if rank == 1 else 4):
            meeting.share(Call(REPORT, CallSite("/project/train.py", 12, "train"), number))
        meeting.end("has returned from its training function", failed=False)

    results = Ranks(4).run(work)
    assert results[1] is None
    for rank in (0, 2, 3):
        assert isinstance(results[rank], RanksDiffer)
        text = str(results[rank])
        assert text.startswith(
            "rank 1 has returned from its training function after 2 reports; "
            f"rank {rank} waits in ray.train.report (its report 3) at train.py:12 in train. "
        )
        assert re.search(r"Calls of ray.train.report so far: 2 by ranks? [\d,-]+, 3 by ranks? [\d,-]+\. Every", text)


def test_a_rank_that_ends_right_after_a_step_is_not_missed_in_it():
    def work(rank, meeting):
        if rank == 0:
            time.sleep(0.2)  # the others wait meanwhile, and then see ranks that have ended
        meeting.share(Call(BARRIER))
        meeting.end("has returned", failed=False)

    assert Ranks(6).run(work) == dict.fromkeys(range(6))


class Said(Exception):
    """Ends a wait that only torchrun would end."""


def test_fit_is_over_when_the_last_function_is():
    ended = []

    def work(rank, meeting):
        meeting.begin(b"")
        time.sleep(0.05 * rank)
        ended.append(rank)
        meeting.end("has returned", failed=rank == 1)
        meeting.see_all_end()
        return len(ended)

    assert Ranks(3).run(work) == dict.fromkeys(range(3), 3)


def test_a_rank_that_has_failed_is_named_and_the_others_wait_on_for_torchrun_to_end_them():
    ranks = Ranks(2)

    def say(text):
        raise Said(text)

    def work(rank, meeting):
        meeting._say = say
        meeting.share(Call(REPORT, reports=1))
        if rank == 0:
            meeting.end("has raised ValueError: bad batch", failed=True)
        else:
            meeting.share(Call(REPORT, reports=2))

    said = ranks.run(work)[1]
    assert isinstance(said, Said)
    assert str(said) == (
        "rank 0 has raised ValueError: bad batch; this rank waits for it in ray.train.report (its report 2)"
    )


def test_ranks_in_different_calls_are_all_told():
    def work(rank, meeting):
        name = BARRIER if rank == 2 else REPORT
        meeting.share(Call(name, CallSite("/project/train.py", 10 + rank // 2, "train"), 0 if rank == 2 else 1))

    for rank, error in Ranks(3).run(work).items():
        assert isinstance(error, RanksDiffer), rank
        assert (
            "ranks make different calls: ranks 0-1 ray.train.report (its report 1) at train.py:10 in train, "
            "rank 2 ray.train.collective.barrier at train.py:11 in train" in str(error)
        )


@pytest.mark.parametrize("error", [RanksDiffer("places differ"), KeyError("unreadable")])
def test_what_rank_zero_cannot_put_together_fails_on_all_ranks(error):
    def combine(parts):
        raise error

    results = Ranks(3).run(lambda rank, meeting: meeting.gather(Call(REPORT), b"", combine))
    assert results[0] is error
    for rank in (1, 2):
        assert isinstance(results[rank], RanksDiffer)
        assert str(error) in str(results[rank])


def test_a_rank_that_has_left_a_report_in_the_middle_differs_in_the_next():
    def work(rank, meeting):
        meeting.share(Call(REPORT, reports=1))
        if rank == 0:  # rank 1 cannot copy its checkpoint, and its script goes on
            return meeting.gather(Call(REPORT, reports=1), b"", lambda parts: b"")
        return meeting.share(Call(REPORT, reports=2))

    for error in Ranks(2).run(work).values():
        assert isinstance(error, RanksDiffer)
        assert "rank 0 ray.train.report (its report 1), rank 1 ray.train.report (its report 2)" in str(error)


def test_a_value_of_somebody_else_is_never_taken():
    shared = MemoryStore()
    ours, theirs = (SignedStore(shared, "fit 0", secret) for secret in ("secret", "another secret"))
    theirs.put("1/result", b"=anything")
    with pytest.raises(ForgedValue, match="1/result"):
        ours.take("1/result")
    ours.put("1/result", b"=good")
    assert ours.take("1/result") == b"=good"
    shared.set("2/result/0", shared.get("1/result/0"))
    with pytest.raises(ForgedValue):
        ours.take("2/result")  # signed, but for another place


def test_a_rank_that_has_died_without_a_word_is_named_and_given_up_when_torchrun_does_nothing(monkeypatch):
    monkeypatch.setattr(meeting_module, "_GRACE", 0.1)
    ranks = Ranks(2)
    child = subprocess.Popen(["true"])
    ranks.meetings[0]._neighbours = {1: peers.Peer(child.pid, peers._look(child.pid)[1], "here")}
    child.wait()

    def work(rank, meeting):
        if rank == 0:
            meeting.share(Call(BARRIER))

    error = ranks.run(work)[0]
    ranks.meetings[0].see_all_end()  # waits for it no more
    assert ranks.said[0] == [
        f"rank 1 (pid {child.pid}) has died after 0 reports; this rank waits for it in ray.train.collective.barrier"
    ]
    assert isinstance(error, RanksDiffer)
    assert str(error).startswith("rank 1 has died after 0 reports; rank 0 waits in ray.train.collective.barrier. ")


def test_many_ranks_that_have_ended_are_counted():
    ended = [Standing(rank, 4, Call(REPORT, reports=2), "has returned") for rank in range(1, 9)]
    text = will_not_come([Standing(0), *ended], Standing(0, 5, Call(BARRIER, None, 3)))
    assert "rank 3 has returned after 2 reports, so have 5 more; rank 0 waits in" in text
    assert "2 by ranks 1-8" in text
    text = different_calls([Standing(0, 1, Call("a")), Standing(1, 1, Call("b", reports=1))])
    assert text.startswith("ranks make different calls: rank 0 a, rank 1 b. Calls of ray.train.report so far: 0 by")


def test_a_process_that_has_died_or_been_replaced_is_told_from_one_that_lives():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        peer = peers.Peer(child.pid, peers._look(child.pid)[1], peers.this_process().machine)
        assert peers.is_alive(peer)
        assert peers.is_alive(peers.this_process())
        assert not peers.is_alive(peers.Peer(os.getpid(), 1, peer.machine)), "its pid belongs to another now"
        child.kill()
        while peers._look(child.pid)[0] != "Z":
            time.sleep(0.01)
        assert not peers.is_alive(peer), "dead, though nobody has reaped it"
    finally:
        child.kill()
        child.wait()
    assert not peers.is_alive(peer)


SCORES = [0.5, 0.7, None, 0.7, float("nan"), 0.1, float("inf"), -float("inf"), 2, 0.6]


@pytest.mark.parametrize(
    ("keep", "score", "order"),
    [*itertools.product([None, 1, 3], ["score", "deep/er"], ["max", "min"]), (2, None, "max"), (None, None, "max")],
)
def test_the_checkpoints_kept_are_those_that_ray_train_keeps(keep, score, order, tmp_path):
    manager = pytest.importorskip("ray.train.v2._internal.execution.checkpoint.checkpoint_manager")
    from ray.train import Checkpoint, CheckpointConfig
    from ray.train.v2._internal.execution.storage import StorageContext
    from ray.train.v2._internal.execution.training_report import _TrainingReport

    (validation,) = set(inspect.signature(_TrainingReport).parameters) - {"checkpoint", "metrics"}
    config = CheckpointConfig(num_to_keep=keep, checkpoint_score_attribute=score, checkpoint_score_order=order)

    async def compare():
        theirs = manager.CheckpointManager(config, StorageContext(str(tmp_path), "run"))
        ours = History(keep, score, order)
        for number, value in enumerate(SCORES):
            directory = tmp_path / "run" / f"checkpoint_{number}"
            directory.mkdir()
            metrics = {} if value is None else {"score": value, "deep": {"er": -value}}
            checkpoint = Checkpoint(str(directory))
            report = _TrainingReport(checkpoint=checkpoint, metrics=metrics, **{validation: None})
            theirs.after_report(report, [metrics])
            before = {each.path for each, _ in ours.kept} | {checkpoint.path}
            removed = {each.path for each in ours.add(checkpoint, metrics)}
            expected = [(each.checkpoint.path, each.metrics) for each in theirs._checkpoint_results]
            assert [(each.path, metrics) for each, metrics in ours.kept] == expected
            assert removed == before - {path for path, _ in expected}
            assert not any(map(os.path.exists, removed)), "Ray has deleted them"

    asyncio.run(compare())


def test_a_score_that_is_no_number_is_refused():
    with pytest.raises(ValueError, match="'loss' has the value 'low'"):
        History(1, "loss").add(object(), {"loss": "low"})
