"""One question and one answer over a Unix socket: the control channel of ranks and launcher, client side.

The wire is one JSON object and a newline each way. An answer `{"error": text}` is raised as ControlError.
"""

from __future__ import annotations

import os
import socket
from typing import Any

from raytrain_debug.errors import ControlError
from raytrain_debug.run import codec

MAX_LINE = 16 * 1024 * 1024


def connect(path: str | os.PathLike[str], timeout: float = 5.0) -> socket.socket:
    """A connection to the control socket at `path`; raises ControlError when nobody listens there."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(timeout)
    try:
        connection.connect(os.fspath(path))
    except OSError as error:
        connection.close()
        raise ControlError(f"nobody answers at {os.fspath(path)}: {error.strerror or error}") from None
    return connection


def ask(path: str | os.PathLike[str], request: dict[str, Any], timeout: float = 5.0) -> dict[str, Any]:
    """Send `request`, return the answer; raises ControlError on silence, on a broken answer and on `{"error": ...}`."""
    with connect(path, timeout) as connection:
        try:
            connection.sendall(codec.dumps(request).encode() + b"\n")
            answer = read_line(connection)
        except OSError as error:
            raise ControlError(f"no answer from {os.fspath(path)} within {timeout:g} s: {error}") from None
    if "error" in answer:
        raise ControlError(str(answer["error"]))
    return answer


def read_line(connection: socket.socket) -> dict[str, Any]:
    """The next JSON object from `connection`, reading no byte past its newline; ControlError when it is not one."""
    data = bytearray()
    while not data.endswith(b"\n"):
        # Peek first: what follows the line may be a Debug Adapter Protocol stream that belongs to somebody else.
        chunk = connection.recv(65536, socket.MSG_PEEK)
        if not chunk:
            raise ControlError("the connection ended before an answer came")
        end = chunk.find(b"\n")
        data += connection.recv(len(chunk) if end < 0 else end + 1)
        if len(data) > MAX_LINE:
            raise ControlError("the answer is longer than any answer of ours")
    try:
        value = codec.loads(bytes(data))
    except ValueError:
        raise ControlError("the answer is not JSON") from None
    if not isinstance(value, dict):
        raise ControlError("the answer is not an object")
    return value
