"""The shim runs a script or module as python itself does: the same probes, run both ways, print and end alike."""

from __future__ import annotations

import os
import py_compile
import re
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

PROBE = '''
"""The docstring."""
import inspect, json, pickle, sys, warnings
import __main__
from dataclasses import dataclass

@dataclass
class Point:
    x: int = 1

def double(value):
    return value * 2

seen = {
    "argv": sys.argv,
    "path0": sys.path[0],
    "orig_argv": sys.orig_argv[-len(sys.argv):],
    "globals": sorted(name for name in globals() if name.startswith("__")),
    "name": __name__,
    "file": __file__,
    "package": __package__,
    "spec": __spec__ and [__spec__.name, __spec__.origin, __spec__.parent, __spec__.has_location],
    "loader": type(__loader__).__name__,
    "cached": globals().get("__cached__"),
    "doc": __doc__,
    "builtins": type(__builtins__).__name__,
    "main": __main__.__dict__ is globals() and sys.modules["__main__"] is __main__,
    "source": inspect.getsource(double),
    "pickled": pickle.dumps(double).hex() + pickle.dumps(Point(3)).hex(),
    "unpickled": pickle.loads(pickle.dumps(double)) is double,
    "modules": sorted(each for each in sys.modules if each.startswith(("probe", "package."))),
    "flags": str(sys.flags),
    "breakpoint": sys.breakpointhook.__module__,
}
warnings.warn("seen")
print(json.dumps(seen, indent=1))
'''


def run(command: list[str], cwd: Path, **more):
    environment = {**os.environ, "PYTHONPATH": "", **more}
    done = subprocess.run(
        [sys.executable, "-u", *command], cwd=cwd, env=environment, capture_output=True, text=True, timeout=60
    )
    return done.returncode, done.stdout, done.stderr


def assert_alike(command: list[str], cwd: Path, **more) -> tuple[int, str, str]:
    """Run it both ways; what plain python gave."""
    plain = run(command, cwd, **more)
    ours = run(["-m", "raytrain_debug.shim", *command], cwd, **more)
    assert ours[1] == plain[1]
    assert comparable(ours[2]) == comparable(plain[2])
    assert ours[0] == plain[0]
    return plain


def comparable(errors: str) -> str:
    """Without runpy, through which `python -m` runs a module, and the depth at which Python gives up."""
    errors = re.sub(r'  File "<frozen runpy>".*\n', "", errors)
    return re.sub(r"repeated \d+ more", "repeated many more", errors)


@pytest.fixture
def place(tmp_path):
    (tmp_path / "probe.py").write_text(PROBE)
    package = tmp_path / "package"
    (package / "inner").mkdir(parents=True)
    (package / "__init__.py").write_text("made = 1\n")
    (package / "helper.py").write_text("value = 7\n")
    (package / "relative.py").write_text(
        "from . import helper\nfrom .helper import value\nprint(helper.value, value)\n" + PROBE
    )
    (package / "probe.py").write_text(PROBE)
    (package / "__main__.py").write_text("from .helper import value\nprint(value)\n" + PROBE)
    (package / "inner" / "__init__.py").write_text("")
    (package / "broken.py").write_text("import no_such_module\n")
    (tmp_path / "broken_package").mkdir()
    (tmp_path / "broken_package" / "__init__.py").write_text("raise ImportError('its own')\n")
    (tmp_path / "broken_package" / "part.py").write_text("")
    program = tmp_path / "program"
    program.mkdir()
    (program / "__main__.py").write_text("import beside\nprint(beside.value)\n" + PROBE)
    (program / "beside.py").write_text("value = 3\n")
    (tmp_path / "link.py").symlink_to(package / "probe.py")
    with zipfile.ZipFile(tmp_path / "program.zip", "w") as archive:
        archive.write(program / "__main__.py", "__main__.py")
        archive.write(program / "beside.py", "beside.py")
    (tmp_path / "away").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    "command",
    [
        "probe.py --lr 0.1",
        "./probe.py",
        "away/../probe.py",
        "package/probe.py",
        "{}/probe.py a b",
        "link.py",
        "program",
        "program.zip x",
        "-m probe --lr 0.1",
        "-m package.relative x",
        "-m package y",
    ],
)
def test_a_script_sees_what_python_shows_it(place, command):
    code, output, _ = assert_alike(command.format(place).split(), place)
    assert code == 0
    assert '"argv"' in output


def test_with_safe_path_too(place):
    assert_alike(["probe.py"], place, PYTHONSAFEPATH="1")


def test_a_compiled_file_runs_too(place):
    (place / "small.py").write_text("import sys\nprint(sys.argv, __file__, type(__loader__).__name__)\n")
    py_compile.compile(str(place / "small.py"), cfile=str(place / "small.pyc"))
    code, output, _ = assert_alike(["small.pyc", "x"], place)
    assert code == 0
    assert "SourcelessFileLoader" in output


@pytest.mark.parametrize(
    "command",
    [
        "no_such_file.py",
        "away",
        "-m no_such_module",
        "-m package.no_such_module",
        "-m package.inner",
        "-m no_such_package.module",
        "-m package.broken",
        "-m broken_package.part",
    ],
)
def test_what_is_not_there_is_said_as_python_says_it(place, command):
    code, _, errors = assert_alike(command.split(), place)
    assert code in (1, 2)
    assert errors


ENDS = {
    "syntax": "def (:",
    "indentation": "if True:\nx = 1",
    "encoding": "# -*- coding: latin-1 -*-\nprint('é')",
    "exit message": "import sys\nsys.exit('a last word')",
    "exit code": "import sys\nsys.exit(7)",
    "exit none": "import sys\nsys.exit()",
    "exit in a function": "def f():\n    raise SystemExit(3)\nf()",
    "os exit": "import os\nos._exit(5)",
    "raise": "def f(x):\n    raise ValueError(x)\n\nf('planted')",
    "chain": "try:\n    1 / 0\nexcept ZeroDivisionError as error:\n    raise KeyError('x') from error",
    "context": "try:\n    [][1]\nexcept IndexError:\n    {}['k']",
    "interrupt": "def f():\n    raise KeyboardInterrupt\nf()",
    "recursion": "def f():\n    f()\nf()",
    "library": "import json\njson.loads('{')",
    "callback": "sorted([2, 1], key=lambda each: each / 0)",
    "hook": "import sys\nsys.excepthook = lambda *found: print(found[:2], found[2].tb_lineno, found[2].tb_next)\n1 / 0",
    "broken hook": "import sys\ndef hook(*found):\n    raise TypeError('in the hook')\nsys.excepthook = hook\n1 / 0",
    "leaving hook": "import sys\nsys.excepthook = lambda *found: sys.exit(9)\n1 / 0",
    "atexit": "import atexit\natexit.register(print, 'bye')\n1 / 0",
    "thread": "import threading\nthreading.Thread(target=lambda: 1 / 0, name='mine').start()",
    "last": "import atexit, sys\natexit.register(lambda: print(sys.last_value, sys.last_traceback.tb_lineno))\n1 / 0",
    "signal": "import os, signal\nos.kill(os.getpid(), signal.SIGUSR1)",
    "caught": "import traceback\ntry:\n    1 / 0\nexcept ZeroDivisionError:\n    traceback.print_exc()",
}


@pytest.mark.parametrize("name", ENDS)
def test_a_script_ends_as_under_python(tmp_path, name):
    (tmp_path / "ends.py").write_bytes(ENDS[name].encode("latin-1") + b"\n")
    assert_alike(["ends.py"], tmp_path)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="exception groups and notes came with Python 3.11")
def test_groups_and_notes_are_printed_as_under_python(tmp_path):
    text = "try:\n    1 / 0\nexcept Exception as e:\n    e.add_note('a note')\n    raise ExceptionGroup('g', [e, e])\n"
    (tmp_path / "ends.py").write_text(text)
    assert_alike(["ends.py"], tmp_path)


def test_an_interrupt_ends_it_as_a_signal(tmp_path):
    (tmp_path / "ends.py").write_text(ENDS["interrupt"])
    assert run(["-m", "raytrain_debug.shim", "ends.py"], tmp_path)[0] == -signal.SIGINT


def test_the_shim_alone_says_how_it_is_started(tmp_path):
    code, _, errors = run(["-m", "raytrain_debug.shim"], tmp_path)
    assert code == 2
    assert re.search(r"raytrain_debug launch", errors)


RACE = """
import sys, threading
from raytrain_debug.shim import debugger, target

class Look:
    def find_spec(self, name, path=None, module=None):
        if name == "debugpy":
            print("locked", target.path_lock.locked())

sys.meta_path.insert(0, Look())
debugger._start_pydevd()
before = list(sys.path)
with target.path_lock:
    script = threading.Thread(target=target.run_target, args=("script.py", []), kwargs={"module": False})
    script.start()
    script.join(0.3)
    print("unchanged", sys.path == before)
script.join()
"""


def test_the_path_is_not_changed_while_debugpy_is_imported(tmp_path):
    """It puts a directory first for that time, and takes it away again."""
    (tmp_path / "script.py").write_text("import sys\nprint('first', sys.path[0])\n")
    done = subprocess.run([sys.executable, "-c", RACE], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.stdout == f"locked True\nunchanged True\nfirst {tmp_path.resolve()}\n", done.stderr
