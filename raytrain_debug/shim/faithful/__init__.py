"""`launch --faithful`: Ray Train's local mode with a cluster's rules for the calls that ranks make together.

Off unless asked for. fit.py is what the calls do, meeting.py how ranks wait for each other, through store.py, and
history.py which checkpoints are kept.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import wrapt

from raytrain_debug.shim import ray_internals

if TYPE_CHECKING:
    from raytrain_debug.shim.rank import Rank


def install(rank: Rank) -> None:
    """From now on each `fit()` of this process with `num_workers=0` is a faithful one."""
    numbers = itertools.count()

    def fit(wrapped: Callable[..., Any], trainer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return _fit(rank, next(numbers), wrapped, trainer, *args, **kwargs)

    def wrap(module: Any) -> None:
        with rank.guard("faithful local mode"):
            ray_internals.wrap_local_fits(module, fit)

    wrapt.register_post_import_hook(wrap, ray_internals.LOCAL_FITS)


def _fit(rank: Rank, number: int, plain: Callable[..., Any], trainer: Any, train_func: Callable[[], Any]) -> Any:
    @functools.wraps(train_func)
    def faithful() -> Any:
        # Here, not above: Ray is imported now, and its context is that of this fit.
        import ray.train

        from raytrain_debug.shim.faithful.fit import Fit
        from raytrain_debug.shim.faithful.meeting import Meeting
        from raytrain_debug.shim.faithful.store import MemoryStore, SignedStore, connect

        context = ray.train.get_context()
        place, size = context.get_world_rank(), context.get_world_size()
        # Each attempt of a worker group, and each fit() of the script, has keys of its own.
        name = f"raytrain_debug/faithful/{rank.identity.attempt}/{number}"
        store = SignedStore(connect(name) if size > 1 else MemoryStore(), name, rank.settings.secret)
        meeting = Meeting(store, place, size, rank.say)
        # Of trainers but TorchTrainer each process of a torchrun job is a world of its own.
        alone = size == 1 < rank.identity.world_size
        directory = rank.run.storage / f"of-rank-{rank.identity.rank}" if alone else rank.run.storage
        return Fit(trainer, meeting, directory, rank.say).run(train_func)

    return plain(faithful)
