"""The recipe of docs/editors.md in a real Neovim, where there is one and RAYTRAIN_DEBUG_NVIM_DAP names the plugin."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import REPOSITORY, TARGETS, Launch

PLUGIN = os.environ.get("RAYTRAIN_DEBUG_NVIM_DAP", "")
RECIPE = (REPOSITORY / "docs" / "editors.md").read_text().partition("```lua\n")[2].partition("```")[0]

pytestmark = pytest.mark.skipif(
    not PLUGIN or shutil.which("nvim") is None,
    reason="needs nvim, and a checkout of nvim-dap named by RAYTRAIN_DEBUG_NVIM_DAP",
)

# Two ranks stopped at the breakpoint, one value of each, then the end of the job.
SCENARIO = """
local found = { sessions = {} }
local function finish()
  vim.fn.writefile({ vim.json.encode(found) }, "found.json")
  vim.cmd("qall!")
end
vim.defer_fn(function() found.timeout = true; finish() end, 60000)
local root
dap.listeners.after.event_initialized.test = function(session)
  if not session.config.connect then root = session end
end
dap.listeners.after.event_stopped.test = function(session, body)
  session:request("stackTrace", { threadId = body.threadId }, function(_, answer)
    local frame = answer.stackFrames[1]
    session:request("evaluate", { expression = "__rank__", frameId = frame.id, context = "repl" }, function(_, value)
      table.insert(found.sessions, { name = session.config.name, line = frame.line, rank = value.result })
      if #found.sessions == 2 then root:request("terminate", {}, function() end) end
    end)
  end)
end
dap.listeners.after.event_raytrainEnded.test = function(_, body)
  found.ended = body
  vim.defer_fn(finish, 500)
end
vim.cmd("edit steps.py")
vim.api.nvim_win_set_cursor(0, { 14, 0 })
dap.set_breakpoint()
local configuration = vim.deepcopy(dap.configurations.python[1])
dap.run(vim.tbl_extend("force", configuration, { python = os.getenv("PYTHON"), args = { "1000", "0.05" } }))
"""

# Rank 1 by its port: stopped at the breakpoint, a value, and let go.
BY_PORT = """
local found = {}
local function finish()
  vim.fn.writefile({ vim.json.encode(found) }, "found.json")
  vim.cmd("qall!")
end
vim.defer_fn(function() found.timeout = true; finish() end, 60000)
dap.listeners.after.event_stopped.test = function(session, body)
  session:request("stackTrace", { threadId = body.threadId }, function(_, answer)
    local frame = answer.stackFrames[1]
    session:request("evaluate", { expression = "__rank__", frameId = frame.id, context = "repl" }, function(_, value)
      found = { line = frame.line, rank = value.result }
      dap.disconnect({ terminateDebuggee = false }, finish)
    end)
  end)
end
vim.cmd("edit steps.py")
vim.api.nvim_win_set_cursor(0, { 14, 0 })
dap.set_breakpoint()
local configuration = vim.deepcopy(dap.configurations.python[4])
configuration.connect.port = tonumber(os.getenv("PORT"))
dap.run(configuration)
"""


def run_neovim(directory: Path, scenario: str, **environment: str) -> dict[str, Any]:
    """What the scenario, run in Neovim in `directory` with the recipe, has found."""
    (directory / "scenario.lua").write_text(RECIPE + scenario)
    variables = {**os.environ, "XDG_CACHE_HOME": str(directory), "OMP_NUM_THREADS": "1", **environment}
    command = ["nvim", "--headless", "-u", "NONE", "-c", f"set rtp+={PLUGIN}", "-c", "luafile scenario.lua"]
    done = subprocess.run(command, cwd=directory, env=variables, capture_output=True, text=True, timeout=90)
    found: dict[str, Any] = json.loads((directory / "found.json").read_text())
    assert "timeout" not in found, done.stderr
    return found


def test_neovim_attaches_to_the_port_of_a_rank_and_leaves_it_running(
    tmp_path: Path, launch: Callable[..., Launch]
) -> None:
    shutil.copy(TARGETS / "steps.py", tmp_path)
    job = launch("--nproc-per-node", "2", "steps.py", "2000", "0.05")
    job.wait_state("dormant", (0, 1))
    assert run_neovim(tmp_path, BY_PORT, PORT=str(job.base_port + 1)) == {"line": 14, "rank": "1"}
    job.wait_state("dormant", (0, 1))


def test_neovim_debugs_both_ranks_by_the_recipe(tmp_path: Path) -> None:
    shutil.copy(TARGETS / "steps.py", tmp_path)
    found = run_neovim(tmp_path, SCENARIO, PYTHON=sys.executable)
    assert sorted(found["sessions"], key=lambda each: each["name"]) == [
        {"name": "rank 0", "line": 14, "rank": "0"},
        {"name": "rank 1", "line": 14, "rank": "1"},
    ]
    assert found["ended"]["stopped"]
