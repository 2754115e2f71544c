"""A Ray Train worker as a rank: the shim's parts, joined in a process that Ray has started and will end."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from typing import Any

from raytrain_debug.run.records import from_dict
from raytrain_debug.shim import breakpoints, crash, frames, pydevd_signs, ray_hooks, ray_internals, ray_mirror
from raytrain_debug.shim.death import Death
from raytrain_debug.shim.rank import Rank
from raytrain_debug.shim.recorder import RecorderConfig
from raytrain_debug.shim.settings import Identity, Settings


def become_rank(start: dict[str, Any]) -> None:
    """Make this process a rank. `start` is what the controller gave: `{"settings", "script", "launchers"}`.

    `launchers` has the socket at which each node other than the driver's finds the launcher, by node id. Called in the
    worker's main thread, before the training function has been sent.
    """
    import ray
    import ray.train

    if not breakpoints.enabled():
        return
    settings = _on_this_node(from_dict(Settings, start["settings"]), start["launchers"], ray)
    context = ray.train.get_context()
    identity = Identity(
        context.get_world_rank(), context.get_local_rank(), context.get_world_size(), settings.attempt or 0
    )
    rank = Rank(settings, identity, str(start["script"]))
    if ray_internals.is_own_breakpointhook(os.environ.get("PYTHONBREAKPOINT")):
        del os.environ["PYTHONBREAKPOINT"]
    # Before a client can come: importing its debugger takes the hook for a while, and then puts back what it has found.
    breakpoints.install_breakpointhook()
    # Ray asks this thread every few seconds whether the worker lives: a breakpoint must not keep it from answering.
    pydevd_signs.never_stop(threading.main_thread())
    rank.more_to_say = {"log": ray_internals.own_log(), "fault": str(rank.paths.fault(identity.attempt))}
    rank.start()
    death = Death(rank)
    death.install()
    with rank.guard("report recorder"):
        ray_hooks.install(
            RecorderConfig(rank.run, identity.rank, identity.attempt, rank.guard, settings.keep_checkpoints)
        )
    with rank.guard("following the training function"):
        training = _Training(rank, death)
        ray_internals.observe_training(training.begins, training.ends)


class _Training:
    """What happens around the training function, in its thread."""

    def __init__(self, rank: Rank, death: Death) -> None:
        self._rank = rank
        self._death = death

    def begins(self) -> None:
        """Wait for a debugger if that was asked for."""
        rank = self._rank
        with rank.guard("the start of training"):
            frames.set_training_thread(threading.current_thread())
            if rank.identity.rank in rank.settings.wait:
                rank.wait_for_client(None, "start")
            if rank.debugger.client_is_ready() and rank.debugger.stop_on_entry:
                rank.debugger.suspend_at_first_line()

    def ends(self, error: BaseException | None) -> None:
        """Leave a core, hold the rank if that was asked for, and tell the launcher."""
        rank = self._rank
        with rank.guard("the end of training"):
            if error is not None:
                self._death.record(error)
                if rank.settings.hold_on_crash is None:
                    rank.debugger.stop_if_uncaught_is_wanted(error)
                crash.hold(rank, error)
            if rank.control is not None:
                rank.control.tell_launcher({"event": "ended", "exit_code": 0 if error is None else 1})


def _on_this_node(settings: Settings, launchers: dict[str, str], ray: Any) -> Settings:
    """The settings with what is different on another node than the driver's."""
    launcher = launchers.get(ray.get_runtime_context().get_node_id(), settings.launcher)
    return replace(settings, launcher=launcher, run=str(ray_mirror.run_on_this_node(settings.run)))
