"""How the shim gets into Ray Train's processes: the environment, and a callback that travels by value."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from raytrain_debug.editor.configurations import JobSpec, compounds, configurations, tasks
from raytrain_debug.errors import UsageError
from raytrain_debug.shim import ray_environment
from tests.conftest import REPOSITORY

OURS = "raytrain_debug.shim.ray_worker.Callback"

SEND = """
import sys
import ray.cloudpickle
from ray.train.v2._internal.callbacks.env_callback import _initialize_env_callbacks

[callback] = _initialize_env_callbacks()
callback._start = {"settings": {}, "launchers": {}, "script": "train.py"}
sys.stdout.buffer.write(ray.cloudpickle.dumps(callback))
"""

# A node without our package, reached over two hops as a worker is: driver, controller, worker.
TAKE = """
import importlib.abc
import pickle, sys
import ray.cloudpickle

class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "raytrain_debug":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
callback = pickle.loads(ray.cloudpickle.dumps(pickle.loads(sys.stdin.buffer.read())))
callback.after_controller_start(None)
assert callback.before_init_train_context([]) == {}
callback._start = {}
callback.after_init_train_context()
assert "raytrain_debug" not in sys.modules
print("training goes on")
"""


def python(code, stdin=b"", **environment):
    return subprocess.run(
        [sys.executable, "-c", code], input=stdin, capture_output=True, check=True, env={**os.environ, **environment}
    )


def test_a_node_without_this_package_trains_all_the_same():
    sent = python(SEND, RAY_TRAIN_CALLBACKS=OURS, RAYTRAIN_DEBUG_LAUNCHER="/nowhere").stdout
    taken = python(TAKE, sent)
    assert taken.stdout.decode().endswith("training goes on\n")
    assert "raytrain_debug is not installed on this node" in taken.stderr.decode()
    assert "Traceback" not in taken.stderr.decode()


def test_a_callback_that_is_switched_off_finds_no_launcher(tmp_path):
    code = f"import os; os.chdir({str(tmp_path)!r})\nfrom {OURS.rpartition('.')[0]} import Callback\n"
    done = python(code + "print(Callback()._launcher)", RAYTRAIN_DEBUG="0")
    assert done.stdout == b"None\n"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("before", "after"), [(None, OURS), ("", OURS), ("mine.Own , ", f"mine.Own,{OURS}"), (f"a.B,{OURS}", f"a.B,{OURS}")]
)
def test_the_users_own_callbacks_stay(monkeypatch, before, after):
    monkeypatch.delenv("RAY_TRAIN_CALLBACKS", raising=False)
    if before is not None:
        monkeypatch.setenv("RAY_TRAIN_CALLBACKS", before)
    ray_environment.ask_for_callback()
    assert os.environ["RAY_TRAIN_CALLBACKS"] == after


@pytest.mark.parametrize(("value", "callbacks"), [("1", OURS), ("0", None), ("", None)])
def test_the_line_that_python_runs_at_its_start(value, callbacks):
    line = (REPOSITORY / "raytrain_debug.pth").read_text()
    assert line.count("\n") == 1
    code = f"{line}\nimport sys; print(os.environ.get('RAY_TRAIN_CALLBACKS'), 'raytrain_debug' in sys.modules)"
    done = python(code, RAYTRAIN_DEBUG=value, RAY_TRAIN_CALLBACKS="")
    assert done.stdout.decode().split() == ([callbacks, "True"] if callbacks else ["False"])


def spec(**more):
    return JobSpec(**{"program": "train.py", "nproc_per_node": 2, "ray": True, **more})


def test_f5_over_workers_is_the_same_compound_with_another_task():
    made, plain = spec(), spec(ray=False)
    assert compounds(made) == compounds(plain)
    assert [each["name"] for each in configurations(made)] == [
        "Rank 0: train.py",
        "Rank 1: train.py",
        "Ray Train: post-mortem",
    ]
    job = tasks(made)[0]
    assert job["label"] == tasks(plain)[0]["label"] == "Ray Train: launch train.py (2 ranks)"
    at = job["args"].index("--ray")
    assert job["args"][at:] == ["--ray", "--workers", "2", "train.py"]


@pytest.mark.parametrize("parts", [{"nproc_per_node": None}, {"nnodes": 2, "node_hosts": ("a", "b")}])
def test_a_ray_job_has_a_number_of_workers_and_one_driver(parts):
    with pytest.raises(UsageError, match="workers"):
        spec(**parts)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("launch", "--ray", "--no-torchrun", "a.py"), "two ways"),
        (("launch", "--workers", "2", "--no-torchrun", "a.py"), "goes with --ray"),
        (("launch", "--ray", "--vscode", "a.py"), "how many workers"),
        (("configure", "a.py", "--ray"), "go together"),
        (("configure", "a.py", "--ray", "--workers", "x"), "is no number"),
    ],
)
def test_a_mistake_on_the_command_line_is_told_in_words(tmp_path, arguments, words):
    Path(tmp_path, "a.py").touch()
    done = subprocess.run(
        [sys.executable, "-m", "raytrain_debug", *arguments], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr
