"""The Pythons that the shim is tested with, without torch: ours, and those that this machine has besides."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from tests.conftest import alone

OURS = f"{sys.version_info[0]}.{sys.version_info[1]}"
VERSIONS = ("3.10", "3.11", "3.12", "3.13")


def interpreter(version: str) -> str:
    """A Python of that version with what the shim needs: ours, or one in an environment made for it once."""
    if version == OURS:
        return sys.executable
    found = [shutil.which(f"python{version}"), *sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))]
    # pyenv puts a python3.X on the PATH that does not run unless that version has been chosen.
    working = [each for each in found if each and subprocess.run([each, "-c", ""], capture_output=True).returncode == 0]
    if not working:
        pytest.skip(f"no Python {version} on this machine")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "raytrain_debug-tests"
    environment = cache / f"python{version}-debugpy{metadata.version('debugpy')}"
    python = environment / "bin" / "python"
    with alone(f"python{version}"):
        if not (environment / "ready").exists():
            shutil.rmtree(environment, ignore_errors=True)
            subprocess.run([working[0], "-m", "venv", environment], check=True)
            packages = [f"{name}=={metadata.version(name)}" for name in ("debugpy", "wrapt", "psutil")]
            subprocess.run([python, "-m", "pip", "install", "--quiet", *packages], check=True)
            (environment / "ready").touch()
    return str(python)
