"""One `fit()` of faithful local mode: its training function's calls of Ray Train do what they do on a cluster.

Where a cluster has one controller, rank 0 does its part: it puts a report together, and calls the user's callbacks.
"""

from __future__ import annotations

import copy
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from raytrain_debug.errors import RanksDiffer
from raytrain_debug.run import layout
from raytrain_debug.shim import callsite, ray_internals
from raytrain_debug.shim.faithful.history import History
from raytrain_debug.shim.faithful.meeting import REPORT, Call, Meeting

_BARRIER = "ray.train.collective.barrier"
_BROADCAST = "ray.train.collective.broadcast_from_rank_zero"
_HISTORY = ".history"
_PREEMPTION = "ray.train.get_preemption_info"


class Fit:
    """The calls of one rank's training function. `directory` is where checkpoints are kept, of this run alone."""

    def __init__(self, trainer: Any, meeting: Meeting, directory: Path, say: Callable[[str], None]) -> None:
        import ray.cloudpickle
        import ray.train

        self._pickle = ray.cloudpickle
        self._meeting = meeting
        self._say = say
        self._run_context = ray_internals.run_context(trainer)
        run_config = self._run_context.run_config
        self._callbacks = [each for each in run_config.callbacks or () if isinstance(each, ray.train.UserCallback)]
        config = run_config.checkpoint_config
        self._history = History(config.num_to_keep, config.checkpoint_score_attribute, config.checkpoint_score_order)
        context = ray.train.get_context()
        self._cleans_up = context.get_local_rank() == 0
        layout.make_private(directory)
        name = context.get_experiment_name()
        name, before = self._pickle.loads(meeting.begin(self._pickle.dumps((name, self._remembered(directory / name)))))
        self._storage = ray_internals.Storage(directory, name)
        self._reports = 0
        self._last_checkpoint: Any = None  # that any rank has reported, where it is kept
        if before is not None:
            kept, last = before
            self._history.kept = [(self._storage.at(place), metrics) for place, metrics in kept]
            self._last_checkpoint = self._storage.at(last)
        self._own_checkpoint = self._last_checkpoint  # the last that this rank has reported
        self._over = False
        self._plain = ray_internals.answer_local_calls(
            {
                "report": self._report,
                "get_checkpoint": self._get_checkpoint,
                "get_all_reported_checkpoints": self._get_all_reported_checkpoints,
                "barrier": lambda: self._share(_BARRIER, None),
                "broadcast_from_rank_zero": lambda data: self._share(_BROADCAST, data),
                "get_preemption_info": lambda: self._share(_PREEMPTION, None),
            },
            {"get_storage": lambda: self._storage.context},
        )

    def run(self, train_func: Callable[[], Any]) -> Any:
        """Run the training function, and tell the other ranks how it ended."""
        try:
            result = train_func()
        except BaseException as error:
            self._failed(error)
            raise
        self._over = True
        if self._tell_end("has returned from its training function"):
            try:
                self._meeting.see_all_end()
            except Exception:
                pass  # the store is gone with the rank that kept it: it has seen all end
        return result

    def _failed(self, error: BaseException) -> None:
        if isinstance(error, SystemExit) and not error.code:
            self._tell_end("has left its training function by sys.exit")  # which torchrun takes for success
            return
        told = self._tell_end(f"has raised {type(error).__name__}: {error}"[:300], failed=True)
        if told and isinstance(error, (Exception, SystemExit)) and self._meeting.is_first("after_exception"):
            self._after_exception(error)

    def _tell_end(self, how: str, failed: bool = False) -> bool:
        """False when there is nobody left to tell: the store is gone with the job."""
        try:
            self._meeting.end(how, failed)
        except Exception:
            return False
        return True

    # What stands in for Ray's functions of these names.

    def _report(
        self,
        metrics: dict[str, Any],
        checkpoint: Any = None,
        checkpoint_dir_name: str | None = None,
        checkpoint_upload_mode: Any = None,
        delete_local_checkpoint_after_upload: bool | None = None,
        checkpoint_upload_fn: Callable[[Any, str], Any] | None = None,
        **others: Any,
    ) -> None:
        self._plain["report"](metrics=metrics, checkpoint=checkpoint)  # which leaves a record, too
        ray_internals.refuse_tensors(metrics)
        self._reports += 1
        call = self._call(REPORT)
        name = checkpoint_dir_name or self._storage.new_name()
        name = self._meeting.share(call, name.encode()).decode()
        kept = None
        if checkpoint is not None:
            uploads = getattr(checkpoint_upload_mode, "value", None) != "NO_UPLOAD"
            if uploads and checkpoint_upload_fn is not None:
                kept = checkpoint_upload_fn(checkpoint, name)
            else:
                kept = self._storage.keep(checkpoint, name) if uploads else checkpoint
            self._own_checkpoint = kept
        all_metrics: list[dict[str, Any]] = []

        def put_together(parts: list[bytes]) -> bytes:
            """On rank 0: what the cluster's controller would make of the reports of all."""
            reported = [self._pickle.loads(part) for part in parts]
            all_metrics.extend(each for each, _ in reported)
            places = {str(getattr(place, "path", place)): place for _, place in reported if place is not None}
            if len(places) > 1:
                raise RanksDiffer(f"the ranks' checkpoints of one report are in different places: {', '.join(places)}")
            return bytes(self._pickle.dumps((reported[0][0], next(iter(places.values()), None))))

        place = None if kept is None else self._storage.place_of(kept)
        together = self._meeting.gather(call, self._pickle.dumps((metrics, place)), put_together)
        first_metrics, place = self._pickle.loads(together)
        reported = None
        if place is not None:
            reported = kept if kept is not None else self._storage.at(place)
            self._last_checkpoint = reported
            self._clean_up(self._history.add(reported, first_metrics))
            self._remember()
        if self._meeting.rank == 0:
            for each in self._callbacks:
                each.after_report(run_context=self._run_context, metrics=all_metrics, checkpoint=reported)

    def _get_checkpoint(self) -> Any:
        # After the function, fit() asks for its result; on a cluster that is the run's last, whoever reported it.
        return self._last_checkpoint if self._over else self._own_checkpoint

    def _get_all_reported_checkpoints(self, *args: Any, **kwargs: Any) -> list[Any]:
        return [
            ray_internals.reported_checkpoint(checkpoint, copy.copy(metrics))
            for checkpoint, metrics in self._history.kept
        ]

    def _share(self, name: str, data: Any) -> Any:
        # Pickled by every rank, as on a cluster: what cannot be pickled fails wherever it is.
        return self._pickle.loads(self._meeting.share(self._call(name), self._pickle.dumps(data)))

    def _call(self, name: str) -> Call:
        return Call(name, callsite.user_call(sys._getframe()), self._reports)

    def _clean_up(self, checkpoints: list[Any]) -> None:
        """Delete what CheckpointConfig keeps no more, as far as it is ours."""
        for each in checkpoints:
            if self._cleans_up and self._storage.has(each):
                shutil.rmtree(each.path, ignore_errors=True)

    def _remember(self) -> None:
        """Leave on disk, where a cluster leaves it too, what the next attempt starts with."""
        if self._meeting.rank == 0:
            kept = [(self._storage.place_of(checkpoint), metrics) for checkpoint, metrics in self._history.kept]
            path = Path(self._storage.context.experiment_fs_path, _HISTORY)
            half = path.with_suffix(".tmp")
            half.write_bytes(self._pickle.dumps((kept, self._storage.place_of(self._last_checkpoint))))
            os.replace(half, path)

    def _remembered(self, directory: Path) -> Any:
        """What an earlier attempt has left there, if there was one; on rank 0."""
        path = directory / _HISTORY
        return self._pickle.loads(path.read_bytes()) if self._meeting.rank == 0 and path.exists() else None

    def _after_exception(self, error: BaseException) -> None:
        for each in self._callbacks:
            try:
                each.after_exception(
                    run_context=self._run_context,
                    worker_exceptions={self._meeting.rank: ray_internals.user_exception(error)},
                )
            except Exception as fault:
                name = type(each).__name__
                self._say(f"{name}.after_exception has raised {type(fault).__name__}: {fault}")
