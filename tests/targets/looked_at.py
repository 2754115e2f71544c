"""Looks at threads of its own as the control channel does, on whichever Python this is, and prints "done"."""

import gc
import queue
import sys
import threading
import time
import weakref

from raytrain_debug.shim import evaluate, frames, waits


class Batch:
    pass


def train(ready, looked, gone, frame, reference):
    batch, cell = Batch(), [1]
    reference.append(weakref.ref(batch))
    frame.append(sys._getframe())
    ready.set()
    looked.wait()
    del batch
    gone.set()
    return [time.sleep(1000) for _ in cell], lambda: cell


def start(function, *arguments):
    thread = threading.Thread(target=function, args=arguments, daemon=True)
    thread.start()
    return thread


def until(condition):
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end, condition
        time.sleep(0.01)


ready, looked, gone = threading.Event(), threading.Event(), threading.Event()
frame, reference = [], []
thread = start(train, ready, looked, gone, frame, reference)
ready.wait()
seen = evaluate.variables(frame[0])
assert isinstance(seen.pop("batch"), Batch)
assert seen["cell"] == [1]  # also where a nested function shares it
looked.set()
gone.wait()
gc.collect()
assert reference[0]() is None, "a look keeps a variable's value alive"

evaluate.training_thread = lambda: thread
until(lambda: "sleep" in str(frames.positions(thread.ident)[-1].code.co_names))
own = frames.without_comprehensions(frames.user_positions(frames.positions(thread.ident)))
assert [each.function for each in own] == ["train"]
assert evaluate.answer({"expression": "[cell[0] + x for x in range(2)]"})["value"] == [1, 2]
assert "cell" in evaluate.answer({"expression": "sorted(locals())"})["value"]
assert not evaluate.answer({"expression": "'Batch' in vars() or 'cell' in globals()"})["value"]
assert evaluate.answer({"expression": "[locals() is not None, 'Batch' in globals()]"})["value"] == [True, True]
assert evaluate.answer({"expression": "batch"})["raised"]["type"] == "NameError"
assert (
    "did not end"
    in evaluate.answer({"expression": "gone.wait and [0 for _ in iter(int, 1)]", "timeout": 0.1})["unanswerable"]
)

waiting = start(queue.Queue().get)
until(lambda: waits.find_wait(frames.positions(waiting.ident)) is not None)
assert waits.find_wait(frames.positions(waiting.ident)).label == "queue get"


def wait_in_native_code(lock):
    lock.acquire()
    lock.acquire()


native = start(wait_in_native_code, threading.Lock())
until(lambda: waits.called_method(*[(p.code, p.lasti) for p in frames.positions(native.ident)][-1]) == "acquire")
print("done")
