"""The control channel of a rank, the launcher's side: one JSON line each way, then maybe a stream (run/channel.py)."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

from raytrain_debug.dap.stream import CHUNK
from raytrain_debug.run import codec

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


_RETRY = 0.05  # seconds, while a rank's listen queue is full


async def open_with(
    path: str, request: dict[str, Any], taken: Callable[[], None] = lambda: None
) -> tuple[dict[str, Any], Connection]:
    """Send `request` to the socket at `path`; the answer, and the connection, which the caller closes.

    Waits without limit: a rank may be in a long call that holds the interpreter. A rank that has much to do for its
    answer says first that it has taken the request: `taken()` is then called. Raises OSError when nobody answers.
    """
    reader, writer = await asyncio.open_unix_connection(sock=await _connect(path), limit=CHUNK)
    try:
        writer.write(codec.dumps(request).encode() + b"\n")
        answer = await _read(reader)
        if "taken" in answer:
            taken()
            answer = await _read(reader)
    except BaseException:
        writer.close()
        raise
    return answer, (reader, writer)


async def _connect(path: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.setblocking(False)
    try:
        while True:
            try:
                connection.connect(path)
                return connection
            except BlockingIOError:  # who has stopped accepts nobody, and others ask it too
                await asyncio.sleep(_RETRY)
    except BaseException:
        connection.close()
        raise


async def _read(reader: asyncio.StreamReader) -> dict[str, Any]:
    try:
        line = await reader.readline()
        answer = codec.loads(line) if line else None
    except ValueError:
        raise OSError("its answer is no answer of ours") from None
    if not line:
        raise ConnectionResetError("the connection ended without an answer")
    if not isinstance(answer, dict):
        raise OSError("its answer is no answer of ours")
    return answer


async def ask(path: str, request: dict[str, Any], timeout: float) -> dict[str, Any] | None:
    """The answer to `request`; None when there is none within `timeout` seconds."""
    try:
        answer, (_, writer) = await asyncio.wait_for(open_with(path, request), timeout)
    except (OSError, asyncio.TimeoutError):
        return None
    writer.close()
    return answer
