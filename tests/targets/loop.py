"""A script to attach to, without torch: works until its file `stop` appears. `loop.py [native | raise]`."""

import os
import sys
import threading
import time

seen = {"steps": 0}


def scale(value, *more, factor=2, **options):
    """The docstring is no line to stop at."""
    product = value * factor
    return product + len(more)


def work(number):
    for _ in range(3):
        doubled = scale(number)
    seen["steps"] = number
    return doubled


def tick():
    return threading.current_thread().name


def helper():
    while not os.path.exists("stop"):
        tick()
        time.sleep(0.005)


class Trainer:
    def __init__(self):
        self.lr = 0.5

    def fit(self, mode):
        number = 0
        while not os.path.exists("stop"):
            work(number)
            number += 1
            if mode == "native":
                lock = threading.Lock()
                lock.acquire()
                lock.acquire()
            time.sleep(0.005)
        if mode == "raise":
            raise ValueError(f"planted after {number > 0}")


mode = sys.argv[1] if len(sys.argv) > 1 else ""
threading.Thread(target=helper, name="helper", daemon=True).start()
print("started", flush=True)
Trainer().fit(mode)
print("done", flush=True)
