"""Rank 1 ends as asked, while rank 0 waits: `ends.py HOW [gloo] [saves]`. With `gloo` rank 0 waits in a collective.

With `saves` SIGTERM has a rank save its work, as it were, and exit with code 7.
Prints `ready`, and ends once the file `go` is there; `wait` and `stubborn` wait to be ended by somebody else.
"""

import ctypes
import os
import signal
import sys
import time

how, rank = sys.argv[1], int(os.environ.get("RANK", "1"))


class Planted(Exception):
    pass


def end():
    if how == "raise":
        raise Planted("by rank 1")
    if how == "exit":
        sys.exit(3)
    if how == "message":
        sys.exit("a last word")
    if how == "early":
        return
    if how == "gil":
        ctypes.PyDLL(None).sleep(600)  # holds the interpreter's lock
    if how.startswith("SIG"):
        os.kill(os.getpid(), signal.Signals[how])
    time.sleep(600)


def work():
    if "gloo" in sys.argv:
        import torch
        import torch.distributed as dist

        dist.init_process_group("gloo")
    print(f"rank {rank} ready", flush=True)
    while not os.path.exists("go"):
        time.sleep(0.01)
    if rank == 1:
        end()
    elif "gloo" in sys.argv:
        dist.all_reduce(torch.ones(1))
    else:
        time.sleep(600)


if how == "stubborn":
    signal.signal(signal.SIGTERM, lambda *_: print("not me", flush=True))
if "saves" in sys.argv:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
work()
