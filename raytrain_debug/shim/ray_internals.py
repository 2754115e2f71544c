"""What we rely on in Ray Train that is no public API: all of it, with a test for each.

Ray 2.51 to 2.60, below `ray.train.v2._internal.execution`:

- `ray.train.report` of local mode ends in `train_fn_utils.LocalTrainFnUtils.report(metrics=..., checkpoint=..., ...)`,
  in a worker in `DistributedTrainFnUtils.report`, and the object's `get_context()` gives what `ray.train.get_context()`
  does; what a worker's `get_storage()` returns has `experiment_fs_path`;
- the training function of local mode is run by `DataParallelTrainer._initialize_and_run_local_controller(function)` of
  `ray.train.v2.api.data_parallel_trainer`, whose instance has a `train_run_context`; by then
  `train_fn_utils.get_train_fn_utils()` gives the object whose methods answer what the function calls, looked up there
  at each call;
- a `storage.StorageContext(storage_path, experiment_dir_name)` keeps checkpoints by `persist_current_checkpoint` under
  a name such as `make_default_checkpoint_dir_name` gives; `ray.air._internal.torch_utils.contains_tensor` says which
  metrics a worker may not report; `exceptions.UserExceptionWithTraceback` is what callbacks get to see;
- `callback` has the classes that a callback named in RAY_TRAIN_CALLBACKS is made of;
- `worker_group.thread_runner.ThreadRunner.run(target)` runs the training function in a thread, and in that thread gives
  what it raises to the module's `construct_user_exception_with_traceback(error, exclude_frames=N)`;
- a `WorkerGroup` has `get_workers()`, whose items have `metadata.pid`, `metadata.node_id` and
  `distributed_context.world_rank` and `.world_size`; `_worker_health_check_timeout_s`, read at each poll;
  `_world_rank_to_ongoing_poll` with the polls that hang; and `get_worker_group_state().sync_actor`;
- a barrier waits in the method `broadcast_from_rank_zero` of that actor, which calls the global `wait_with_logging` (in
  older versions its method `_wait_with_logging`) and gives up after the actor's `_timeout_s`, None or (Ray 2.52) less
  than 0 for never;
- a worker's stderr is a file, to which Ray has Python's faulthandler write at a fatal signal;
- a `TrainRunContext` has `run_config.failure_config.max_failures`.

Besides, the modules in `WAITS` have the functions named there. Nothing here imports Ray before it is called.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import math
import os
import stat
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import wrapt

from raytrain_debug.run import writer

_EXECUTION = "ray.train.v2._internal.execution"
REPORTING = f"{_EXECUTION}.train_fn_utils"
"""The module that `wrap_reports` needs."""
WAITS = {
    "ray.train.v2.api.train_fn_utils": {"report": "report"},
    "ray.train.collective.collectives": {
        "barrier": "ray.train barrier",
        "broadcast_from_rank_zero": "ray.train broadcast_from_rank_zero",
    },
}
"""Module -> function -> what to call it: where a rank waits for its peers inside Ray Train."""

LOCAL_FITS = "ray.train.v2.api.data_parallel_trainer"
"""The module that `wrap_local_fits` needs."""

_LOCAL = "LocalTrainFnUtils"
_REPORTERS = (_LOCAL, "DistributedTrainFnUtils")
_OUR_FRAMES = 1  # that `observe_training` puts around the training function
_FOREVER = 1e9  # seconds: a number that every event loop and every Ray takes for a time limit
_TICK = 0.2  # seconds between looks at a barrier that waits

_FATAL = b"Fatal Python error: "
_LAST_WORDS = 256 * 1024  # bytes of a worker's log in which a fatal error is looked for

_OWN_HOOK = "ray.util."  # Ray's breakpoint() in its workers, which waits for a debugger of its own


@dataclass(frozen=True)
class Worker:
    """A process that Ray has started for a rank, before it knows that it is one."""

    rank: int
    pid: int
    node: str
    world_size: int


# In any rank.


def wrap_reports(module: Any, wrapper: Callable[..., Any]) -> None:
    """Put `wrapper`, as wrapt calls one, around all reports; `module` is the imported REPORTING."""
    for name in _REPORTERS:
        wrapt.wrap_function_wrapper(module, f"{name}.report", wrapper)


def can_wrap_reports() -> bool:
    """Whether the Ray Train that has been imported has what `wrap_reports` needs."""
    return hasattr(sys.modules.get(REPORTING), _LOCAL)


def storage_place(value: Any) -> str | None:
    """The path that `get_storage()` of a context stands for; None where `value` is something else."""
    place = getattr(value, "experiment_fs_path", None)
    return place if isinstance(place, str) else None


# In the driver.


def callback_bases() -> tuple[type, ...]:
    """What a class named in RAY_TRAIN_CALLBACKS has to be, to follow the run, its worker groups and its workers."""
    module = importlib.import_module(f"{_EXECUTION}.callback")
    return module.WorkerGroupCallback, module.ControllerCallback, module.WorkerCallback


# In a rank of local mode.


def wrap_local_fits(module: Any, wrapper: Callable[..., Any]) -> None:
    """Put `wrapper`, as wrapt calls one, around each run of a training function in local mode.

    Its instance is the trainer, its one argument the function. `module` is the imported LOCAL_FITS.
    """
    wrapt.wrap_function_wrapper(module, "DataParallelTrainer._initialize_and_run_local_controller", wrapper)


def run_context(trainer: Any) -> Any:
    """What Ray Train gives to a run's callbacks, with `run_config`."""
    return trainer.train_run_context


def answer_local_calls(
    answers: Mapping[str, Callable[..., Any]], of_context: Mapping[str, Callable[..., Any]]
) -> dict[str, Callable[..., Any]]:
    """Have the training function that is about to run get `answers` to its calls; what answered them before.

    `of_context` are methods of what `ray.train.get_context()` gives. Names that this version of Ray has not are left.
    """
    utils = importlib.import_module(REPORTING).get_train_fn_utils()
    context = utils.get_context()
    before = {name: getattr(utils, name) for name in answers if hasattr(utils, name)}
    # Set on the objects: Ray's own classes, and with them a later fit(), stay as they are.
    utils.__dict__.update({name: answers[name] for name in before})
    context.__dict__.update({name: answer for name, answer in of_context.items() if hasattr(context, name)})
    return before


class Storage:
    """Where a run of the name `run` keeps its reported checkpoints: a directory of that name below `directory`."""

    def __init__(self, directory: str | os.PathLike[str], run: str) -> None:
        module = importlib.import_module(f"{_EXECUTION}.storage")
        self.context = module.StorageContext(storage_path=os.fspath(directory), experiment_dir_name=run)
        self._path = self.context.experiment_fs_path + "/"

    def new_name(self) -> str:
        """For the next checkpoint."""
        return str(self.context.make_default_checkpoint_dir_name())

    def keep(self, checkpoint: Any, name: str) -> Any:
        """Copy a checkpoint's files to `name`, beside those that are there; the Checkpoint that they are part of."""
        return self.context.persist_current_checkpoint(checkpoint, name)

    def has(self, checkpoint: Any) -> bool:
        """Whether it lies here."""
        return str(checkpoint.path).startswith(self._path)

    def place_of(self, checkpoint: Any) -> Any:
        """Where it lies, for ranks on any node: relative to here, or itself when it lies elsewhere."""
        return checkpoint.path.removeprefix(self._path) if self.has(checkpoint) else checkpoint

    def at(self, place: Any) -> Any:
        """The Checkpoint at a `place_of`."""
        from ray.train import Checkpoint

        if not isinstance(place, str):
            return place
        return Checkpoint(path=self._path + place, filesystem=self.context.storage_filesystem)


def refuse_tensors(metrics: Any) -> None:
    """Raise ValueError, as a worker does, when a reported dict holds torch tensors."""
    if "torch" in sys.modules:
        module = importlib.import_module("ray.air._internal.torch_utils")
        if module.contains_tensor(metrics):
            raise ValueError(
                "Passing objects containing Torch tensors as metrics is not supported on a cluster: "
                "report numbers (`.item()`) or arrays (`.numpy()`), or save them in the checkpoint"
            )


def reported_checkpoint(checkpoint: Any, metrics: dict[str, Any]) -> Any:
    """One of what `ray.train.get_all_reported_checkpoints()` gives: committed, and not validated."""
    module = importlib.import_module("ray.train.v2.api.reported_checkpoint")
    status = getattr(module, "ReportedCheckpointStatus", None)  # not in Ray 2.51
    return module.ReportedCheckpoint(checkpoint, metrics, *([] if status is None else [status.COMMITTED]))


def user_exception(error: BaseException) -> Any:
    """A training function's exception as callbacks get to see it, which prints as its traceback."""
    module = importlib.import_module("ray.train.v2._internal.exceptions")
    return module.UserExceptionWithTraceback(error, "".join(traceback.format_exception(error)))


# In a worker.


def observe_training(begin: Callable[[], None], end: Callable[[BaseException | None], None]) -> None:
    """Have this worker's training thread call `begin()` before the training function and `end(error)` after it.

    Neither may raise. What the training function raises, and what Ray shows of it, stays the same.
    """
    module = importlib.import_module(f"{_EXECUTION}.worker_group.thread_runner")

    def run(wrapped: Callable[[Any], Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        def with_target(target: Callable[[], Any]) -> Any:
            @functools.wraps(target)
            def observed() -> Any:
                begin()
                try:
                    result = target()
                except BaseException as error:
                    end(error)
                    raise
                end(None)
                return result

            return wrapped(observed)

        return with_target(*args, **kwargs)

    def construct(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if "exclude_frames" in kwargs:
            kwargs = {**kwargs, "exclude_frames": kwargs["exclude_frames"] + _OUR_FRAMES}
        return wrapped(*args, **kwargs)

    wrapt.wrap_function_wrapper(module, "construct_user_exception_with_traceback", construct)
    wrapt.wrap_function_wrapper(module, "ThreadRunner.run", run)


def own_log() -> str | None:
    """The file to which this worker's stderr goes; None where it is none."""
    try:
        path = os.readlink("/proc/self/fd/2")
        return path if stat.S_ISREG(os.stat(path).st_mode) else None
    except OSError:
        return None


def keep_fault(log: str | None, path: str) -> None:
    """Copy what Python's faulthandler has written to a dead worker's log, if anything, to `path`. Raises OSError."""
    if log is None:
        return
    with open(log, "rb") as file:
        file.seek(max(os.stat(log).st_size - _LAST_WORDS, 0))
        _, found, text = file.read().partition(_FATAL)
    if found:
        writer.replace_file(path, (found + text).decode("utf-8", "replace"))


def is_own_breakpointhook(name: str | None) -> bool:
    """Whether PYTHONBREAKPOINT says what Ray has put there, and not what the user has chosen."""
    return name is not None and name.startswith(_OWN_HOOK)


# In the controller.


def describe_workers(workers: Iterable[Any]) -> list[Worker]:
    """Which processes are about to become which ranks; `workers` as `before_init_train_context` has them."""
    return [
        Worker(
            each.distributed_context.world_rank,
            each.metadata.pid,
            each.metadata.node_id,
            each.distributed_context.world_size,
        )
        for each in workers
    ]


def max_failures(train_run_context: Any) -> int:
    """How often Ray Train starts the workers anew after a failure; -1 for any number of times."""
    return int(train_run_context.run_config.failure_config.max_failures)


class HealthChecks:
    """The time after which a worker group takes a worker that does not answer for dead."""

    def __init__(self, worker_group: Any) -> None:
        self._group = worker_group
        self._limit: float = worker_group._worker_health_check_timeout_s

    def hold(self, on: bool) -> None:
        """Do not count time from now on, or count it again from zero."""
        if not on:
            polls = self._group._world_rank_to_ongoing_poll
            for rank, poll in list(polls.items()):
                polls[rank] = dataclasses.replace(poll, start_time=time.monotonic())
        self._group._worker_health_check_timeout_s = math.inf if on else self._limit


class Barriers:
    """The time after which `ray.train.report` and the collectives of `ray.train.collective` give up waiting."""

    def __init__(self, worker_group: Any) -> None:
        import ray

        self._actor = worker_group.get_worker_group_state().sync_actor
        self._has_limit = ray.get(self._actor.__ray_call__.remote(install_barrier_clock), timeout=30)

    def hold(self, on: bool) -> None:
        """Stop the clock of barriers, those that wait included, or let it go on."""
        if self._has_limit:
            self._actor.__ray_call__.remote(hold_barrier_clock, on)


# In the synchronisation actor.

_held = False


def install_barrier_clock(actor: Any) -> bool:
    """Make barriers of this actor wait on a clock of ours, which can be stopped; False when they wait for ever."""
    if actor._timeout_s is None or actor._timeout_s < 0:
        return False
    kind = type(actor)
    if hasattr(kind, "_wait_with_logging"):
        kind._wait_with_logging = _with_own_limit(kind._wait_with_logging, actor._timeout_s)
        actor._timeout_s = _FOREVER
    else:
        # Ray sends the actor's class by value: its globals are no module's.
        names = inspect.unwrap(kind.broadcast_from_rank_zero).__globals__
        names["wait_with_logging"] = stoppable(names["wait_with_logging"], lambda: _held)
    return True


def _with_own_limit(wait: Callable[..., Any], limit: float) -> Callable[..., Any]:
    """A `_wait_with_logging` that gives up by itself."""
    limited = stoppable(wait, lambda: _held)

    import asyncio  # not needed, and so not imported, in a rank

    @functools.wraps(wait)
    async def waiting(actor: Any, *args: Any) -> Any:
        try:
            return await limited(actor, *args, timeout_s=limit)
        except (asyncio.TimeoutError, TimeoutError):
            actor._timeout_s = limit  # which Ray tells the user
            raise

    return waiting


def hold_barrier_clock(actor: Any, on: bool) -> None:
    """Stop the clock, or let it go on where it stood."""
    global _held
    _held = on


def stoppable(wait: Callable[..., Any], is_held: Callable[[], bool]) -> Callable[..., Any]:
    """`wait(condition, ..., timeout_s=...)` with a timeout that does not run while `is_held()`."""
    import asyncio

    @functools.wraps(wait)
    async def waiting(*args: Any, timeout_s: float | None = None, **kwargs: Any) -> Any:
        if timeout_s is None:
            return await wait(*args, **kwargs)
        task = asyncio.ensure_future(wait(*args, **kwargs))
        left = timeout_s
        try:
            while left > 0:
                began, held = time.monotonic(), is_held()
                done, _ = await asyncio.wait({task}, timeout=min(left, _TICK))
                if done:
                    return task.result()
                if not (held or is_held()):
                    left -= time.monotonic() - began
            raise asyncio.TimeoutError
        finally:
            # The condition's lock is ours again only once the task has let go of it.
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    return waiting
