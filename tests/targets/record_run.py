"""Runs a script with the report hooks installed, as a rank of a recorded run: RUN_DIRECTORY KEEP SCRIPT ARGS."""

import os
import runpy
import sys
from pathlib import Path

from raytrain_debug.run.layout import RunPaths
from raytrain_debug.shim import ray_hooks
from raytrain_debug.shim.guard import Guard
from raytrain_debug.shim.recorder import RecorderConfig

run = RunPaths(Path(sys.argv[1]))
rank = int(os.environ.get("RANK", "0"))
attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
ray_hooks.install(RecorderConfig(run, rank, attempt, Guard(run.errors), keep_checkpoints=int(sys.argv[2])))
assert "ray" not in sys.modules
assert "torch" not in sys.modules
sys.argv = sys.argv[3:]
runpy.run_path(sys.argv[0], run_name="__main__")
