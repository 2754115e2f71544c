"""Ctrl-C while a job is being started, and while ranks are set in motion."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from raytrain_debug.cli import interrupts


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


def test_ctrl_c_is_held_back_and_told_and_pressed_again_it_interrupts() -> None:
    before = signal.getsignal(signal.SIGINT)
    with interrupts.held_back() as pressed:
        assert not pressed()
        os.kill(os.getpid(), signal.SIGINT)
        assert pressed()
    assert pressed()
    assert signal.getsignal(signal.SIGINT) is before

    with interrupts.held_back():
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_ctrl_c_that_is_ignored_is_ignored_while_it_would_be_held_back() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with interrupts.held_back() as pressed:
            os.kill(os.getpid(), signal.SIGINT)
        assert not pressed()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
