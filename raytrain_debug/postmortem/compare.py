"""What differs between ranks of a report, between reports of a rank, and between runs: metrics and kept checkpoints."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from raytrain_debug.errors import NotInRun, RunNotFound, UsageError
from raytrain_debug.postmortem.differences import EXACT, Tolerance
from raytrain_debug.postmortem.findings import report_at
from raytrain_debug.postmortem.matching import Matched, TensorComparison, ValueComparison, match, match_values
from raytrain_debug.postmortem.snapshots import Snapshot, whole
from raytrain_debug.run.ranks import format_ranks
from raytrain_debug.run.reader import Rank, Run, newest_first
from raytrain_debug.run.records import ReportRecord

RANKS, REPORTS, RUNS = "ranks", "reports", "runs"
UNCHANGED, CHANGED, RESHAPED, ADDED, REMOVED = "unchanged", "changed", "reshaped", "added", "removed"


@dataclass(frozen=True)
class Options:
    """How to compare: `tensors` False leaves checkpoints out, `metrics` False the metrics.

    `unsafe` runs code from pickles that safe loading refuses.
    """

    tensors: bool = True
    metrics: bool = True
    unsafe: bool = False
    tolerance: Tolerance = EXACT


DEFAULT = Options()


@dataclass(frozen=True)
class Side:
    """One of those that are compared; `side` is what groups name it by: a rank, a report's index, or 0 and 1 for runs.

    `report` is None when it has no such report. `checkpoint` is our snapshot; where there is none, `missing` says why.
    """

    side: int
    run: str
    rank: int
    report: int | None
    checkpoint: Path | None
    missing: str = ""


@dataclass(frozen=True)
class Comparison:
    """What was compared, `kind` being "ranks", "reports" or "runs", and what came out; `notes` say what could not be.

    `rank` is the one whose reports, or whose runs, are compared.
    """

    kind: str
    sides: tuple[Side, ...]
    metrics: tuple[ValueComparison, ...]
    found: Matched
    notes: tuple[str, ...] = ()
    rank: int | None = None

    @property
    def differs(self) -> bool:
        """Whether anything that was compared differs, by more than the tolerance."""
        found = self.found
        agree = [each.agrees for each in (*self.metrics, *found.values)]
        agree += [each.agrees for each in found.tensors]
        agree += [each.agrees for each in found.files]
        return not all(agree)


@dataclass(frozen=True)
class Changes:
    """Names of tensors by what became of them between two sides; `reshaped` ones may have another dtype only.

    `unchanged` ones have the same bits: between reports of a rank they are frozen, or have no gradient. `newly_bad`
    have elements that became NaN or infinite. `largest` is the largest relative change, and of which tensor.
    """

    unchanged: tuple[str, ...]
    changed: tuple[str, ...]
    reshaped: tuple[str, ...]
    added: tuple[str, ...]
    removed: tuple[str, ...]
    newly_bad: tuple[str, ...]
    largest: tuple[float, str] | None


def compare_ranks(
    run: Run, report: int | None = None, ranks: Collection[int] | None = None, options: Options = DEFAULT
) -> Comparison:
    """Compare `ranks` (None: all) at the report of that index.

    None takes the newest report of which all ranks that keep checkpoints still keep them; without any, the newest that
    all ranks made. Raises UsageError for fewer than two ranks, RunNotFound when no rank has the report.
    """
    chosen = [rank for rank in run.ranks if ranks is None or rank.rank in ranks]
    if not run.ranks:
        raise RunNotFound(f"run {run.paths.id} has no ranks to compare")
    if len(chosen) < 2:
        raise UsageError(
            f"only {_named([rank.rank for rank in chosen])} to compare",
            "compare needs two ranks, --reports A,B, or two runs",
        )
    index = report if report is not None else _common_report(chosen)
    found = {rank.rank: report_at(rank, index) for rank in chosen} if index is not None else {}
    if not any(found.values()):
        raise _no_report(run, index, chosen)
    sides = [_side(rank.rank, run, rank, found[rank.rank], index) for rank in chosen]
    return _compare(RANKS, sides, {rank.rank: found[rank.rank] for rank in chosen}, options)


def compare_reports(run: Run, rank: int, before: int, after: int, options: Options = DEFAULT) -> Comparison:
    """Compare two reports of a rank, by index; the lower one is the earlier, whichever comes first.

    Raises RunNotFound when the rank did not make them, UsageError when they are one.
    """
    which = _rank(run, rank)
    if before == after:
        raise UsageError(f"report {before} is the same as itself", "name two reports: --reports A,B")
    found = {index: report_at(which, index) for index in sorted((before, after))}
    for index, report in found.items():
        if report is None:
            raise _no_report(run, index, [which])
    sides = [_side(index, run, which, report, index) for index, report in found.items()]
    return _compare(REPORTS, sides, found, options, rank)


def compare_runs(
    first: Run,
    second: Run,
    reports: tuple[int | None, int | None] = (None, None),
    ranks: Collection[int] | None = None,
    options: Options = DEFAULT,
) -> tuple[Comparison, ...]:
    """Compare each rank of `first` (side 0) with the same of `second` (side 1), at a report of each.

    None takes the newest report of which a checkpoint is kept, or, without any, the newest. Raises RunNotFound when the
    runs have no rank in common, or no rank such a report.
    """
    pairs = [
        (rank, other)
        for rank in first.ranks
        if (ranks is None or rank.rank in ranks) and (other := second.rank(rank.rank)) is not None
    ]
    if not pairs:
        raise RunNotFound(
            f"{first.paths.id} and {second.paths.id} have no such rank in common",
            f"they have ranks {_present(first)} and {_present(second)}",
        )
    compared = tuple(_compare_pair((first, second), pair, reports, options) for pair in pairs)
    for run, which, at in ((first, 0, reports[0]), (second, 1, reports[1])):
        if all(each.sides[which].report is None for each in compared):
            raise _no_report(run, at, [pair[which] for pair in pairs])
    return compared


def changes(comparison: Comparison) -> Changes:
    """Sort the tensors of a comparison of two sides by what became of them."""
    names: dict[str, list[str]] = {UNCHANGED: [], CHANGED: [], RESHAPED: [], ADDED: [], REMOVED: []}
    newly_bad = []
    largest: tuple[float, str] | None = None
    for tensor in comparison.found.tensors:
        names[_status(tensor)].append(tensor.name)
        found = tensor.groups[-1].difference
        if found is not None and found.newly_bad:
            newly_bad.append(tensor.name)
        if found is not None and found.relative is not None and (largest is None or found.relative > largest[0]):
            largest = found.relative, tensor.name
    lists = {kind: tuple(each) for kind, each in names.items()}
    return Changes(**lists, newly_bad=tuple(newly_bad), largest=largest)


def to_json(comparisons: Collection[Comparison]) -> dict[str, Any]:
    """The comparisons as `compare --json` prints them."""
    return {
        "differs": any(each.differs for each in comparisons),
        "comparisons": [_comparison_json(each) for each in comparisons],
    }


def _compare_pair(
    runs: tuple[Run, Run], pair: tuple[Rank, Rank], reports: tuple[int | None, int | None], options: Options
) -> Comparison:
    sides, found = [], {}
    for side, (run, rank, index) in enumerate(zip(runs, pair, reports, strict=True)):
        report = report_at(rank, index) if index is not None else _newest_kept(rank) or rank.last_report
        found[side] = report
        sides.append(_side(side, run, rank, report, index))
    return _compare(RUNS, sides, found, options, pair[0].rank)


def _compare(
    kind: str,
    sides: list[Side],
    reports: Mapping[int, ReportRecord | None],
    options: Options,
    rank: int | None = None,
) -> Comparison:
    made = {side: report.metrics for side, report in reports.items() if report is not None}
    metrics = tuple(match_values(made, options.tolerance)) if options.metrics and len(made) > 1 else ()
    notes = list(_missing(kind, sides)) if options.tensors else []
    kept = [side for side in sides if side.checkpoint is not None]
    found = Matched()
    if options.tensors and len(kept) > 1:
        snapshots = {side.side: whole(side.checkpoint) for side in kept if side.checkpoint is not None}
        notes += _in_parts(snapshots) if kind == RANKS else ()
        found = match(snapshots, options.unsafe, options.tolerance)
    elif options.tensors:
        notes.append("no two checkpoints are there to be compared")
    return Comparison(kind, tuple(sides), metrics, found, tuple(notes), rank)


def _in_parts(snapshots: Mapping[int, Snapshot]) -> Iterator[str]:
    """That ranks hold parts of one checkpoint, so that there are no replicas to hold against each other."""
    told: set[int] = set()
    for rank, snapshot in snapshots.items():
        together = [other for other, its in snapshots.items() if other == rank or its.directory in snapshot.others]
        if len(together) > 1 and rank not in told:
            told.update(together)
            yield f"{_named(together)} hold parts of one checkpoint, no replicas; compare two reports: --reports A,B"


def _missing(kind: str, sides: list[Side]) -> Iterator[str]:
    """Why sides have no checkpoint to compare, equal reasons once."""
    reasons: dict[str, list[Side]] = {}
    for side in sides:
        if side.missing:
            reasons.setdefault(side.missing, []).append(side)
    for reason, which in reasons.items():
        if kind == RANKS:
            yield f"{_named([side.rank for side in which])}: {reason}"
        else:
            yield from (f"{'run ' + side.run if kind == RUNS else f'report {side.side}'}: {reason}" for side in which)


def _side(side: int, run: Run, rank: Rank, report: ReportRecord | None, index: int | None) -> Side:
    checkpoint = report.checkpoint if report is not None else None
    directory = rank.snapshot_of(checkpoint) if checkpoint is not None else None
    if report is None:
        missing = f"made no report {index}" if index is not None else "reported nothing"
    elif checkpoint is None:
        missing = f"report {report.index} came without a checkpoint"
    elif directory is None:
        kept = format_ranks(_kept(rank)) or "none"
        why = f"was not kept ({checkpoint.kept})" if checkpoint.snapshot is None else "is no longer kept"
        missing = f"the checkpoint of report {report.index} {why}; kept are those of reports: {kept}"
    else:
        missing = ""
    return Side(side, run.paths.id, rank.rank, report.index if report is not None else None, directory, missing)


def _common_report(ranks: Collection[Rank]) -> int | None:
    kept = [set(indexes) for rank in ranks if (indexes := _kept(rank))]
    common = set.intersection(*kept) if kept else set()
    if common:
        return max(common)
    return min((rank.report_count for rank in ranks if rank.report_count), default=0) - 1


def _kept(rank: Rank) -> list[int]:
    """Indexes of the reports whose checkpoint is kept, as far as its directories tell."""
    found = []
    wanted = _directories(rank)
    for report in newest_first(rank.paths, only_checkpoints=True) if wanted else ():
        if report.checkpoint is not None and (path := rank.snapshot_of(report.checkpoint)) is not None:
            found.append(report.index)
            wanted.discard(path.name)
        if not wanted:
            break
    return found


def _newest_kept(rank: Rank) -> ReportRecord | None:
    kept = _kept(rank)
    return report_at(rank, max(kept)) if kept else None


def _directories(rank: Rank) -> set[str]:
    try:
        return {path.name for path in rank.paths.checkpoints.iterdir() if path.is_dir()}
    except OSError:
        return set()


def _rank(run: Run, number: int) -> Rank:
    rank = run.rank(number)
    if rank is None:
        raise NotInRun(f"rank {number} left nothing in {run.paths.directory}", f"it has ranks {_present(run)}")
    return rank


def _no_report(run: Run, index: int | None, ranks: Collection[Rank]) -> RunNotFound:
    counts = [rank.report_count for rank in ranks]
    if not any(counts):
        kind = RunNotFound if index is None else NotInRun
        return kind(f"{_named([rank.rank for rank in ranks])} reported nothing in {run.paths.id}")
    return NotInRun(f"there is no report {index} of {_named([rank.rank for rank in ranks])}", _range(max(counts)))


def _status(tensor: TensorComparison) -> str:
    if tensor.absent:
        return ADDED if tensor.absent[0] < tensor.groups[0].sides[0] else REMOVED
    if len(tensor.groups) == 1:
        return UNCHANGED
    first, second = tensor.groups
    return CHANGED if (first.shape, first.dtype) == (second.shape, second.dtype) else RESHAPED


def _range(count: int) -> str:
    return f"reports go from 0 to {count - 1}"


def _named(ranks: Collection[int]) -> str:
    return f"rank{'' if len(ranks) == 1 else 's'} {format_ranks(ranks) or 'none'}"


def _present(run: Run) -> str:
    return format_ranks(rank.rank for rank in run.ranks) or "none"


def _comparison_json(each: Comparison) -> dict[str, Any]:
    return {
        "kind": each.kind,
        "rank": each.rank,
        "differs": each.differs,
        "sides": [asdict(side) | {"checkpoint": str(side.checkpoint or "") or None} for side in each.sides],
        "metrics": [_value_json(value) for value in each.metrics],
        "changes": asdict(changes(each)) if each.kind != RANKS else None,
        "tensors": [asdict(tensor) | {"agrees": tensor.agrees} for tensor in each.found.tensors],
        "values": [_value_json(value) for value in each.found.values],
        "files": [asdict(file) | {"agrees": file.agrees} for file in each.found.files],
        "unreadable": [asdict(fault) for fault in each.found.unreadable],
        "notes": list(each.notes),
    }


def _value_json(value: ValueComparison) -> dict[str, Any]:
    return asdict(value) | {"agrees": value.agrees}
