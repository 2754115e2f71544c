"""One Debug Adapter Protocol stream: messages in and out, bounded both ways, never waiting for ever on a silent peer.

Belongs to one event loop thread: the launcher's, or the adapter's.
"""

from __future__ import annotations

import asyncio
from typing import Any

from raytrain_debug.dap import framing
from raytrain_debug.errors import DapError

CHUNK = 64 * 1024  # bytes read at once; asyncio buffers at most twice as many before it makes the peer wait
STALLED = 60.0  # seconds in which a peer whose buffers are full has to read something
_LAST_BYTES = 2.0  # seconds to pass on what is still to be sent when the stream is closed


class Stream:
    """A connection with a peer; `received` counts the bytes that came, `name` stands for the peer in errors."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        name: str,
        max_length: int = framing.MAX_LENGTH,
    ) -> None:
        self.name = name
        self.received = 0
        self._reader = reader
        self._writer = writer
        self._decoder = framing.Decoder(max_length)
        self._seq = 1_000_000  # far from the numbers of whose messages are passed on beside ours
        self._flushing = asyncio.Lock()

    async def receive(self) -> list[framing.Frame] | None:
        """The messages that the next bytes complete, maybe none; None at the end, however it came. Raises DapError."""
        try:
            data = await self._reader.read(CHUNK)
        except OSError:
            data = b""
        if not data:
            return None
        self.received += len(data)
        return self._decoder.feed_frames(data)

    def send(self, raw: bytes) -> None:
        """Send the bytes of a message, sometime; `flush` waits for it and bounds what may lie here."""
        if not self._writer.transport.is_closing():
            self._writer.write(raw)

    def request(self, command: str, arguments: dict[str, Any]) -> int:
        """Send a request of ours; its number, by which the answer is known."""
        return self._compose("request", command=command, arguments=arguments)

    def event(self, event: str, body: dict[str, Any] | None = None) -> None:
        """Send an event."""
        self._compose("event", event=event, body=body or {})

    def respond(
        self,
        request: dict[str, Any],
        body: dict[str, Any] | None = None,
        error: str | None = None,
        is_news: bool = True,
    ) -> None:
        """Answer `request`, with `error` in words when it is refused, which a person sees if it is news to them."""
        answer: dict[str, Any] = {"success": error is None, "body": body or {}}
        if error is not None:
            answer |= {"message": error, "body": {"error": {"id": 1, "format": error, "showUser": is_news}}}
        seq, command = request.get("seq"), request.get("command")
        self._compose(
            "response",
            request_seq=seq if isinstance(seq, int) else 0,
            command=command if isinstance(command, str) else "",
            **answer,
        )

    async def flush(self) -> None:
        """Wait until the peer has taken enough of what was sent; raises DapError when it takes nothing for long.

        That the peer has gone is for `receive` to tell.
        """
        async with self._flushing:
            try:
                await asyncio.wait_for(self._writer.drain(), STALLED)
            except asyncio.TimeoutError:
                raise DapError(f"{self.name} has read nothing for {STALLED:g} s") from None
            except OSError:
                pass

    async def close(self) -> None:
        """End the connection, after what is still to be sent if the peer takes it soon."""
        try:
            self._writer.close()
            await asyncio.wait_for(self._writer.wait_closed(), _LAST_BYTES)
        except (OSError, asyncio.TimeoutError):
            pass
        finally:
            self.abort()

    def abort(self) -> None:
        """End the connection now."""
        self._writer.transport.abort()

    def _compose(self, kind: str, **content: Any) -> int:
        self._seq += 1
        self.send(framing.encode({"seq": self._seq, "type": kind, **content}))
        return self._seq
