"""RANKS as people type them: `0,2-3` or `all`."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from raytrain_debug.errors import UsageError


def parse_ranks(text: str, world_size: int | None = None) -> tuple[int, ...] | None:
    """Sorted ranks named by `text`; None for `all` when the world size is not known. Raises UsageError."""
    if text.strip() == "all":
        return None if world_size is None else tuple(range(world_size))
    ranks: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise UsageError(f"{text!r} does not name ranks", "write them as 0,2-3 or all")
        low, high = int(first), int(last) if dash else int(first)
        if high < low:
            raise UsageError(f"{part.strip()!r} counts down", f"write {high}-{low}")
        if high - low > 1_000_000:
            raise UsageError(f"{part.strip()!r} names too many ranks", "write them as 0,2-3 or all")
        ranks.update(range(low, high + 1))
    if world_size is not None and ranks and max(ranks) >= world_size:
        raise UsageError(
            f"rank {max(ranks)} is not in this job of {world_size}", f"ranks go from 0 to {world_size - 1}"
        )
    return tuple(sorted(ranks))


def format_ranks(ranks: Iterable[int]) -> str:
    """`0,2-3` for {0, 2, 3}; the empty string for no rank."""
    parts: list[str] = []
    run: list[int] = []
    for rank in [*sorted(set(ranks)), None]:
        if run and rank != run[-1] + 1:
            parts.append(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}")
            run = []
        if rank is not None:
            run.append(rank)
    return ",".join(parts)


def name_ranks(ranks: Collection[int]) -> str:
    """`rank 1`, `ranks 0,2-3`."""
    return f"rank{'' if len(ranks) == 1 else 's'} {format_ranks(ranks)}"
