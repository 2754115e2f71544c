"""Ends in the way its first argument says. No torch: a rank of it starts in half a second."""

import faulthandler
import os
import signal
import sys
import threading
import time


class Stuck:
    def __repr__(self):
        while True:
            time.sleep(0.01)


def fail(rate):
    stuck = Stuck()
    rest = ["x", rate]
    raise ValueError(f"bad rate {rate}", len(rest), id(stuck) > 0)


def crash():
    import ctypes

    before = "the end"
    ctypes.string_at(0)
    print(before)


def helper():
    tries = 3
    raise RuntimeError(f"gave up after {tries}")


def main(how):
    if how == "raise":
        fail(0.5)
    elif how == "segfault":
        print("faulthandler", faulthandler.is_enabled(), flush=True)
        crash()
    elif how == "exit":
        sys.exit(3)
    elif how == "interrupt":
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(10)
    elif how in ("thread", "hidden thread"):
        thread = threading.Thread(target=helper, name="my helper")
        if how == "hidden thread":
            from raytrain_debug.shim import pydevd_signs

            pydevd_signs.hide(thread)
        thread.start()
        thread.join()
        print("done", flush=True)
    elif how == "fork":
        if os.fork() == 0:
            crash() if len(sys.argv) > 2 else fail(0.5)
        print("child ended with", os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
    elif how == "sleep":
        seconds = 60
        print("sleeping", flush=True)
        time.sleep(seconds)


main(sys.argv[1])
