"""Works in several threads until `stop` appears; when `look` appears, answers in `look.json` what a debugger left.

Each thread reports on itself: one that works, one that sleeps in native code between two looks, one that loops without
ever calling a Python function, a new one, and the main thread.
"""

import _thread
import json
import os
import sys
import threading
import time

STARTERS = ("_start_new_thread", "start_new_thread", "_start_joinable_thread", "start_joinable_thread")


def starters():
    return [
        getattr(module, name, None) for module in (threading, _thread) for name in STARTERS if hasattr(module, name)
    ]


def hooks():
    return {"sys.settrace": sys.settrace, "breakpointhook": sys.breakpointhook, "stdout": sys.stdout, "fork": os.fork}


BEFORE_HOOKS, BEFORE_STARTERS = hooks(), {id(each) for each in starters()}
found = {}
turns = {"main": 0, "worker": 0}


def look(name):
    """What this thread is traced by."""
    seen = [] if sys.gettrace() is None else [f"sys.gettrace() is {sys.gettrace()!r}"]
    frame = sys._getframe()
    while frame is not None:
        if frame.f_trace is not None:
            seen.append(f"f_trace of {frame.f_code.co_name} is {frame.f_trace!r}")
        frame = frame.f_back
    found[name] = seen


def look_everywhere():
    found.clear()
    asked.set()
    wanted.append(True)
    look("main")
    young = threading.Thread(target=look, args=("young",))
    young.start()
    young.join()
    while len(found) < 5:
        time.sleep(0.005)
    asked.clear()
    wanted.clear()
    found["process"] = [name for name, value in hooks().items() if value is not BEFORE_HOOKS[name]]
    found["process"] += [repr(each) for each in starters() if id(each) not in BEFORE_STARTERS]
    if threading.gettrace() is not None:
        found["process"].append("threading.settrace")
    if hasattr(sys, "monitoring"):
        found["monitoring"] = monitored()
    found["turns"] = dict(turns)
    with open("look.tmp", "w") as file:
        json.dump(found, file)
    os.rename("look.tmp", "look.json")
    os.remove("look")


def monitored():
    if sys.monitoring.get_tool(sys.monitoring.DEBUGGER_ID) is not None:
        return ["a tool is registered"]
    sys.monitoring.use_tool_id(sys.monitoring.DEBUGGER_ID, "look")
    codes = [function.__code__ for function in (step, main, worker, sleeper, look)]
    left = [code.co_name for code in codes if sys.monitoring.get_local_events(sys.monitoring.DEBUGGER_ID, code)]
    left += ["global events"] * bool(sys.monitoring.get_events(sys.monitoring.DEBUGGER_ID))
    sys.monitoring.free_tool_id(sys.monitoring.DEBUGGER_ID)
    return left


def step(name):
    value = turns[name] + 1
    turns[name] = value  # a breakpoint goes here


def worker():
    while not stopping:
        step("worker")
        if asked.is_set() and "worker" not in found:
            look("worker")
        time.sleep(0.002)


def sleeper():
    while not stopping:
        asked.wait()
        if "sleeper" not in found:
            look("sleeper")
        time.sleep(0.002)


def spinner():
    while not stopping:
        time.sleep(0.002)
        if len(wanted) and "spinner" not in found:
            found["spinner"] = [] if sys.gettrace() is None else [f"sys.gettrace() is {sys.gettrace()!r}"]


def main():
    while not os.path.exists("stop"):
        step("main")
        if os.path.exists("look"):
            look_everywhere()
        time.sleep(0.002)


asked, wanted = threading.Event(), []
stopping = False
threads = [threading.Thread(target=each, daemon=True) for each in (worker, sleeper, spinner)]
for thread in threads:
    thread.start()
print("started", flush=True)
main()
stopping = True
asked.set()
for thread in threads:
    thread.join()
print("done", flush=True)
