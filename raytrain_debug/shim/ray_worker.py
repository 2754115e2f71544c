"""The class that RAY_TRAIN_CALLBACKS names: how the shim gets into Ray Train's workers, with no edit of the script.

Ray makes one object of it in the driver (the process that runs the script), sends it to the controller (one process a
`fit()`, on the driver's node), and from there to each worker. It travels by value, so that a node on which this package
is not installed trains all the same; and none of its methods raises.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import ray.cloudpickle

from raytrain_debug.shim import ray_internals


def _never_the_cause(method: Callable[..., Any]) -> Callable[..., Any]:
    """`method`, whose faults are said in one line and go no further."""

    @functools.wraps(method)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        try:
            return method(*args, **kwargs)
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            if isinstance(error, ImportError) and (error.name or "").startswith("raytrain_debug"):
                text = "raytrain_debug is not installed on this node, or another version of it"
            print(
                f"raytrain_debug: Ray Train's workers cannot be followed ({text}); training goes on",
                file=sys.stderr,
                flush=True,
            )
            return None

    return guarded


class Callback(*ray_internals.callback_bases()):  # type: ignore[misc]
    """`RAY_TRAIN_CALLBACKS=raytrain_debug.shim.ray_worker.Callback python train.py` makes every worker a rank.

    `launch --ray` and RAYTRAIN_DEBUG=1 do the same.
    """

    def __init__(self) -> None:
        self._launcher: str | None = None  # its control socket, on the driver's node
        self._start: dict[str, Any] | None = None  # what a worker has to know
        self._controller: Any = None
        self._prepare()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_controller": None}

    # In the driver.

    @_never_the_cause
    def _prepare(self) -> None:
        ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
        from raytrain_debug.shim import ray_driver

        self._launcher = ray_driver.launcher()

    # In the controller.

    @_never_the_cause
    def after_controller_start(self, train_run_context: Any) -> None:
        from raytrain_debug.shim.ray_controller import Controller

        if self._launcher is not None:
            self._controller = Controller(self._launcher, train_run_context)

    @_never_the_cause
    def _begin(self, workers: list[Any]) -> None:
        self._start = None
        if self._controller is not None:
            self._start = self._controller.begin(workers)

    def before_init_train_context(self, workers: list[Any]) -> dict[str, list[Any]]:
        self._begin(workers)
        return {}

    @_never_the_cause
    def after_worker_group_start(self, worker_group: Any) -> None:
        if self._controller is not None:
            self._controller.started(worker_group)

    @_never_the_cause
    def before_controller_execute_failure_decision(self, *args: Any, **kwargs: Any) -> None:
        if self._controller is not None:
            self._controller.failed()

    @_never_the_cause
    def before_controller_execute_resize_decision(self, *args: Any, **kwargs: Any) -> None:
        if self._controller is not None:
            self._controller.restarts()

    @_never_the_cause
    def before_worker_group_shutdown(self, worker_group: Any) -> None:
        if self._controller is not None:
            self._controller.stop()

    @_never_the_cause
    def before_worker_group_abort(self, worker_group_context: Any) -> None:
        if self._controller is not None:
            self._controller.stop()

    @_never_the_cause
    def after_controller_finish(self, result: Any) -> None:
        if self._controller is not None:
            self._controller.close()

    # In a worker.

    @_never_the_cause
    def after_init_train_context(self) -> None:
        if self._start is not None:
            from raytrain_debug.shim import ray_training

            ray_training.become_rank(self._start)
