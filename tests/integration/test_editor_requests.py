"""What nvim-dap and dape send when they attach to the port of a rank (docs/editors.md), played by a client."""

from __future__ import annotations

import queue
from typing import Any

from raytrain_debug.dap.client import Client
from tests.conftest import REPOSITORY, TARGETS

STEPS = TARGETS / "steps.py"
IN_STEP = 14
COMMON = {
    "pathFormat": "path",
    "linesStartAt1": True,
    "columnsStartAt1": True,
    "supportsRunInTerminalRequest": True,
    "supportsProgressReporting": True,
    "supportsStartDebuggingRequest": True,
    "supportsVariableType": True,
}
NVIM_DAP = {**COMMON, "clientId": "neovim", "clientname": "neovim", "adapterID": "nvim-dap", "locale": "en_US.UTF-8"}
DAPE = {**COMMON, "clientID": "dape", "adapterID": "raytrain"}


def look_at_rank(port: int, initialize: dict[str, Any], attach: dict[str, Any], leave: dict[str, Any]) -> tuple:
    """Attach, stop at a breakpoint, look at the frame and its variables, and leave."""
    events: queue.Queue[dict[str, Any]] = queue.Queue()
    client = Client.connect("127.0.0.1", port)
    client.start(events.put)

    def wait_event(name: str) -> dict[str, Any]:
        while True:
            event = events.get(timeout=60)
            if event["event"] == name:
                return event.get("body") or {}

    try:
        capabilities = client.request("initialize", initialize)
        assert capabilities["supportsConfigurationDoneRequest"]
        attached = client.send("attach", attach)
        wait_event("initialized")
        source = {"path": str(STEPS), "name": STEPS.name}
        breakpoints = {
            "source": source,
            "breakpoints": [{"line": IN_STEP}],
            "lines": [IN_STEP],
            "sourceModified": False,
        }
        assert len(client.request("setBreakpoints", breakpoints)["breakpoints"]) == 1
        client.request("setExceptionBreakpoints", {"filters": ["uncaught"]})
        client.request("configurationDone")
        attached.result(30)
        thread = wait_event("stopped")["threadId"]
        assert thread in [each["id"] for each in client.request("threads")["threads"]]
        frame = client.request("stackTrace", {"threadId": thread})["stackFrames"][0]
        scopes = client.request("scopes", {"frameId": frame["id"]})["scopes"]
        variables = client.request("variables", {"variablesReference": scopes[0]["variablesReference"]})["variables"]
        rank = client.request("evaluate", {"expression": "__rank__", "frameId": frame["id"], "context": "repl"})
        client.request("disconnect", leave)
    finally:
        client.close()
    names = {each["name"] for each in variables}
    return frame["name"], frame["line"], {"i", "value"} <= names, rank["result"]


def test_neovim_and_emacs_attach_to_the_port_of_a_rank_and_leave_it_running(launch):
    job = launch("--nproc-per-node", "2", STEPS, "2000", "0.05")
    job.wait_state("dormant", (0, 1))
    port = job.base_port + 1
    connect = {"host": "127.0.0.1", "port": port}
    configuration = {"name": "rank 1 by its port", "type": "raytrain", "request": "attach"}
    for initialize, attach, leave in [
        (NVIM_DAP, {**configuration, "connect": connect, "justMyCode": False}, {"restart": False}),
        (DAPE, {"type": "raytrain", "request": "attach", "justMyCode": False}, {"restart": False}),
    ]:
        assert look_at_rank(port, initialize, attach, leave) == ("step", IN_STEP, True, "1")
        assert job.wait_state("dormant", (0, 1))


def test_the_lisp_of_the_recipe_is_whole():
    blocks = (REPOSITORY / "docs" / "editors.md").read_text().split("```elisp\n")[1:]
    assert blocks
    for block in blocks:
        lisp = block.partition("```")[0]
        assert lisp.count("(") == lisp.count(")")
