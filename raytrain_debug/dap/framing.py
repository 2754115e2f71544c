"""The one framing of the Debug Adapter Protocol: messages to bytes and back, with strict bounds and no I/O.

A message on the wire is `Content-Length: N`, an empty line, and N bytes of UTF-8 JSON.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from raytrain_debug.errors import DapError

MAX_HEADER = 8 * 1024
MAX_LENGTH = 64 * 1024 * 1024

_FIELDS: dict[str, type] = {"seq": int, "request_seq": int, "type": str, "command": str, "event": str}
_HEADER_END = b"\r\n\r\n"
_HEADER_BYTES = frozenset(b"\t\r\n") | frozenset(range(0x20, 0x7F))


@dataclass(frozen=True)
class Frame:
    """One message as it came: `message` parsed, `raw` its exact bytes with the header, for passing on unchanged."""

    message: dict[str, Any]
    raw: bytes


def encode(message: dict[str, Any]) -> bytes:
    """The bytes of `message` on the wire. Raises ValueError or TypeError for what strict JSON cannot hold."""
    # ASCII only: a lone surrogate (a file name that is not UTF-8) has no UTF-8 form, an escape it always has.
    body = json.dumps(message, allow_nan=False, separators=(",", ":")).encode("ascii")
    return b"Content-Length: %d\r\n\r\n%s" % (len(body), body)


class Decoder:
    """Turns a byte stream, cut anywhere, into messages.

    Holds at most one unfinished message and what was fed in one call. After a DapError the stream has no meaning any
    more: every further call raises it again.
    """

    def __init__(self, max_length: int = MAX_LENGTH) -> None:
        self._max_length = max_length
        self._buffer = bytearray()
        self._body_at = 0
        self._length = -1  # of the body of the message at the buffer's start; -1 until its header is complete
        self._fault: DapError | None = None

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """The messages that `data` completes, in order; raises DapError on bytes that are no such stream."""
        return [frame.message for frame in self.feed_frames(data)]

    def feed_frames(self, data: bytes) -> list[Frame]:
        """As `feed`, with the raw bytes of each message beside it."""
        if self._fault is not None:
            raise self._fault
        self._buffer += data
        frames: list[Frame] = []
        start = 0
        try:
            while (end := self._end_of_message(start)) is not None:
                raw = bytes(memoryview(self._buffer)[start:end])
                frames.append(Frame(_parse(raw[self._body_at - start :]), raw))
                start, self._length = end, -1
        except DapError as fault:
            self._fault = fault
            self._buffer.clear()
            raise
        del self._buffer[:start]
        self._body_at -= start
        return frames

    @property
    def pending(self) -> int:
        """Bytes held of an unfinished message: not 0 at the end of a stream means that it was cut."""
        return len(self._buffer)

    def _end_of_message(self, start: int) -> int | None:
        """Where the message at `start` ends, or None when it is not complete yet."""
        if self._length < 0 and not self._read_header(start):
            return None
        end = self._body_at + self._length
        return end if len(self._buffer) >= end else None

    def _read_header(self, start: int) -> bool:
        end = self._buffer.find(_HEADER_END, start, start + MAX_HEADER)
        header = bytes(memoryview(self._buffer)[start : end if end >= 0 else start + MAX_HEADER])
        if not _HEADER_BYTES.issuperset(header):
            raise DapError("not the Debug Adapter Protocol: the header is not text")
        if end < 0:
            if len(header) >= MAX_HEADER:
                raise DapError(f"not the Debug Adapter Protocol: no header within {MAX_HEADER} bytes")
            return False
        self._length = _content_length(header.decode("ascii"))
        if self._length > self._max_length:
            raise DapError(f"a message of {self._length} bytes is over the limit of {self._max_length}")
        self._body_at = end + len(_HEADER_END)
        return True


def _content_length(header: str) -> int:
    lengths = []
    for line in header.split("\r\n"):
        name, colon, value = line.partition(":")
        if not colon:
            raise DapError(f"not the Debug Adapter Protocol: header line {line[:60]!r}")
        if name.strip().lower() == "content-length":
            lengths.append(value.strip())
    if len(lengths) != 1 or not lengths[0].isdecimal() or len(lengths[0]) > 18:
        raise DapError(f"not the Debug Adapter Protocol: header {header[:60]!r} has no one Content-Length")
    return int(lengths[0])


def _parse(body: bytes) -> dict[str, Any]:
    try:
        message = json.loads(body.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise DapError(f"a message is not JSON: {error}") from None
    if not isinstance(message, dict):
        raise DapError("a message is not a JSON object")
    for name, kind in _FIELDS.items():
        # They become keys of tables: who reads a message must not meet a list there.
        if name in message and not isinstance(message[name], kind):
            raise DapError(f"not the Debug Adapter Protocol: {name!r} of a message is {message[name]!r:.60}")
    return message
