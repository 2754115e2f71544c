"""The framing: any cut of the byte stream gives the same messages, and nothing unbounded or garbled gets through."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raytrain_debug.dap.framing import MAX_HEADER, Decoder, encode
from raytrain_debug.errors import DapError

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
PROTOCOL = ("seq", "request_seq", "type", "command", "event")  # of these kinds are fixed
messages = st.dictionaries(st.text().filter(lambda name: name not in PROTOCOL), values, max_size=4)


def cut(stream: bytes, points: list[int]) -> list[bytes]:
    edges = [0, *sorted({point % (len(stream) + 1) for point in points}), len(stream)]
    return [stream[low:high] for low, high in itertools.pairwise(edges)]


@given(st.lists(messages, max_size=5), st.lists(st.integers(min_value=0, max_value=10_000), max_size=20))
def test_any_cut_of_the_stream_gives_the_same_messages(sent: list[dict], points: list[int]) -> None:
    stream = b"".join(map(encode, sent))
    decoder = Decoder()
    frames = [frame for piece in cut(stream, points) for frame in decoder.feed_frames(piece)]
    assert [frame.message for frame in frames] == sent
    assert b"".join(frame.raw for frame in frames) == stream
    assert decoder.pending == 0


@given(messages)
def test_byte_by_byte(sent: dict) -> None:
    decoder = Decoder()
    assert [got for byte in encode(sent) for got in decoder.feed(bytes([byte]))] == [sent]


@given(st.binary(max_size=300), st.lists(st.integers(min_value=0, max_value=300), max_size=5))
def test_garbage_gives_an_error_or_nothing(garbage: bytes, points: list[int]) -> None:
    decoder = Decoder(max_length=1000)
    try:
        for piece in cut(garbage, points):
            assert decoder.feed(piece) == []
    except DapError:
        with pytest.raises(DapError):
            decoder.feed(encode({}))
    assert decoder.pending <= len(garbage)


def test_raw_bytes_keep_the_sender_s_own_spelling() -> None:
    raw = b'content-length:  9\r\nContent-Type: x\r\n\r\n{ "a":1 }'
    [frame] = Decoder().feed_frames(raw)
    assert frame.raw == raw
    assert frame.message == {"a": 1}


@pytest.mark.parametrize(
    "stream",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01",  # TLS
        b"Content-Length: -1\r\n\r\n",
        b"Content-Length: 0x10\r\n\r\n",
        b"Content-Length: \r\n\r\n",
        b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n",
        b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
        b"Content-Length: 1001\r\n\r\n",
        b"Content-Length: 2\r\n\r\n[]",
        b"Content-Length: 2\r\n\r\n{x",
        b"Content-Length: 1\r\n\r\n\xff",
        b"Content-Length: 900\r\n\r\n" + b"[" * 900,
        b"x" * MAX_HEADER,
    ],
)
def test_what_is_not_the_protocol_is_refused(stream: bytes) -> None:
    with pytest.raises(DapError):
        Decoder(max_length=1000).feed(stream)


def test_a_length_over_the_limit_is_refused_before_its_body_comes() -> None:
    decoder = Decoder(max_length=10)
    with pytest.raises(DapError, match="limit of 10"):
        decoder.feed(b"Content-Length: 11\r\n\r\n")


def test_what_only_escapes_can_hold_survives() -> None:
    sent = {"path": "/a\udc80b", "text": "é\u2028\U0001f600"}
    assert Decoder().feed(encode(sent)) == [sent]


def test_many_messages_in_one_piece_take_linear_time() -> None:
    stream = encode({"seq": 1}) * 100_000
    assert len(Decoder().feed(stream)) == 100_000


def test_a_number_that_json_cannot_hold_is_not_sent() -> None:
    with pytest.raises(ValueError, match="JSON"):
        encode({"x": float("nan")})


def test_a_message_is_strict_json() -> None:
    header, _, body = encode({"x": [1, "é"]}).partition(b"\r\n\r\n")
    assert header == b"Content-Length: %d" % len(body)
    assert json.loads(body) == {"x": [1, "é"]}


@pytest.mark.parametrize(
    "message", [{"seq": []}, {"request_seq": "1"}, {"type": {}}, {"command": ["a"]}, {"event": None}, {"seq": 1.5}]
)
def test_a_field_of_the_protocol_that_is_of_another_kind_is_an_error(message: dict) -> None:
    with pytest.raises(DapError, match=f"'{next(iter(message))}' of a message is "):
        Decoder().feed(encode(message))
