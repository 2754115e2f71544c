"""A question to a rank of another machine, through its gateway, without attaching to it.

It is a request of our own on a Debug Adapter Protocol connection, `raytrainDebugAsk`, with the arguments `question`
(what the rank's control channel takes), `timeout` in seconds and `raytrainDebugToken`; the answer's body is the rank's.
"""

from __future__ import annotations

from typing import Any

from raytrain_debug.dap.client import Client
from raytrain_debug.errors import ControlError
from raytrain_debug.run import codec

ASK = "raytrainDebugAsk"
ASKABLE = ("stacks", "evaluate")

_THERE_AND_BACK = 2.0  # seconds, beside those the rank has


def ask_through_gateway(
    host: str, port: int, question: dict[str, Any], timeout: float, token: str | None = None
) -> dict[str, Any]:
    """The rank's answer to `question`, for which it has `timeout` seconds; raises DapError and ControlError."""
    client = Client.connect(host, port, _THERE_AND_BACK)
    try:
        client.start()
        client.request("initialize", {"clientName": "raytrain_debug", "adapterID": "debugpy"}, _THERE_AND_BACK)
        arguments = {"question": question, "timeout": timeout, **({"raytrainDebugToken": token} if token else {})}
        answer = client.request(ASK, arguments, timeout + _THERE_AND_BACK)
    finally:
        client.close()
    if "error" in answer:
        raise ControlError(str(answer["error"]))
    restored: dict[str, Any] = codec.loads(codec.dumps(answer))
    return restored
