"""A program to debug: serves debugpy's in-process adapter on a free port, prints it, and works until told to end.

`--thread` adds a busy background thread; `--raise` ends with an exception. `state.run = False` tells it to end.
"""

import sys
import threading
import time

import debugpy


class State:
    run = True
    steps = 0


state = State()


def scale(value, factor=2):
    product = value * factor
    return product, factor


def step(number):
    doubled = scale(number)
    text = f"step {number}"
    state.steps = number
    return doubled, text


def train():
    number = 0
    while state.run:
        step(number)
        number += 1
        time.sleep(0.005)
    return number


def background():
    while state.run:
        time.sleep(0.001)


def fail():
    cause = "planted"
    raise ValueError(cause)


def main():
    _, port = debugpy.listen(("127.0.0.1", 0), in_process_debug_adapter=True)
    print(port, flush=True)
    if "--thread" in sys.argv:
        threading.Thread(target=background, name="background").start()
    train()
    if "--raise" in sys.argv:
        fail()
    print("done", flush=True)


if __name__ == "__main__":
    main()
