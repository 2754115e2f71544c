"""Ctrl-C while a job is being started."""

from __future__ import annotations

import subprocess
import sys


def test_a_ctrl_c_that_a_library_swallows_is_not_lost() -> None:
    code = """
import os, signal
from raytrain_debug.cli import interrupts
interrupts.remember()
interrupts.check()
try:
    os.kill(os.getpid(), signal.SIGINT)
except KeyboardInterrupt:
    print("swallowed")
try:
    interrupts.check()
except KeyboardInterrupt:
    print("seen")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "swallowed\nseen\n"


def test_who_ignores_ctrl_c_goes_on_ignoring_it() -> None:
    code = """
import os, signal
from raytrain_debug.cli import interrupts
signal.signal(signal.SIGINT, signal.SIG_IGN)
interrupts.remember()
os.kill(os.getpid(), signal.SIGINT)
interrupts.check()
"""
    subprocess.run([sys.executable, "-c", code], check=True)
