"""What `check` says of a training function's captures, held against cloudpickle itself."""

import importlib
import io
import mmap
import subprocess
import sys

import pytest

from raytrain_debug.check.examine import examine
from raytrain_debug.check.pickling import UNPICKLABLE

START = "import threading\nfrom functools import partial\nfrom ray.train.torch import TorchTrainer\n"
FIT = "TorchTrainer(loop).fit()\n"

# What they are made with here; what is not named is made with nothing.
ARGUMENTS = {
    "threading.Barrier": (2,),
    "threading.Timer": (1, print),
    "sqlite3.connect": (":memory:",),
    "subprocess.Popen": (["true"],),
    "weakref.ref": (io.StringIO,),
    "mmap.mmap": (-1, mmap.PAGESIZE),
    "contextvars.ContextVar": ("name",),
}
NEED_MORE = {  # a network, a file, a GPU, a job, or a package that is not always there
    "socket.create_connection",
    "zipfile.ZipFile",
    "tarfile.open",
    "h5py.File",
    "torch.utils.tensorboard.SummaryWriter",
    "torch.cuda.Stream",
    "torch.cuda.Event",
    "torch.distributed.new_group",
}


def findings(path, text):
    path.write_text(text)
    return [(each.rule, each.line, each.reason) for each in examine(path).findings]


@pytest.mark.parametrize("name", sorted(UNPICKLABLE.keys() - NEED_MORE))
def test_cloudpickle_refuses_what_the_table_says(name):
    from ray import cloudpickle

    home, _, made = name.rpartition(".")
    value = getattr(importlib.import_module(home), made)(*ARGUMENTS.get(name, ()))
    with pytest.raises(Exception, match=r"(?i)pickle|serial|shared between processes"):
        cloudpickle.dumps(value)
    if isinstance(value, subprocess.Popen):
        value.wait()


@pytest.mark.parametrize(("mode", "refused"), [("r", False), ("w", True), ("a", True), ("rb", True), ("wb", True)])
def test_an_open_file_travels_only_when_its_text_is_read(tmp_path, mode, refused):
    from ray import cloudpickle

    (tmp_path / "data").write_text("text")
    with open(tmp_path / "data", mode) as file:
        if refused:
            with pytest.raises(Exception, match=r"(?i)pickle"):
                cloudpickle.dumps(file)
        else:
            cloudpickle.dumps(file)
    said = findings(tmp_path / "train.py", f"{START}LOG = open('data', '{mode}')\ndef loop():\n    print(LOG)\n{FIT}")
    assert bool(said) == refused


# What is captured, by code in front of the training function's, and what is said of it.
CAPTURED = {
    "global": ("LOCK = threading.Lock()\ndef loop():\n    LOCK.acquire()\n", 6, "loop captures LOCK, a lock"),
    "through a function": (
        "LOCK = threading.Lock()\ndef helper():\n    return LOCK\ndef loop():\n    helper()\n",
        6,
        "loop captures LOCK, a lock",
    ),
    "in a list": ("LOCKS = [1, threading.Lock()]\ndef loop():\n    print(LOCKS)\n", 6, "loop captures LOCKS, a lock"),
    "generator expression": ("ROWS = (x for x in [1])\ndef loop():\n    next(ROWS)\n", 6, "ROWS, a generator"),
    "generator": (
        "def rows():\n    yield 1\nROWS = rows()\ndef loop():\n    next(ROWS)\n",
        8,
        "loop captures ROWS, a generator",
    ),
    "iterator of a loader": (
        "from torch.utils.data import DataLoader\nLOADER = DataLoader([1])\nBATCHES = iter(LOADER)\n"
        "def loop():\n    next(BATCHES)\n",
        8,
        "loop captures BATCHES, the iterator of a DataLoader",
    ),
    "CUDA stream": (
        "import torch\nSTREAM = torch.cuda.Stream()\ndef loop():\n    STREAM.synchronize()\n",
        7,
        "STREAM, a CUDA stream",
    ),
    "object of a class": (
        "class Cache:\n    def __init__(self):\n        self.lock = threading.Lock()\n"
        "CACHE = Cache()\ndef loop():\n    print(CACHE)\n",
        9,
        "loop captures CACHE, a Cache whose lock is a lock",
    ),
    "first iterable of a comprehension": (
        "LOCK = threading.Lock()\ndef loop():\n    return [LOCK for LOCK in [LOCK]]\n",
        6,
        "loop captures LOCK, a lock",
    ),
    "in a comprehension, beside its variable": (
        "LOCK = threading.Lock()\ndef loop():\n    return {k: LOCK for k in 'ab'}\n",
        6,
        "loop captures LOCK, a lock",
    ),
    "class attribute": (
        "class Cache:\n    lock = threading.Lock()\ndef loop():\n    Cache()\n",
        5,
        "loop captures Cache.lock, a lock",
    ),
}


@pytest.mark.parametrize("name", CAPTURED)
def test_a_captured_object_is_named(tmp_path, name):
    code, line, said = CAPTURED[name]
    ((rule, at, reason),) = findings(tmp_path / "train.py", START + code + FIT)
    assert (rule, at) == ("unpicklable", line)
    assert said in reason


def test_what_a_function_closes_over_is_captured(tmp_path):
    code = "def make():\n    lock = threading.Lock()\n    def loop():\n        lock.acquire()\n    return loop\n"
    ((_, line, reason),) = findings(tmp_path / "train.py", f"{START}{code}TorchTrainer(make()).fit()\n")
    assert (line, reason) == (7, "loop captures lock, a lock, which does not pickle")


def test_what_comes_with_a_function_is_looked_at_too(tmp_path):
    code = (
        "LOCK = threading.Lock()\ndef loop(config, lock=None): ...\n"
        "TorchTrainer(partial(loop, lock=LOCK), train_loop_config={'lock': threading.Lock()})\n"
    )
    said = findings(tmp_path / "train.py", START + code)
    assert [line for _, line, _ in said] == [6, 6]
    assert {reason.partition(",")[0] for *_, reason in said} == {
        "the partial holds LOCK",
        "'lock' of train_loop_config is a lock",
    }


@pytest.mark.parametrize(
    "fit", ["    def fit(self):\n        TorchTrainer(self.loop)\n", "job = Job()\nTorchTrainer(job.loop)\n"]
)
def test_a_method_takes_its_object_with_it(tmp_path, fit):
    code = "class Job:\n    def __init__(self):\n        self.lock = threading.Lock()\n    def loop(self): ...\n"
    ((rule, _, reason),) = findings(tmp_path / "train.py", START + code + fit)
    assert rule == "unpicklable"
    assert reason == "the method loop takes its object with it, a Job whose lock is a lock, which does not pickle"


NOT_CAPTURED = {
    "made inside": "def loop():\n    lock = threading.Lock()\n    lock.acquire()\n",
    "of the driver": "LOCK = threading.Lock()\ndef loop(): ...\nLOCK.acquire()\n",
    "shadowed": "LOCK = threading.Lock()\ndef loop(LOCK=None):\n    print(LOCK)\n",
    "says how it travels": (
        "class Cache:\n    def __init__(self):\n        self.lock = threading.Lock()\n    def __getstate__(self):\n"
        "        return {}\nCACHE = Cache()\ndef loop():\n    print(CACHE)\n"
    ),
    "path of a temporary directory": (
        "import tempfile\nwith tempfile.TemporaryDirectory() as where:\n    def loop():\n        print(where)\n"
    ),
    "variable of a comprehension": (
        "f = lock = threading.Lock()\nk = iter(()), (x for x in [1])\ndef loop(names=('a', 'b')):\n"
        "    [f.strip() for f in names if f for k in f]\n    {f for f in names}\n"
        "    print({k: lock for k, lock in enumerate(names)}, *(f for f in names))\n"
    ),
    "name of a pattern": (
        "a = b = c = d = threading.Lock()\ndef loop(config=None):\n    match config:\n"
        "        case [1, *a]: print(a)\n        case {'b': [2] as b, **c}: print(b, c)\n        case d: print(d)\n"
    ),
    "other names of its own": (
        "a = b = c = d = e = f = g = h = threading.Lock()\ndef loop(*a, **b):\n    print(a, b, [c := 1], c)\n"
        "    for d, [*e] in (): print(d, e)\n    try: raise KeyError\n    except KeyError as f: print(f)\n"
        "    import os.path as g\n    print(g, (lambda h: h)(1))\n"
    ),
    "global that it makes itself": (
        "LOCK = None\ndef loop():\n    global LOCK\n    LOCK = threading.Lock()\n    LOCK.acquire()\n"
    ),
    "global that another function takes away": (
        "LOCK = threading.Lock()\ndef close():\n    global LOCK\n    LOCK = None\n"
        "def loop():\n    print(LOCK)\nclose()\n"
    ),
    "name of an outer function that an inner one changes": (
        "def make():\n    lock = None\n    def loop():\n        nonlocal lock\n        lock = threading.Lock()\n"
        "    return loop\nloop = make()\n"
    ),
    "deleted": "LOCK = threading.Lock()\ndel LOCK\ndef loop():\n    print(LOCK)\n",
    "assigned within a comprehension": (
        "last = threading.Lock()\ndef loop():\n    [last := x for x in 'ab']\n    print(last)\n"
    ),
    "assigned again": "LOCK = threading.Lock()\nLOCK = None\ndef loop():\n    print(LOCK)\n",
}


@pytest.mark.parametrize("name", NOT_CAPTURED)
def test_what_stays_behind_is_no_finding(tmp_path, name):
    assert findings(tmp_path / "train.py", START + NOT_CAPTURED[name] + FIT) == []


def test_what_an_imported_module_holds_stays_there_but_not_what_is_taken_from_it(tmp_path):
    (tmp_path / "shared.py").write_text("import threading\nLOCK = threading.Lock()\ndef use():\n    LOCK.acquire()\n")
    named = f"{START}import shared\ndef loop():\n    shared.use()\n    shared.LOCK.acquire()\n{FIT}"
    assert findings(tmp_path / "train.py", named) == []
    taken = f"{START}from shared import LOCK\ndef loop():\n    LOCK.acquire()\n{FIT}"
    assert [line for _, line, _ in findings(tmp_path / "train.py", taken)] == [6]


def test_what_is_said_of_such_scripts_is_what_cloudpickle_does(tmp_path, monkeypatch):
    from ray import cloudpickle

    class Trainer:
        def __init__(self, function):
            self.function = function

        def fit(self):
            cloudpickle.dumps(self.function)

    monkeypatch.setitem(sys.modules, "made_trainer", type(sys)("made_trainer"))
    sys.modules["made_trainer"].TorchTrainer = Trainer
    start = START.replace("ray.train.torch", "made_trainer")
    needs_gpu = {"CUDA stream"}
    for name, (code, *_) in CAPTURED.items():
        if name not in needs_gpu:
            with pytest.raises(Exception, match=r"(?i)pickle"):
                exec(compile(start + code + FIT, "train.py", "exec"), {"__name__": "__main__"})
    for code in NOT_CAPTURED.values():
        exec(compile(start + code + FIT, "train.py", "exec"), {"__name__": "__main__"})
