"""One debug session from its first byte to its last: clients and ranks that come, wait, break off and come again."""

import os
import socket
import struct
import threading
import time

import psutil
import pytest

from raytrain_debug.launcher import gateway
from tests.conftest import TARGETS, wait_for
from tests.gateway_rig import Client, Rig


@pytest.fixture
def rig(tmp_path):
    rigs = []

    def make(**options):
        rigs.append(Rig(tmp_path, **options))
        return rigs[-1]

    yield make
    for each in rigs:
        each.close()


def attached(made):
    client = made.client()
    assert client.attach()["success"]
    return client


def test_disconnect_is_answered_when_the_rank_has_its_tracing_off(rig):
    made = rig(absent=True)
    rank = made.start_rank(release_takes=0.3)
    client = attached(made)
    assert client.request("disconnect")["success"]
    assert rank.released == 1
    assert made.state() == "dormant"
    assert attached(made).request("threads")["success"]


def test_a_client_that_is_killed_leaves_a_rank_that_is_free(rig):
    made = rig()
    client = attached(made)
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()  # a reset, as from a process that dies with data unread
    wait_for(lambda: made.state() == "dormant", what="the rank to be free")
    assert made.rank.released == 1
    assert attached(made).request("threads")["success"]


def test_a_client_may_leave_while_the_rank_takes_its_time_to_answer(rig):
    made = rig(absent=True)
    made.start_rank(answers=False)
    client = made.client()
    client.request("initialize")
    client.send("attach")
    began = time.monotonic()
    assert client.request("disconnect")["success"]
    assert time.monotonic() - began < 2
    assert made.state() == "dormant"
    client = made.client()
    client.request("initialize")
    client.send("attach")
    client.close()
    wait_for(lambda: made.tasks() == 0, what="the session of a client that went without a word to end")


def test_a_client_is_told_once_that_the_rank_does_not_answer_and_of_the_answer_when_it_comes(rig):
    made = rig(absent=True)
    rank = made.start_rank(answers=False)
    client = made.client()
    client.request("initialize")
    client.send("attach")
    told = client.wait_event("output")["body"]
    assert told == {
        "category": "console",
        "output": "rank 0 gives no answer within 2 s: its process has ended; still waiting\n",
        "raytrainDebugSilence": "no answer within 2 s: its process has ended",
    }
    rank.unanswered.pop().sendall(b'{"taken":true}\n')
    assert client.receive()["body"]["output"] == "rank 0 answers now\n"
    assert client.request("disconnect")["success"]
    assert client.ended() == []


def test_who_asks_a_silent_rank_through_its_gateway_hears_the_reason_too(rig):
    client = rig().client()
    client.request("initialize")
    answer = client.request("raytrainDebugAsk", {"question": {"op": "stacks"}, "timeout": 0.2})
    assert (answer["success"], answer["message"]) == (False, "no answer within 0.2 s: its process has ended")


def test_a_rank_whose_listen_queue_is_full_is_waited_for(rig):
    made = rig(absent=True)
    rank = made.start_rank(accepts=False)
    path = made.host.run(lambda: made.job.rank(0).control)
    others = [socket.socket(socket.AF_UNIX)]
    others[0].setblocking(False)
    while others[-1].connect_ex(path) == 0:
        others.append(socket.socket(socket.AF_UNIX))
        others[-1].setblocking(False)
    client = made.client()
    client.request("initialize")
    client.send("attach")
    assert "gives no answer" in client.wait_event("output")["body"]["output"]
    for each in others:
        each.close()
    rank.accept()
    said = [client.receive() for _ in range(2)]
    assert [each.get("event") or each.get("command") for each in said] == ["output", "attach"]


def test_who_waits_for_a_rank_that_is_not_there_yet_may_leave(rig):
    made = rig(absent=True)
    client = made.client()
    client.request("initialize", {"clientName": "the test"})
    client.send("attach")
    client.wait_event("output")
    assert made.host.run(lambda: made.job.rank(0).client) == "the test"
    assert client.request("disconnect")["success"]
    assert client.ended() == []
    assert made.host.run(lambda: made.job.rank(0).client) is None


def events(messages):
    return [(each["event"], each.get("body")) for each in messages if each["type"] == "event"]


def test_the_end_of_a_rank_is_told_with_its_reason(rig):
    made = rig()
    client = attached(made)
    made.rank.end(None, 9)
    client.wait_event("terminated")
    assert events(client.events) == [
        ("output", {"category": "important", "output": "rank 0 was killed by SIGKILL\n"}),
    ]
    assert client.request("evaluate")["message"] == "rank 0 has ended"
    assert client.request("disconnect")["success"]
    assert client.ended()[-1]["event"] == "output"
    late = made.client().attach()
    assert (late["success"], late["message"]) == (False, "rank 0 was killed by SIGKILL")


def test_the_end_of_a_rank_is_told_though_a_child_of_it_holds_the_connection_open(rig):
    made = rig()
    client = attached(made)
    made.rank.end(3, silently=True)
    began = time.monotonic()
    client.wait_event("exited")
    assert time.monotonic() - began < 2


def test_a_rank_that_lets_go_of_its_debugger_but_lives_ends_the_session(rig):
    made = rig()
    client = attached(made)
    made.rank.debuggers[-1].shutdown(socket.SHUT_RDWR)
    client.wait_event("terminated")
    assert "the rank goes on" in client.events[-1]["body"]["output"]
    assert made.state() == "dormant"
    assert attached(made).request("threads")["success"]


def test_a_rank_that_cannot_be_reached_is_said_not_to_answer(rig):
    made = rig()
    made.rank.listener.close()
    os.unlink(made.host.run(lambda: made.job.rank(0).control))
    answer = made.client().attach()
    assert not answer["success"]
    assert "rank 0 does not answer: No such file" in answer["message"]


def test_the_next_attempt_is_for_whoever_comes_first_also_before_the_last_client_has_gone(rig):
    made = rig(stop_with_debugger=True)
    made.host.run(lambda: setattr(made.job, "restarts_left", 1))
    old = attached(made)
    made.rank.end(1)
    assert old.wait_event("terminated")["body"] == {"restart": {"attempt": 1}}
    new = made.client()
    new.request("initialize")
    new.send("attach")
    assert "waiting for rank 0" in new.wait_event("output")["body"]["output"]
    made.start_rank()
    assert new.receive()["command"] == "attach"
    assert old.request("disconnect")["success"]
    assert new.request("threads")["success"]
    time.sleep(gateway.STOP_GRACE + 0.2)
    assert made.stops == [], "the end of a rank is no wish of the person's to end the job"
    new.request("disconnect")
    wait_for(lambda: made.stops == ["the debugger was stopped"], what="the job to be stopped with its debugger")


def test_a_debugger_that_comes_back_at_once_does_not_end_the_job(rig):
    made = rig(stop_with_debugger=True)
    attached(made).request("disconnect")
    again = attached(made)
    time.sleep(gateway.STOP_GRACE + 0.2)
    assert made.stops == []
    again.close()
    wait_for(lambda: made.stops, what="the job to be stopped with its debugger")


def test_the_person_can_end_the_job_from_the_debugger(rig):
    made = rig()
    client = attached(made)
    assert client.request("terminate")["success"]
    client.wait_event("terminated")
    assert made.stops == ["the test asked to end the job"]
    assert client.request("evaluate")["success"], "until the rank ends, its debugger can be used"


def test_the_end_of_the_run_is_told_and_frees_the_port(rig):
    made = rig()
    clients = [attached(made), made.client()]
    made.host.run(lambda: made.job.finish(0, None))
    began = time.monotonic()
    threads = [threading.Thread(target=answer_the_end, args=(client,)) for client in clients[:1]]
    for each in threads:
        each.start()
    made.host.call(made.gateway.close())
    assert time.monotonic() - began < 4
    with pytest.raises(ConnectionRefusedError):
        Client(made.port)


def answer_the_end(client):
    client.wait_event("terminated")
    client.request("disconnect")


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_loopback_is_reached_by_all_its_names(rig, host):
    made = rig()
    family, *_, address = socket.getaddrinfo(host, made.port, type=socket.SOCK_STREAM)[0]
    client = made.client(host=address[0])
    assert client.attach()["success"]
    assert family == client.socket.family


def test_a_client_whose_machine_vanishes_is_noticed_by_the_kernel(rig):
    made = rig()
    attached(made)

    def options():
        (session,) = made.gateway._sessions.values()
        connection = session._stream._writer.get_extra_info("socket")
        return [
            connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE),
            connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE),
        ]

    assert made.host.run(options) == [1, 30]


def test_a_real_job_and_its_debugger_live_through_a_storm(launch):
    job = launch("--nproc-per-node", "2", TARGETS / "steps.py", "60", "0.05")
    job.wait_state("dormant", (0, 1))
    session = job.session(0)
    session.set_breakpoint(str(TARGETS / "steps.py"), line=14)
    assert session.wait_for_stop(20) is not None
    launcher = psutil.Process(job.process.pid)
    before = launcher.memory_info().rss
    storm = []
    for number in range(200):
        connection = socket.create_connection(("127.0.0.1", job.base_port + number % 2))
        storm.append(connection)
        try:
            connection.sendall(os.urandom(2000) if number % 4 else b"Content-Length: 8000000\r\n\r\n" + b"x" * 60_000)
        except OSError:
            pass
    frame = session.stack()[0]
    assert session.evaluate("__rank__", frame).value == "0"
    assert launcher.memory_info().rss - before < 32_000_000
    for connection in storm:
        connection.close()
    session.clear_breakpoints()
    session.disconnect()
    late = job.session(1)
    assert late.threads()
    late.disconnect()
    assert job.wait() == 0
    assert "rank 1 done 1.0" in job.output
