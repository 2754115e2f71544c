"""The controller's part: tells the launcher of workers that start and stop, and holds Ray's own limits while one is
debugged. In the controller's process; one object a `fit()`."""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from raytrain_debug.errors import ControlError
from raytrain_debug.run import channel, codec
from raytrain_debug.shim import ray_internals

if TYPE_CHECKING:
    from raytrain_debug.shim.ray_relay import Relays

_PATIENCE = 15.0  # seconds for the launcher to answer: it may let ranks write their cores first
_WITHOUT_END = 1_000_000


class Controller:
    """Follows one `fit()`. Raises ControlError when the launcher does not answer; the caller keeps that from Ray."""

    def __init__(self, launcher: str, train_run_context: Any) -> None:
        self._link = Link(launcher, self._hold)
        self._launcher = launcher
        self._failures_left = ray_internals.max_failures(train_run_context)
        self._restarting = False
        self._limits: list[Any] = []  # of the worker group that runs
        self._relays: Relays | None = None

    def begin(self, workers: list[Any]) -> dict[str, Any]:
        """Workers exist and know nothing yet; what each has to know (see ray_training.become_rank)."""
        import ray

        found = ray_internals.describe_workers(workers)
        here = ray.get_runtime_context().get_node_id()
        answer = self._link.ask(
            {
                "event": "begin",
                "world_size": found[0].world_size,
                "pids": {str(each.rank): each.pid for each in found},
                "restarts_left": _WITHOUT_END if self._failures_left < 0 else self._failures_left,
            }
        )
        self._restarting = False
        away = [each for each in found if each.node != here]
        return {**answer, "launchers": self._reach(away, answer["settings"]["run"])}

    def started(self, worker_group: Any) -> None:
        """The workers are ready to train."""
        self._limits = [ray_internals.HealthChecks(worker_group), ray_internals.Barriers(worker_group)]
        self._hold(self._link.held)

    def failed(self) -> None:
        """Ray Train decides on a failure: one start less is left."""
        self._failures_left -= self._failures_left > 0

    def restarts(self) -> None:
        """What is stopped next will be started again."""
        self._restarting = True

    def stop(self) -> None:
        """The workers are about to be ended: they may leave their cores first."""
        self._limits = []
        self._link.ask({"event": "stop", "restart": self._restarting})
        if self._relays is not None:
            self._relays.bring()

    def close(self) -> None:
        """The `fit()` is over."""
        self._link.close()
        if self._relays is not None:
            self._relays.close()

    def _reach(self, workers: list[ray_internals.Worker], run: str) -> dict[str, str]:
        """The socket at which the node of each of these workers finds the launcher."""
        if not workers:
            return {}
        from raytrain_debug.shim.ray_relay import Relays

        self._relays = self._relays or Relays(self._launcher, run)
        sockets = {node: self._relays.open(node) for node in {each.node for each in workers}}
        for each in workers:
            self._relays.hand_over(each.node, each.rank)
        return sockets

    def _hold(self, on: bool) -> None:
        for limit in self._limits:
            limit.hold(on)


class Link:
    """The controller's connection to the launcher; `on_hold(on)` is called in a thread of its own."""

    def __init__(self, launcher: str, on_hold: Callable[[bool], None]) -> None:
        self.held = False
        self._on_hold = on_hold
        self._answers: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._connection = channel.connect(launcher)
        self._connection.settimeout(None)
        self._thread = threading.Thread(target=self._listen, name="raytrain_debug controller", daemon=True)
        self._thread.start()
        self.ask({"op": "ray"})

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """The launcher's answer; raises ControlError."""
        try:
            self._connection.sendall(codec.dumps(request).encode() + b"\n")
            answer = self._answers.get(timeout=_PATIENCE)
        except OSError as error:
            raise ControlError(f"the launcher is gone ({error.strerror or error})") from None
        except queue.Empty:
            raise ControlError(f"the launcher has not answered within {_PATIENCE:g} s") from None
        if "error" in answer:
            raise ControlError(str(answer["error"]))
        return answer

    def close(self) -> None:
        """End the connection."""
        try:
            self._connection.shutdown(2)
        except OSError:
            pass

    def _listen(self) -> None:
        try:
            while True:
                message = channel.read_line(self._connection)
                if message.get("op") == "hold":
                    self._set_held(bool(message.get("on")))
                else:
                    self._answers.put(message)
        except (ControlError, OSError):
            self._answers.put({"error": "the launcher is gone"})
            self._set_held(False)
            self._connection.close()

    def _set_held(self, held: bool) -> None:
        self.held = held
        try:
            self._on_hold(held)
        except Exception as error:
            print(f"raytrain_debug: Ray's time limits cannot be changed: {error}", file=sys.stderr, flush=True)
