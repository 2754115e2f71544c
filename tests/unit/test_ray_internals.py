"""What we rely on in Ray Train beyond its public API: a new Ray that changes one of these breaks the test of it."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import re
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from raytrain_debug.shim import ray_internals
from tests.conftest import REPOSITORY

callback = pytest.importorskip("ray.train.v2._internal.execution.callback")
context = pytest.importorskip("ray.train.v2._internal.execution.context")
storage = pytest.importorskip("ray.train.v2._internal.execution.storage")
sync_actor = pytest.importorskip("ray.train.v2._internal.execution.checkpoint.sync_actor")
worker_group = pytest.importorskip("ray.train.v2._internal.execution.worker_group.worker_group")
worker = pytest.importorskip("ray.train.v2._internal.execution.worker_group.worker")
poll = pytest.importorskip("ray.train.v2._internal.execution.worker_group.poll")

TRAINING = """
import sys, threading, time
from ray.train.v2._internal.execution.worker_group.thread_runner import ThreadRunner
from raytrain_debug.shim import ray_internals

said = []
if "observed" in sys.argv:
    ray_internals.observe_training(
        lambda: said.append(("begins", threading.current_thread().name)),
        lambda error: said.append(("ends", repr(error))),
    )

def user():
    raise KeyError("missing")

def train_fn():
    user()

def flush():
    train_fn()

def run(target):
    runner = ThreadRunner()
    runner.run(target)
    while runner.is_running():
        time.sleep(0.01)
    return runner

print(run(flush).get_error())
print(run(lambda: 7).get_return_value())
print(said)
"""


REPORTS = """
import sys
import ray.train
from ray.train import ScalingConfig
from ray.train.v2._internal.execution import train_fn_utils
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
from raytrain_debug.shim import ray_internals

seen = []

def report(wrapped, instance, args, kwargs):
    seen.append((kwargs["metrics"], kwargs["checkpoint"], instance.get_context() is ray.train.get_context()))
    seen.append(instance.get_context().get_world_size())
    return wrapped(*args, **kwargs)

assert ray_internals.REPORTING == train_fn_utils.__name__
ray_internals.wrap_reports(train_fn_utils, report)
assert ray_internals.can_wrap_reports()
DataParallelTrainer(lambda: ray.train.report({"loss": 1}), scaling_config=ScalingConfig(num_workers=0)).fit()
print(seen)
"""


def test_nothing_else_of_ours_touches_rays_internals():
    touches = re.compile(r"\bray\b[\w.]*\._|\bray\.train\.v2\b")
    package = REPOSITORY / "raytrain_debug"
    found = {path.relative_to(package) for path in package.rglob("*.py") if touches.search(path.read_text())}
    # `check` reads of them in scripts.
    assert {path for path in found if path.parts[0] != "check"} == {Path("shim/ray_internals.py")}


def test_reports_pass_through_a_method_that_has_the_context():
    done = subprocess.run([sys.executable, "-c", REPORTS], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == str([({"loss": 1}, None, True), 1])
    utils = sys.modules[callback.__name__.replace(".callback", ".train_fn_utils")]
    assert callable(utils.DistributedTrainFnUtils.get_context)
    parameters = inspect.signature(utils.DistributedTrainFnUtils.report).parameters
    assert list(parameters)[:3] == ["self", "metrics", "checkpoint"]


LOCAL_FITS = """
import json, sys, tempfile, os
from ray.train import Checkpoint, ScalingConfig, collective
import ray.train
from ray.train.v2.api import data_parallel_trainer
from raytrain_debug.shim import ray_internals

seen = []

def answers():
    names = ("report", "get_checkpoint", "get_all_reported_checkpoints", "barrier", "broadcast_from_rank_zero", "newer")
    answers = {name: lambda *args, _name=name, **kwargs: seen.append([_name, len(args), sorted(kwargs)]) or _name
               for name in names}
    before = ray_internals.answer_local_calls(answers, {"get_storage": lambda: "storage", "newer": None})
    seen.append([sorted(before), before["get_checkpoint"]()])

def fit(wrapped, trainer, args, kwargs):
    (train_func,) = args
    def around():
        seen.append(ray_internals.run_context(trainer).run_config is trainer.run_config)
        answers()
        return train_func()
    return wrapped(around)

def train():
    with tempfile.TemporaryDirectory() as directory:
        ray.train.report({"loss": 1}, checkpoint=Checkpoint.from_directory(directory))
    collective.barrier()
    calls = (ray.train.get_checkpoint(), ray.train.get_all_reported_checkpoints(),
             collective.broadcast_from_rank_zero(7), ray.train.get_context().get_storage())
    seen.append(calls)

assert ray_internals.LOCAL_FITS == data_parallel_trainer.__name__
ray_internals.wrap_local_fits(data_parallel_trainer, fit)
trainer = data_parallel_trainer.DataParallelTrainer(train, scaling_config=ScalingConfig(num_workers=0))
print(trainer.fit().checkpoint)
print(json.dumps(seen))
"""


def test_what_a_training_function_of_local_mode_calls_can_be_answered_by_us():
    done = subprocess.run([sys.executable, "-c", LOCAL_FITS], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    checkpoint, seen = done.stdout.splitlines()[-2:]
    assert checkpoint == "get_checkpoint", "fit() asks for the checkpoint of its result like the function"
    has_context, (replaced, before), reported, *calls, answered, _ = json.loads(seen)
    assert has_context is True
    assert replaced == [
        "barrier",
        "broadcast_from_rank_zero",
        "get_all_reported_checkpoints",
        "get_checkpoint",
        "report",
    ], "all but what this Ray has not"
    assert before is None
    name, positional, keywords = reported
    assert (name, positional) == ("report", 0)
    assert {"metrics", "checkpoint", "checkpoint_dir_name", "checkpoint_upload_mode", "checkpoint_upload_fn"} <= {
        *keywords
    }
    assert [call[0] for call in calls] == [
        "barrier",
        "get_checkpoint",
        "get_all_reported_checkpoints",
        "broadcast_from_rank_zero",
    ]
    assert answered == ["get_checkpoint", "get_all_reported_checkpoints", "broadcast_from_rank_zero", "storage"]


def test_a_storage_keeps_the_files_of_several_ranks_in_one_checkpoint(tmp_path):
    from ray.train import Checkpoint

    kept = ray_internals.Storage(tmp_path / "storage", "run")
    assert kept.new_name().startswith("checkpoint_")
    for rank in (0, 1):
        source = tmp_path / f"of-{rank}"
        source.mkdir()
        (source / f"{rank}.txt").write_text("weights")
        checkpoint = kept.keep(Checkpoint.from_directory(source), "the-first")
    assert sorted(path.name for path in (tmp_path / "storage" / "run" / "the-first").iterdir()) == ["0.txt", "1.txt"]
    assert ray_internals.storage_place(kept.context) == str(tmp_path / "storage" / "run")
    assert kept.has(checkpoint)
    assert kept.place_of(checkpoint) == "the-first"
    assert kept.at("the-first").path == checkpoint.path
    elsewhere = Checkpoint.from_directory(tmp_path / "of-0")
    assert not kept.has(elsewhere)
    assert kept.at(kept.place_of(elsewhere)) is elsewhere


def test_metrics_with_tensors_are_told_from_those_without():
    torch = pytest.importorskip("torch")
    ray_internals.refuse_tensors({"loss": 0.5, "deep": {"er": [1, "text"]}})
    with pytest.raises(ValueError, match="Torch tensors"):
        ray_internals.refuse_tensors({"deep": {"er": [torch.ones(1)]}})


def test_what_ray_train_gives_to_users_can_be_made():
    import ray.train

    made = ray_internals.reported_checkpoint("it", {"loss": 1})
    assert isinstance(made, ray.train.ReportedCheckpoint)
    assert (made.checkpoint, made.metrics) == ("it", {"loss": 1})
    assert getattr(getattr(made, "status", None), "value", "COMMITTED") == "COMMITTED"
    try:
        raise KeyError("missing")
    except KeyError as error:
        told = ray_internals.user_exception(error)
    assert type(told).__name__ == "UserExceptionWithTraceback"
    assert str(told).rstrip().endswith("KeyError: 'missing'")


def test_a_storage_context_has_the_path_of_the_run(tmp_path):
    made = storage.StorageContext(str(tmp_path), "the run")
    assert ray_internals.storage_place(made) == str(tmp_path / "the run")
    assert ray_internals.storage_place({"loss": 1}) is None


@pytest.mark.parametrize(
    ("module", "function"), [(module, name) for module, names in ray_internals.WAITS.items() for name in names]
)
def test_ray_trains_waits_are_where_they_were(module, function):
    found = inspect.unwrap(getattr(importlib.import_module(module), function))
    assert found.__globals__["__name__"] == module


def training(*arguments):
    done = subprocess.run([sys.executable, "-c", TRAINING, *arguments], capture_output=True, text=True, check=True)
    shown, _, said = done.stdout.rstrip().rpartition("\n")
    return shown, said


def test_the_training_thread_is_observed_and_its_traceback_stays_ray_trains():
    plain, nothing = training()
    shown, said = training("observed")
    assert nothing == "[]"
    assert shown == plain, "what Ray shows of an exception, and what it returns, are the same"
    assert "KeyError" in shown
    assert "ray_internals" not in shown
    assert said == str(
        [
            ("begins", "TrainingThread(flush)"),
            ("ends", "KeyError('missing')"),
            ("begins", "TrainingThread(<lambda>)"),
            ("ends", "None"),
        ]
    )


def test_a_callback_class_of_ours_has_the_hooks_of_ray_trains():
    from raytrain_debug.shim.ray_worker import Callback

    bases = (callback.WorkerGroupCallback, callback.ControllerCallback, callback.WorkerCallback)
    theirs = {name for base in bases for name in dir(base) if not name.startswith("_")}
    ours = {name for name in vars(Callback) if not name.startswith("_")}
    assert ours <= theirs
    for name in ours:
        base = next(each for each in bases if hasattr(each, name))
        wanted = [each for each in inspect.signature(getattr(base, name)).parameters if each != "self"]
        inspect.signature(getattr(Callback, name)).bind(None, *wanted)


def test_workers_are_described_before_they_are_ranks():
    metadata = worker.ActorMetadata(hostname="a", node_id="n1", node_ip="1", pid=42, accelerator_ids={})
    made = worker.Worker(actor=None, metadata=metadata, resources={"CPU": 1})
    [ready] = worker_group.WorkerGroup._assign_worker_ranks([made])
    assert ray_internals.describe_workers([ready]) == [ray_internals.Worker(0, 42, "n1", 1)]


def test_the_number_of_restarts_is_in_the_run_context():
    from ray.train import FailureConfig, RunConfig

    fields = inspect.signature(context.TrainRunContext).parameters
    run_context = context.TrainRunContext(
        **{name: None for name in fields if name != "run_config"},
        run_config=RunConfig(failure_config=FailureConfig(max_failures=3)),
    )
    assert ray_internals.max_failures(run_context) == 3


def test_a_worker_group_reads_its_health_check_limit_at_each_poll(monkeypatch):
    monkeypatch.setenv("RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S", "0.2")
    group = worker_group.WorkerGroup(
        SimpleNamespace(run_config=SimpleNamespace(storage_context=None), backend_config=None), None, []
    )
    task = object()
    hanging = [SimpleNamespace(actor=SimpleNamespace(poll_status=SimpleNamespace(remote=lambda: task)))]
    monkeypatch.setattr(group, "get_workers", lambda: hanging)
    monkeypatch.setattr(worker_group.ray, "wait", lambda tasks, **_: ([], tasks))

    def error():
        [status] = group._poll_workers_and_collect_errors(0)
        return status.error

    limit = ray_internals.HealthChecks(group)
    assert error() is None
    limit.hold(True)
    time.sleep(0.3)
    assert error() is None, "it hangs for longer than the limit, and somebody debugs"
    limit.hold(False)
    assert error() is None, "its time counts from the end of that"
    time.sleep(0.3)
    assert "hanging" in str(error())


async def barrier(actor, hold, seconds):
    """Rank 0 of 2 in a barrier, held for `seconds` from the beginning; what comes of it, and after how long."""
    assert ray_internals.install_barrier_clock(actor)
    ray_internals.hold_barrier_clock(actor, hold)
    names = inspect.signature(actor.broadcast_from_rank_zero).parameters
    arguments = {"world_size": 2, "data": "it", "caller_method_name": "report"}
    sequence = {"collective_seq": 1} if "collective_seq" in names else {}
    began = time.monotonic()
    zero = asyncio.ensure_future(actor.broadcast_from_rank_zero(world_rank=0, **arguments, **sequence))
    await asyncio.sleep(seconds)
    ray_internals.hold_barrier_clock(actor, False)
    try:
        await zero
    except Exception as error:
        return error, time.monotonic() - began
    return None, time.monotonic() - began


def new_actor(limit):
    kind = sync_actor.SynchronizationActor.__ray_metadata__.modified_class
    return kind(timeout_s=limit)


def test_the_clock_of_a_barrier_stands_still_while_it_is_held():
    async def held():
        return await barrier(new_actor(0.5), True, 1.5)

    error, seconds = asyncio.run(held())
    assert "BroadcastCollectiveTimeoutError" in type(error).__name__
    assert "0.5" in str(error)
    assert 1.8 < seconds < 4


def test_a_barrier_that_is_left_in_time_is_as_without_us():
    async def both():
        actor = new_actor(30)
        assert ray_internals.install_barrier_clock(actor)
        names = inspect.signature(actor.broadcast_from_rank_zero).parameters
        for turn in (1, 2):
            sequence = {"collective_seq": turn} if "collective_seq" in names else {}
            arguments = {"world_size": 2, "caller_method_name": "report", **sequence}
            assert await asyncio.gather(
                actor.broadcast_from_rank_zero(world_rank=1, data=None, **arguments),
                actor.broadcast_from_rank_zero(world_rank=0, data="it", **arguments),
            ) == ["it", "it"]

    asyncio.run(both())


@pytest.mark.parametrize("none", [None, -1])
def test_a_barrier_without_a_limit_is_left_alone(none):
    assert not ray_internals.install_barrier_clock(new_actor(none))


def test_what_ray_has_faulthandler_write_in_a_worker_is_found_in_its_log(tmp_path):
    connect = importlib.import_module("ray._private.worker").connect
    assert "faulthandler.enable(" in inspect.getsource(connect)
    log, fault = tmp_path / "worker.err", tmp_path / "fault"
    code = "import faulthandler, os; faulthandler.enable(all_threads=False)\n"
    code += "from raytrain_debug.shim import ray_internals; print(ray_internals.own_log(), flush=True); os.abort()"
    with log.open("w") as stderr:
        done = subprocess.run(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=stderr, text=True, check=False
        )
    assert done.stdout == f"{log}\n"
    ray_internals.keep_fault(done.stdout.strip(), str(fault))
    assert fault.read_text().startswith("Fatal Python error: Aborted")
    fault.unlink()
    log.write_text("nothing of the kind")
    ray_internals.keep_fault(str(log), str(fault))
    assert not fault.exists()


def test_the_breakpointhook_of_rays_workers_is_its_own():
    names = re.findall(
        r'"PYTHONBREAKPOINT"\] = "(.+?)"', inspect.getsource(importlib.import_module("ray._private.worker"))
    )
    assert names
    assert all(ray_internals.is_own_breakpointhook(name) for name in names)


@pytest.mark.parametrize(
    ("name", "own"), [("ray.util.rpdb.set_trace", True), ("ipdb.set_trace", False), ("0", False), (None, False)]
)
def test_rays_own_breakpointhook_is_told_from_the_users(name, own):
    assert ray_internals.is_own_breakpointhook(name) is own
