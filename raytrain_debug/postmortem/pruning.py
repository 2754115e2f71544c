"""Which recorded runs to remove, and removing them: never one that is at work."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from raytrain_debug.errors import UsageError
from raytrain_debug.postmortem.overview import Overview
from raytrain_debug.run import layout

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_FRESH = 300.0  # seconds in which a run may be about to start: it has written nothing yet


@dataclass(frozen=True)
class Pruned:
    """One run, and what became of it; `why` says why it was kept, "" when it was removed. `size` in bytes."""

    run: str
    size: int
    why: str = ""


@dataclass(frozen=True)
class Pruning:
    """What a pruning did, or (`dry`) would do; runs oldest first."""

    runs: tuple[Pruned, ...]
    dry: bool = False

    @property
    def removed(self) -> tuple[Pruned, ...]:
        """The runs that are gone."""
        return tuple(each for each in self.runs if not each.why)

    @property
    def freed(self) -> int:
        """Bytes."""
        return sum(each.size for each in self.removed)


def prune(
    root: Path,
    runs: Sequence[Overview],
    keep: int | None,
    older_than: float | None,
    dry: bool = False,
    now: float | None = None,
) -> Pruning:
    """Remove those of `runs` (all under `root`, oldest first) that both bounds give up.

    That is all but the newest `keep`, and what ended more than `older_than` seconds ago; None is no bound. `dry`
    removes nothing. A run that cannot be removed says why, and the others go on.
    """
    now = time.time() if now is None else now
    newest = {run.run for run in runs[len(runs) - keep :]} if keep is not None else set()
    done = []
    for run in runs:
        why = _reason_to_keep(run, run.run in newest, older_than, now)
        if not why and not dry:
            try:
                layout.remove_run(root, layout.RunPaths(Path(run.path)))
            except OSError as error:
                why = f"cannot be removed: {error.strerror or error}"
        done.append(Pruned(run.run, run.size, why))
    if not dry:
        layout.finish_removals(root)
    return Pruning(tuple(done), dry)


def to_json(pruning: Pruning) -> dict[str, Any]:
    """As `runs prune --json` prints it."""
    removed, kept = pruning.removed, [asdict(each) for each in pruning.runs if each.why]
    return {
        "dry": pruning.dry,
        "freed": pruning.freed,
        "removed": [{"run": each.run, "size": each.size} for each in removed],
        "kept": kept,
    }


def parse_age(text: str) -> float:
    """Seconds: `90s`, `30m`, `12h`, `7d`, `2w`; a number alone counts days. Raises UsageError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw]?)", text.strip())
    if match is None:
        raise UsageError(f"{text!r} is no age", "write 12h, 7d or 2w")
    return float(match[1]) * _UNITS[match[2] or "d"]


def _reason_to_keep(run: Overview, is_new: bool, older_than: float | None, now: float) -> str:
    if run.state == "running":
        return "at work"
    last = _last_sign(run)
    if run.state == "unknown" and now - last < _FRESH:
        return "may be about to start"
    if is_new:
        return "among the newest"
    if older_than is not None and now - last <= older_than:
        return "not so old"
    return ""


def _last_sign(run: Overview) -> float:
    """When the run was last heard of: its end, or the newest of its files."""
    if run.ended is not None:
        return run.ended
    paths = layout.RunPaths(Path(run.path))
    return max([run.started or 0.0, *_times([paths.directory, paths.record, *paths.ranks.glob("*/*")])])


def _times(files: Iterable[Path]) -> Iterable[float]:
    for file in files:
        try:
            yield file.stat().st_mtime
        except OSError:
            continue
