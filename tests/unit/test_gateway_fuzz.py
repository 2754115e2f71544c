"""The gateway under hostile input: random bytes, half messages, floods; its one client and the rank notice nothing."""

import socket
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from raytrain_debug.dap import framing
from raytrain_debug.launcher import gateway
from tests.conftest import wait_for
from tests.gateway_rig import Rig

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=8), children, max_size=3),
    max_leaves=8,
)
WORDS = st.sampled_from(
    ["initialize", "attach", "launch", "disconnect", "terminate", "evaluate", "continue", "configurationDone"]
)
MESSAGE = st.fixed_dictionaries(
    {},
    optional={
        "seq": JSON,
        "type": st.sampled_from(["request", "response", "event"]) | JSON,
        "command": WORDS | JSON,
        "event": JSON,
        "arguments": st.dictionaries(
            st.sampled_from(["clientName", "raytrainDebugToken", "terminateDebuggee"]), JSON, max_size=3
        )
        | JSON,
    },
)
PIECE = st.one_of(
    st.binary(max_size=200),
    MESSAGE.map(framing.encode),
    MESSAGE.map(framing.encode).flatmap(lambda raw: st.integers(0, len(raw)).map(lambda end: raw[:end])),
    st.integers(-(2**70), 2**70).map(lambda length: b"Content-Length: %d\r\n\r\n" % length),
    st.binary(max_size=50).map(lambda name: b"GET /" + name + b" HTTP/1.1\r\nHost: here\r\n\r\n"),
)


@pytest.fixture(scope="module")
def held(tmp_path_factory):
    """A rig, and its one client, attached."""
    rig = Rig(tmp_path_factory.mktemp("held"))
    client = rig.client()
    assert client.attach()["success"]
    yield rig, client
    client.close()
    rig.close()


EVALUATE = framing.encode(
    {"seq": 9, "type": "request", "command": "evaluate", "arguments": {"expression": "x" * 60_000}}
)


def sent_until_dropped(client, data, at_most=400_000_000):
    """How many bytes of `data`, again and again, the client could send before the gateway had enough."""
    sent = 0
    try:
        while sent < at_most:
            client.socket.sendall(data)
            sent += len(data)
    except OSError:
        pass
    return sent


def still_served(client, number):
    answer = client.request("evaluate", {"expression": str(number)})
    assert answer["body"]["echo"] == {"expression": str(number)}


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(PIECE, min_size=1, max_size=6), st.booleans())
def test_whatever_a_stranger_sends_the_client_of_the_rank_is_served(held, pieces, half_closes):
    rig, client = held
    with socket.create_connection(("127.0.0.1", rig.port)) as stranger:
        try:
            for piece in pieces:
                stranger.sendall(piece)
            if half_closes:
                stranger.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # the gateway has had enough already
    still_served(client, len(pieces))
    assert rig.stops == []
    assert rig.state() == "attached"
    assert len(rig.ranks[0].debuggers) == 1, "a stranger came through to the rank"


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(PIECE, min_size=1, max_size=6))
def test_the_client_itself_may_send_anything_and_the_next_one_is_let_in(tmp_path_factory, pieces):
    rig = shared_rig(tmp_path_factory)
    rig.notes.clear()
    first = rig.client()
    assert first.attach()["success"]
    for piece in pieces:
        try:
            first.socket.sendall(piece)
        except OSError:
            break
    first.close()
    wait_for(lambda: rig.tasks() == 0, what="the first client's end")
    with_next = rig.client()
    assert with_next.attach()["success"]
    with_next.close()
    wait_for(lambda: rig.tasks() == 0, what="the next client's end")
    assert not any("failed" in note for note in rig.notes), rig.notes


_shared: list[Rig] = []


def shared_rig(factory):
    if not _shared:
        _shared.append(Rig(factory.mktemp("shared")))
    return _shared[0]


@pytest.fixture(scope="module", autouse=True)
def _end_of_the_shared_rig():
    yield
    while _shared:
        _shared.pop().close()


@pytest.fixture
def rig(tmp_path):
    rigs = []

    def make(**options):
        rigs.append(Rig(tmp_path, **options))
        return rigs[-1]

    yield make
    for each in rigs:
        each.close()


def test_two_hundred_connections_at_once_leave_the_client_alone_and_a_bounded_number_open(held):
    rig, client = held
    strangers = [socket.create_connection(("127.0.0.1", rig.port)) for _ in range(200)]
    wait_for(lambda: rig.tasks() <= 1 + gateway.MAX_WAITING, what="the oldest silent connections to be dropped")
    still_served(client, 200)
    second = rig.client()
    refusal = second.attach()
    assert not refusal["success"]
    assert "already being debugged by the test" in refusal["message"]
    for each in strangers:
        each.close()
    wait_for(lambda: rig.tasks() == 1, what="the strangers' sessions to end")


@pytest.mark.parametrize(
    "start",
    [
        b"Content-Length: 99999999999\r\n\r\n",
        b"Content-Length: %d\r\n\r\n" % (gateway.MAX_MESSAGE + 1),
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"Content-Length: 7\r\n\r\n[1, 2]\n",
    ],
    ids=["length beyond all", "length over the limit", "HTTP", "TLS", "no object"],
)
def test_what_cannot_be_a_debugger_is_dropped_at_once(held, start):
    rig, client = held
    stranger = rig.client()
    stranger.socket.sendall(start)
    assert stranger.ended() == []
    still_served(client, 1)


def test_a_message_that_grows_beyond_bounds_before_attach_is_dropped(held):
    rig, client = held
    stranger = rig.client()
    stranger.socket.sendall(b"Content-Length: 8000000\r\n\r\n")
    assert sent_until_dropped(stranger, b"x" * 10_000) < 8_000_000
    still_served(client, 1)


def test_a_slow_client_is_served_byte_by_byte(rig):
    slow = rig().client()
    for message in ({"seq": 1, "type": "request", "command": "initialize", "arguments": {}},):
        for byte in framing.encode(message):
            slow.socket.sendall(bytes([byte]))
    assert slow.receive()["command"] == "initialize"


def test_the_first_request_must_be_initialize_and_attach_must_follow(rig):
    made = rig()
    first = made.client().request("attach")
    assert (first["success"], first["message"]) == (False, "the first request must be initialize")
    client = made.client()
    client.request("initialize")
    assert "attach must come first" in client.request("evaluate")["message"]


def test_who_has_not_attached_cannot_end_the_job(rig):
    made = rig(stop_with_debugger=True)
    for command in ("terminate", "disconnect"):
        client = made.client()
        client.request("initialize")
        assert client.request(command, {"terminateDebuggee": True})["success"]
        assert client.ended() == []
    time.sleep(gateway.STOP_GRACE + 0.2)
    assert made.stops == []


def test_a_name_cannot_write_into_the_terminal(rig):
    made = rig()
    first = made.client()
    first.request("initialize", {"clientName": "\x1b]0;owned\x07\x1b[31mme"})
    first.request("attach")
    assert made.host.run(lambda: made.job.rank(0).client) == "]0;owned[31mme"


def test_a_client_that_reads_nothing_holds_up_little_and_is_dropped_in_the_end(rig, monkeypatch):
    monkeypatch.setattr("raytrain_debug.dap.stream.STALLED", 1.0)
    made = rig()
    lazy = made.client(receive_buffer=4096)
    lazy.attach()
    began = time.monotonic()
    made.rank.flood(400_000_000)
    assert time.monotonic() - began < 20
    assert made.rank.sent < 20_000_000, "the gateway, or the kernel for it, holds what nobody reads"
    wait_for(lambda: made.tasks() == 0, what="the lazy client to be dropped")
    assert any("has read nothing" in note for note in made.notes)
    assert made.client().attach()["success"]


def test_a_rank_that_reads_nothing_holds_up_little_and_its_client_is_dropped(rig, monkeypatch):
    monkeypatch.setattr("raytrain_debug.dap.stream.STALLED", 1.0)
    made = rig(absent=True)
    made.start_rank(reads=False)
    client = made.client()
    client.request("initialize")
    client.send("attach")
    wait_for(
        lambda: made.host.run(lambda: any(each._debugger for each in made.gateway._sessions.values())), what="the relay"
    )
    assert sent_until_dropped(client, EVALUATE) < 20_000_000
    wait_for(lambda: made.tasks() == 0, what="the session's end")
    assert any("rank 0 has read nothing" in note for note in made.notes)


def test_what_a_client_sends_while_the_rank_is_not_there_is_kept_for_it(rig):
    made = rig(absent=True)
    client = made.client()
    client.request("initialize")
    client.send("attach")
    asked = client.send("evaluate", {"expression": "1"})
    assert "waiting for rank 0 to start" in client.wait_event("output")["body"]["output"]
    made.start_rank()
    answers = [client.receive() for _ in range(2)]
    assert [answer["command"] for answer in answers] == ["attach", "evaluate"]
    assert answers[1]["request_seq"] == asked


def test_what_is_kept_for_a_rank_that_is_not_there_is_bounded(rig):
    client = rig(absent=True).client()
    client.request("initialize")
    client.send("attach")
    assert sent_until_dropped(client, EVALUATE) < 20_000_000
