"""Which ranks an editor opens a session for, from the launcher's news alone."""

from __future__ import annotations

from typing import Any

from raytrain_debug.dap.openings import RECONNECT, Openings


def rank(state: str, attempt: int = 0, client: str | None = None, port: int | None = 5678) -> dict[str, Any]:
    pid = None if state == "starting" and client is None and port is None else 100 + attempt
    return {"state": state, "pid": pid, "port": port, "attempt": attempt, "client": client, "where": None}


def test_a_wanted_rank_gets_a_session_once_it_has_a_process():
    openings = Openings(None)
    assert openings.update({0: rank("starting", port=None)}) == {}
    assert openings.update({0: rank("starting")}) == {0: 0.0}
    assert openings.update({0: rank("waiting")}) == {}
    assert openings.is_alone(0)
    assert openings.update({0: rank("waiting", client="Code")}) == {}
    assert not openings.is_alone(0)


def test_another_rank_gets_one_each_time_it_waits_for_a_debugger():
    openings = Openings((1,))
    assert openings.update({0: rank("dormant"), 1: rank("dormant")}) == {1: 0.0}
    assert openings.update({0: rank("waiting")}) == {0: 0.0}
    assert openings.update({0: rank("paused", client="Code")}) == {}
    assert openings.update({0: rank("dormant")}) == {}
    assert openings.update({0: rank("waiting")}) == {0: 0.0}


def test_a_session_that_its_person_closed_while_it_waited_is_not_forced_on_them():
    openings = Openings(None)
    openings.update({0: rank("waiting", client="Code")})
    assert openings.update({0: rank("waiting")}) == {}
    assert openings.update({0: rank("waiting")}) == {}


def test_a_new_attempt_leaves_the_client_of_the_last_one_time_to_come_back():
    openings = Openings(None)
    openings.update({0: rank("attached", client="Code")})
    assert openings.update({0: rank("failed")}) == {}
    assert openings.update({0: rank("starting", attempt=1)}) == {}
    assert openings.update({0: rank("waiting", attempt=1)}) == {0: RECONNECT}
    openings.update({0: rank("waiting", attempt=1, client="Code")})
    assert not openings.is_alone(0)


def test_a_rank_that_has_ended_or_has_no_port_gets_none():
    openings = Openings(None)
    assert (
        openings.update({0: rank("failed"), 1: rank("finished"), 2: rank("waiting", port=None), 3: rank("stopped")})
        == {}
    )
