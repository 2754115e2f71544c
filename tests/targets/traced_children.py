"""Makes children that run a function with a breakpoint in it, then runs it itself. Once the file `go` is there."""

import multiprocessing
import os
import sys
import threading
import time


def work(who):
    done = f"{who} worked"  # a breakpoint goes here
    return done  # noqa: RET504


def child(who):
    print(work(who), "traced" if sys.gettrace() else "untraced", threading.active_count(), flush=True)


def forked(leave):
    pid = os.fork()
    if pid == 0:
        child(f"fork {leave.__name__}")
        leave(0)
    os.waitpid(pid, 0)


def main():
    while not os.path.exists("go"):
        time.sleep(0.01)
    forked(os._exit)
    forked(sys.exit)
    for method in ("fork", "spawn", "forkserver"):
        process = multiprocessing.get_context(method).Process(target=child, args=(method,))
        process.start()
        process.join()
    with multiprocessing.get_context("fork").Pool(2) as pool:
        print(pool.map(work, ["pool", "pool"]), flush=True)
    print(work("the rank"), flush=True)


if __name__ == "__main__":
    main()
