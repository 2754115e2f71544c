"""Hands each `ray.train.report` to the recorder. Nothing here imports Ray: the hooks run when the user's script has."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import wrapt

from raytrain_debug.shim import ray_data_internals, ray_internals
from raytrain_debug.shim.guard import Guard
from raytrain_debug.shim.recorder import Recorder, RecorderConfig, make_recorder

_PACKAGE = "ray.train"
_PLACE = "recording Ray Train reports"


FitEnded = Callable[[BaseException | None], None]
"""Called after a training function in local mode, with what it raised."""


@dataclass(frozen=True)
class _Active:
    """The recorder in use, and the process it belongs to."""

    recorder: Recorder
    guard: Guard
    pid: int
    fit_ended: FitEnded | None = None


_active: _Active | None = None
_hooked = _fits_hooked = False


def install(config: RecorderConfig) -> None:
    """Record every report of this process from now on, in place of an earlier `install`.

    Children of the process, forked or spawned, record nothing.
    """
    global _active, _hooked
    _active = _Active(make_recorder(config), config.guard, os.getpid())
    if not _hooked:
        _hooked = True
        wrapt.register_post_import_hook(_wrap, ray_internals.REPORTING)
        wrapt.register_post_import_hook(_check, _PACKAGE)


@contextlib.contextmanager
def recording(config: RecorderConfig, fit_ended: FitEnded) -> Iterator[None]:
    """Record the reports of this process as `config` says, in this block only, and have the ends of its fits told."""
    global _active, _fits_hooked
    before = _active
    install(config)
    _active = dataclasses.replace(_active, fit_ended=fit_ended) if _active is not None else None
    if not _fits_hooked:
        _fits_hooked = True
        wrapt.register_post_import_hook(_follow_fits, ray_internals.LOCAL_FITS)
    try:
        yield
    finally:
        _active = before


def _wrap(module: Any) -> None:
    if _active is not None:
        with _active.guard(_PLACE):
            ray_internals.wrap_reports(module, _report)


def _follow_fits(module: Any) -> None:
    if _active is not None:
        with _active.guard(_PLACE):
            ray_internals.wrap_local_fits(module, _fit)


def _fit(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    try:
        result = wrapped(*args, **kwargs)
    except BaseException as error:
        _tell_end(error)
        raise
    _tell_end(None)
    return result


def _tell_end(error: BaseException | None) -> None:
    active = _active
    if active is not None and active.fit_ended is not None and os.getpid() == active.pid:
        with active.guard("the end of a fit"):
            active.fit_ended(error)


def _report(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    active = _active
    if active is not None and os.getpid() == active.pid:
        with active.guard(_PLACE):
            metrics, checkpoint = _arguments(*args, **kwargs)
            shards = ray_data_internals.dataset_shards(instance)
            active.recorder.record(metrics, checkpoint, instance.get_context(), sys._getframe(), shards)
    return wrapped(*args, **kwargs)


def _arguments(metrics: Any = None, checkpoint: Any = None, *_: Any, **__: Any) -> tuple[Any, Any]:
    return metrics, checkpoint


def _check(package: Any) -> None:
    """Say it when the imported Ray Train has no place for our hook, instead of recording nothing in silence."""
    if _active is None or ray_internals.can_wrap_reports():
        return
    version = getattr(sys.modules.get("ray"), "__version__", "of unknown version")
    _active.guard.note(
        _PLACE,
        f"Ray {version} has no {ray_internals.REPORTING} as it should be; reports need Ray Train V2 "
        "(ray>=2.51, and RAY_TRAIN_V2_ENABLED not set to 0)",
    )
