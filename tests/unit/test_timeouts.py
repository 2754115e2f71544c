"""The clock over process-group timeouts, with what torch's flight recorder says of NCCL made up: there is no GPU here.

With gloo, and real waiting, see tests/integration/test_thinking_time.py.
"""

from __future__ import annotations

import contextlib
import os

import pytest

from raytrain_debug.shim import c10d, flight_recorder
from raytrain_debug.shim.timeouts import CollectiveTimeouts

pytest.importorskip("torch.distributed")


class Rank:
    """The clock of a rank with one NCCL group of a 600 s limit, and one of 60 s, whose recorder says what we like."""

    def __init__(self, monkeypatch):
        self.said = []
        self.clock = CollectiveTimeouts(lambda place: contextlib.nullcontext(), self.said.append, lambda *call: None)
        self.groups = self.clock._groups = c10d.ProcessGroups(self.clock.protect, lambda: None)
        self.groups._set_limit("0", 600.0)
        self.groups._set_limit("3", 60.0)
        self.state = {"pg_status": {}, "entries": []}
        monkeypatch.setattr(flight_recorder, "dump", lambda collectives=False: self.state)
        self.aborted = []
        monkeypatch.setattr(os, "abort", lambda: self.aborted.append(True))

    def recorder_says(self, group, enqueued, completed, operation="all_reduce", name="0"):
        self.state["pg_status"][group] = {
            "last_enqueued_collective": str(enqueued),
            "last_completed_collective": str(completed),
        }
        self.state["entries"] = [
            {"pg_id": int(group), "retired": False, "process_group": [name, ""], "profiling_name": f"nccl:{operation}"}
        ]

    def pass_time(self, seconds, step=5.0):
        for _ in range(int(seconds / step)):
            self.clock._advance(step)


@pytest.fixture
def rank(monkeypatch):
    return Rank(monkeypatch)


def test_a_collective_that_never_ends_aborts_at_its_groups_limit(rank):
    rank.recorder_says("0", enqueued=8, completed=7)
    rank.pass_time(590)
    assert not rank.aborted
    rank.pass_time(20)
    assert rank.aborted
    assert "all_reduce has waited 600 s" in rank.said[0]


def test_each_group_has_its_own_limit(rank):
    rank.recorder_says("2", enqueued=1, completed=-1, name="3")
    rank.pass_time(70)
    assert rank.aborted


def test_time_while_somebody_debugs_does_not_count(rank):
    rank.recorder_says("0", enqueued=8, completed=7)
    rank.pass_time(300)
    rank.clock.hold(True)
    rank.pass_time(5000)
    rank.clock.hold(False)
    rank.pass_time(250)
    assert not rank.aborted
    rank.pass_time(70)
    assert rank.aborted


def test_progress_starts_the_limit_anew(rank):
    for completed in range(5):
        rank.recorder_says("0", enqueued=9, completed=completed)
        rank.pass_time(590)
    assert not rank.aborted


def test_point_to_point_counts_with_numbers_of_its_own(rank):
    rank.recorder_says("0", enqueued=3, completed=1200, operation="recv 0<-1")
    rank.pass_time(620)
    assert rank.aborted


def test_nothing_under_way_waits_for_ever(rank):
    rank.recorder_says("0", enqueued=8, completed=8)
    rank.pass_time(100_000, step=100)
    assert not rank.aborted
    assert not rank.said
