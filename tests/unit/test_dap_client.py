"""The client over a real socket, whose other end the test plays."""

from __future__ import annotations

import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from raytrain_debug.dap.client import Client
from raytrain_debug.dap.framing import Decoder, encode
from raytrain_debug.errors import DapError, RankEnded


class Adapter:
    """The other end of the connection."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        connection.settimeout(10)
        self._decoder = Decoder()
        self._received: list[dict[str, Any]] = []

    def receive(self) -> dict[str, Any]:
        while not self._received:
            data = self.connection.recv(65536)
            assert data, "the client has gone"
            self._received += self._decoder.feed(data)
        return self._received.pop(0)

    def send(self, **message: Any) -> None:
        self.connection.sendall(encode(message))

    def answer(self, request: dict[str, Any], **body: Any) -> None:
        answer = {"success": True, "body": body} if "success" not in body else body
        self.send(type="response", request_seq=request["seq"], command=request["command"], **answer)


@pytest.fixture
def ends():
    ours, theirs = socket.socketpair()
    client, adapter = Client(ours), Adapter(theirs)
    yield client, adapter
    client.close()
    theirs.close()


def test_answers_find_their_requests_in_whatever_order_they_come(ends):
    client, adapter = ends
    client.start()
    first, second = client.send("threads"), client.send("scopes", {"frameId": 3})
    requests = [adapter.receive(), adapter.receive()]
    assert [request["command"] for request in requests] == ["threads", "scopes"]
    assert requests[1]["arguments"] == {"frameId": 3}
    adapter.answer(requests[1], name="scopes")
    adapter.answer(requests[0], name="threads")
    assert first.result(10) == {"name": "threads"}
    assert second.result(10) == {"name": "scopes"}


def test_many_threads_may_ask_at_once(ends):
    client, adapter = ends
    client.start()

    def play() -> None:
        for _ in range(200):
            request = adapter.receive()
            adapter.answer(request, value=request["arguments"]["value"])

    player = threading.Thread(target=play)
    player.start()
    with ThreadPoolExecutor(8) as pool:
        values = list(pool.map(lambda value: client.request("echo", {"value": value}, 10)["value"], range(200)))
    player.join(10)
    assert values == list(range(200))


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ({"success": False, "message": "held by VS Code"}, "held by VS Code"),
        ({"success": False, "body": {"error": {"format": "no {what}", "variables": {"what": "frame"}}}}, "no frame"),
        ({"success": False}, "the adapter refused 'attach'"),
    ],
)
def test_a_refusal_is_an_error_in_the_adapter_s_words(ends, answer, text):
    client, adapter = ends
    client.start()
    future = client.send("attach")
    adapter.answer(adapter.receive(), **answer)
    with pytest.raises(DapError) as caught:
        future.result(10)
    assert str(caught.value) == text
    assert not isinstance(caught.value, RankEnded)


def test_events_come_in_order_and_with_a_body(ends):
    client, adapter = ends
    seen: list[tuple[str, Any]] = []
    done = threading.Event()
    client.start(lambda event: (seen.append((event["event"], event["body"])), event["event"] == "last" and done.set()))
    adapter.send(type="event", event="initialized")
    for number in range(50):
        adapter.send(type="event", event="output", body={"output": str(number)})
    adapter.send(type="event", event="last", body={})
    assert done.wait(10)
    assert seen[0] == ("initialized", {})
    assert [body["output"] for name, body in seen if name == "output"] == [str(number) for number in range(50)]


def test_who_waits_when_the_connection_ends_gets_what_the_adapter_said_last(ends):
    client, adapter = ends
    reasons: list[str] = []
    closed = threading.Event()
    client.start(on_close=lambda reason: (reasons.append(reason), closed.set()))
    future = client.send("continue")
    adapter.receive()
    adapter.send(type="event", event="output", body={"category": "stdout", "output": "the program's own"})
    adapter.send(
        type="event", event="output", body={"category": "important", "output": "rank 1 was killed by SIGKILL\n"}
    )
    adapter.connection.close()
    with pytest.raises(RankEnded, match=r"^rank 1 was killed by SIGKILL$"):
        future.result(10)
    assert closed.wait(10)
    assert reasons == ["rank 1 was killed by SIGKILL"]
    with pytest.raises(RankEnded, match="SIGKILL"):
        client.request("threads")


def test_old_news_is_not_the_reason(ends):
    client, adapter = ends
    told = threading.Event()
    client.start(lambda event: told.set())
    adapter.send(type="event", event="output", body={"output": "waiting for rank 1"})
    assert told.wait(10)
    assert client.notice == "waiting for rank 1"
    first = client.send("threads")
    adapter.answer(adapter.receive())
    first.result(10)
    second = client.send("threads")
    adapter.receive()
    adapter.connection.close()
    with pytest.raises(RankEnded, match=r"^the connection was closed$"):
        second.result(10)


def test_a_stream_that_is_not_the_protocol_ends_the_connection(ends):
    client, adapter = ends
    client.start()
    future = client.send("initialize")
    adapter.connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    with pytest.raises(RankEnded, match="not the Debug Adapter Protocol"):
        future.result(10)


def test_silence_is_an_error_after_the_time_asked_for_and_a_late_answer_does_no_harm(ends):
    client, adapter = ends
    client.start()
    with pytest.raises(DapError, match=r"no answer to 'threads' within 0\.05 s"):
        client.request("threads", timeout=0.05)
    late = adapter.receive()
    future = client.send("scopes")
    adapter.answer(late, late=True)
    adapter.answer(adapter.receive(), late=False)
    assert future.result(10) == {"late": False}


def test_requests_of_the_adapter_are_refused_so_that_it_need_not_wait(ends):
    client, adapter = ends
    client.start()
    adapter.send(type="request", seq=7, command="runInTerminal", arguments={})
    answer = adapter.receive()
    assert (answer["type"], answer["request_seq"], answer["success"]) == ("response", 7, False)


def test_abandoned_requests_fail_and_new_ones_still_go_through(ends):
    client, adapter = ends
    client.start()
    old = client.send("evaluate")
    adapter.receive()
    client.abandon("rank 0 finished")
    with pytest.raises(RankEnded, match="rank 0 finished"):
        old.result(10)
    new = client.send("disconnect")
    adapter.answer(adapter.receive())
    assert new.result(10) == {}


def test_nobody_listens():
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]
        with pytest.raises(DapError, match=f"nobody answers at 127.0.0.1:{port}: Connection refused"):
            Client.connect("127.0.0.1", port, 5)
