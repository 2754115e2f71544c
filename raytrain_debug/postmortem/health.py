"""What a tired person asks of reports and checkpoints: since when metrics are NaN, which checkpoint is of use."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raytrain_debug.postmortem.checkpoints import FileSummary
from raytrain_debug.run import codec
from raytrain_debug.run.reader import Rank, newest_first
from raytrain_debug.run.records import FileEntry, ReportRecord
from raytrain_debug.run.words import counted

USABLE, DAMAGED, NOT_FINITE, UNKNOWN, GONE = "usable", "damaged", "not finite", "unknown", "gone"

# What Transformers' Trainer pickles beside a model: its arguments, and the random numbers' states of each rank.
_BESIDE_THE_MODEL = re.compile(r"(^|/)(training_args\.bin|rng_state(_\d+)?\.pth)$")

_SHOWN = 3
_LOOKED_BACK = 100  # checkpoints: of older ones none is kept


@dataclass(frozen=True)
class BadMetric:
    """A metric that is NaN or infinite in the last report of `rank`, and was in every one since report `since`."""

    metric: str
    rank: int
    since: int
    value: float


@dataclass(frozen=True)
class CheckpointHealth:
    """Whether a checkpoint is of use: `state` is "usable", "damaged", "not finite", "unknown" or "gone".

    `why` says in a few words what the state rests on.
    """

    state: str
    why: str


def bad_metrics(rank: Rank) -> tuple[BadMetric, ...]:
    """The metrics that are NaN or infinite in the rank's last report; reads back as far as they are."""
    last = rank.last_report
    bad = {name: value for name, value in numbers(last.metrics).items() if not math.isfinite(value)} if last else {}
    since = {name: last.index for name in bad} if last is not None else {}
    open_still = set(bad)
    for report in newest_first(rank.paths) if bad else ():
        found = numbers(report.metrics)
        open_still = {name for name in open_still if not math.isfinite(found.get(name, 0.0))}
        if not open_still:
            break
        since |= {name: report.index for name in open_still}
    return tuple(BadMetric(name, rank.rank, since[name], value) for name, value in bad.items())


def numbers(metrics: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """The numbers among the metrics, those of nested ones by dotted name."""
    found: dict[str, float] = {}
    for key, value in metrics.items():
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            # Beyond all floats an integer can be neither formatted nor drawn.
            found[prefix + key] = value if abs(value) < 2**1023 else codec.as_float(value)
        elif isinstance(value, dict) and not any(each.startswith("$") for each in value):
            found |= numbers(value, f"{prefix}{key}.")
    return found


def health(files: Sequence[FileSummary], kept: bool, looked_into: bool = True) -> CheckpointHealth:
    """Judge a checkpoint by what its files hold; `kept` False says that there is no snapshot of it."""
    if not kept:
        return CheckpointHealth(GONE, "no snapshot of it is left")
    broken = [(file.path, fault) for file in files for fault in file.faults if not fault.refused]
    refused = [(file.path, fault) for file in files for fault in file.faults if fault.refused]
    if broken:
        path, fault = broken[0]
        return CheckpointHealth(DAMAGED, f"{path} {fault.reason}{_more(len(broken) - 1)}")
    if not any(file.size for file in files):
        return CheckpointHealth(DAMAGED, "it holds no data")
    if not looked_into:
        return CheckpointHealth(UNKNOWN, "it was not looked into")
    tensors = [each for file in files for each in file.tensors if each.same_as is None]
    bad = [each for each in tensors if each.statistics.nan or each.statistics.inf]
    if bad:
        counts = f"{_bad_count(bad[0].statistics.nan, bad[0].statistics.inf)} in {bad[0].name}"
        return CheckpointHealth(NOT_FINITE, f"{counts}{_more(len(bad) - 1, 'tensor')}")
    if refused and not (tensors and all(_BESIDE_THE_MODEL.search(path) for path, _ in refused)):
        return CheckpointHealth(UNKNOWN, f"safe loading refuses {', '.join(path for path, _ in refused[:_SHOWN])}")
    if not tensors:
        return CheckpointHealth(USABLE, f"{counted(len(files), 'file')}, none of them with tensors")
    finite = "all of them finite" if len(tensors) > 1 else "finite"
    closed = f"; not looked into: {', '.join(path for path, _ in refused)}" if refused else ""
    return CheckpointHealth(USABLE, f"{counted(len(tensors), 'tensor')}, {finite}{closed}")


def holds_a_model(files: Iterable[FileSummary | FileEntry]) -> bool:
    """Whether a checkpoint has a file with data other than those that are saved beside a model."""
    return any(file.size and not _BESIDE_THE_MODEL.search(file.path) for file in files)


def older_checkpoints(rank: Rank, before: int) -> Iterator[ReportRecord]:
    """Reports older than report `before` whose checkpoint is still kept, newest first."""
    for report in itertools.islice(newest_first(rank.paths, only_checkpoints=True), _LOOKED_BACK):
        if report.index < before and report.checkpoint is not None and rank.snapshot_of(report.checkpoint) is not None:
            yield report


def _bad_count(nan: int | None, inf: int | None) -> str:
    return " and ".join(f"{count} {name}" for count, name in ((nan, "NaN"), (inf, "Inf")) if count)


def _more(count: int, noun: str = "") -> str:
    return f", and {counted(count, noun) if noun else count} more" if count else ""
