"""All that `postmortem` says about a run, gathered, and the same as the JSON that others rely on."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from raytrain_debug.postmortem import checkpoints
from raytrain_debug.postmortem.checkpoints import FileSummary, TensorSummary
from raytrain_debug.postmortem.health import (
    DAMAGED,
    NOT_FINITE,
    USABLE,
    BadMetric,
    CheckpointHealth,
    bad_metrics,
    health,
    holds_a_model,
    older_checkpoints,
)
from raytrain_debug.postmortem.liveness import Liveness, liveness
from raytrain_debug.postmortem.snapshots import whole
from raytrain_debug.postmortem.summary import paragraph
from raytrain_debug.postmortem.verdict import Verdict, verdict
from raytrain_debug.run.reader import Rank, Run, newest_first, read_record
from raytrain_debug.run.records import (
    CheckpointRecord,
    ExceptionRecord,
    HangRecord,
    ReportRecord,
    ThreadExceptionRecord,
    to_dict,
)

_TRIES = 5  # at a checkpoint that a rank at work replaces while it is read


@dataclass(frozen=True)
class CheckpointFindings:
    """A reported checkpoint of a rank: `report` is the index of its report, `directory` our snapshot of it.

    Without a snapshot (`directory` None) `files` has what the report told. When it is damaged or not finite, `older` is
    the index of the newest report before it whose checkpoint is kept and usable. `others` are the snapshots of other
    ranks with which it is one checkpoint in parts; `files` then has those of all.
    """

    record: CheckpointRecord
    report: int
    directory: Path | None
    files: tuple[FileSummary, ...]
    health: CheckpointHealth
    older: int | None = None
    others: tuple[Path, ...] = ()

    @property
    def sameness(self) -> str:
        """How far ranks have the same when what was found of theirs is equal."""
        if self.others:
            return "parts of one checkpoint"
        opened = any(file.tensors for file in self.files)
        return "same files, same statistics" if opened else "same names and sizes; not opened"


@dataclass(frozen=True)
class RankFindings:
    """One rank: its records, the word for how it ended, the report that was asked for and its checkpoint.

    `report` is the last one unless another was asked for, None when the rank has none such; `checkpoint` is the last
    one that was reported, or that of the report asked for. `bad` has the metrics that ended as NaN or infinite.
    """

    rank: Rank
    outcome: str
    report: ReportRecord | None
    checkpoint: CheckpointFindings | None
    bad: tuple[BadMetric, ...] = ()


@dataclass(frozen=True)
class Findings:
    """A run, the verdict on it, and the ranks that were asked for; `index` is that of the report asked for.

    `hang` is the last one that `launch --hang-after` saw.
    """

    run: Run
    alive: Liveness
    verdict: Verdict
    ranks: tuple[RankFindings, ...]
    index: int | None = None
    hang: HangRecord | None = None


def examine(
    run: Run,
    ranks: Collection[int] | None = None,
    tensors: bool = True,
    unsafe: bool = False,
    report: int | None = None,
) -> Findings:
    """Judge `run` and read the last checkpoints of `ranks` (None: all), or those of the report with index `report`.

    `tensors` False opens no checkpoint file; `unsafe` runs code from pickles that safe loading refuses.
    """
    alive = liveness(run)
    judged = verdict(run, alive)
    chosen = [rank for rank in run.ranks if ranks is None or rank.rank in ranks]
    reading = _Reading(tensors, unsafe)
    found = tuple(
        _beside_others(run, _examine_rank(rank, judged.outcomes[rank.rank], report, reading)) for rank in chosen
    )
    return Findings(run, alive, judged, found, report, read_record(run.paths.hang, HangRecord))


def report_at(rank: Rank, index: int) -> ReportRecord | None:
    """The rank's report of that index, the newest when attempts made several."""
    for report in newest_first(rank.paths):
        if report.index == index:
            return report
    return None


def to_json(findings: Findings) -> dict[str, Any]:
    """The findings as `postmortem --json` prints them; docs/postmortem.md describes the keys."""
    judged = findings.verdict
    return {
        "run": findings.run.paths.id,
        "path": str(findings.run.paths.directory),
        "verdict": {
            "state": judged.state,
            "sentence": judged.sentence,
            "summary": paragraph(findings),
            "attempt": judged.attempt,
            "first_failure": asdict(judged.first_failure) if judged.first_failure is not None else None,
            "earlier": [asdict(failure) for failure in judged.earlier],
        },
        "ranks": [
            {
                "rank": each.rank.rank,
                "outcome": each.outcome,
                "reports": each.rank.report_count,
                "last_report": to_dict(each.rank.last_report) if each.rank.last_report is not None else None,
                "report": to_dict(each.report) if each.report is not None else None,
                "bad_metrics": [{"metric": bad.metric, "since": bad.since, "value": bad.value} for bad in each.bad],
                "checkpoint": _checkpoint_json(each.checkpoint) if each.checkpoint is not None else None,
                "exits": [to_dict(end) for end in each.rank.exits],
                "exception": to_dict(error) if (error := _exception(each.rank)) is not None else None,
                "thread_exceptions": [_thread_json(record) for record in each.rank.thread_exceptions],
            }
            for each in findings.ranks
        ],
        "hang": to_dict(findings.hang) if findings.hang is not None else None,
    }


def _thread_json(record: ThreadExceptionRecord) -> dict[str, Any]:
    """Without its frames, as the exception that ended a rank."""
    return to_dict(replace(record, exception=replace(record.exception, frames=())))


def _exception(rank: Rank) -> ExceptionRecord | None:
    return rank.core.exception if rank.core is not None else None


@dataclass(frozen=True)
class _Reading:
    """How to read checkpoints; `known` has what ranks that hold parts of one checkpoint found in its files."""

    tensors: bool
    unsafe: bool
    known: dict[Path, FileSummary] = field(default_factory=dict)


def _examine_rank(rank: Rank, outcome: str, index: int | None, reading: _Reading) -> RankFindings:
    if index is None:
        report, found = rank.last_report, _newest_checkpoint(rank, reading)
    else:
        report = report_at(rank, index)
        found = _checkpoint(rank, report, reading)
    if found is not None and found.health.state in (DAMAGED, NOT_FINITE):
        older = older_checkpoints(rank, found.report)
        good = (each for each in older if _is_usable(_checkpoint(rank, each, reading)))
        found = replace(found, older=next((each.index for each in good), None))
    return RankFindings(rank, outcome, report, found, bad_metrics(rank))


def _beside_others(run: Run, each: RankFindings) -> RankFindings:
    """A rank that reports a directory with no model in it, because rank 0 saves for all, has lost nothing."""
    found = each.checkpoint
    if found is None or found.directory is None or holds_a_model(found.files):
        return each
    if any(not fault.refused for file in found.files for fault in file.faults):
        return each
    for other in run.ranks:
        report = report_at(other, found.report) if other.rank != each.rank.rank else None
        if report is not None and report.checkpoint is not None and holds_a_model(report.checkpoint.files):
            has = f"has only {', '.join(file.path for file in found.files)}" if found.files else "is empty"
            judged = CheckpointHealth(USABLE, f"it {has}, and that of rank {other.rank} holds the data")
            return replace(each, checkpoint=replace(found, health=judged, older=None))
    return each


def _newest_checkpoint(rank: Rank, reading: _Reading) -> CheckpointFindings | None:
    """The newest checkpoint, read while it was there: a rank at work removes the older ones as it reports."""
    report, found = rank.checkpoint_report, None
    for _ in range(_TRIES):
        found = _checkpoint(rank, report, reading)
        newest = next((each for each in newest_first(rank.paths) if each.checkpoint is not None), None)
        there = found is not None and found.directory is not None and found.directory.is_dir()
        if there or newest is None or report is None or newest.index == report.index:
            break
        report = newest
    return found


def _checkpoint(rank: Rank, report: ReportRecord | None, reading: _Reading) -> CheckpointFindings | None:
    if report is None or report.checkpoint is None:
        return None
    record = report.checkpoint
    directory = rank.snapshot_of(record)
    if directory is None:
        files = tuple(FileSummary(entry.path, entry.size) for entry in record.files)
        return CheckpointFindings(record, report.index, None, files, health(files, False))
    snapshot = whole(directory)
    files = checkpoints.summarise(snapshot, record.files, reading.tensors, reading.unsafe, reading.known)
    judged = health(files, True, reading.tensors)
    return CheckpointFindings(record, report.index, directory, files, judged, others=snapshot.others)


def _is_usable(found: CheckpointFindings | None) -> bool:
    return found is not None and found.health.state == USABLE


def _checkpoint_json(found: CheckpointFindings) -> dict[str, Any]:
    return {
        "snapshot": str(found.directory) if found.directory is not None else None,
        "source": found.record.source,
        "other_parts": [str(other) for other in found.others],
        "kept": found.record.kept,
        "skipped": list(found.record.skipped),
        "report": found.report,
        "health": found.health.state,
        "why": found.health.why,
        "usable_before": found.older,
        "files": [
            {
                "path": file.path,
                "size": file.size,
                "format": file.format,
                "values": file.values,
                "scalars": dict(file.scalars),
            }
            for file in found.files
        ],
        "tensors": [_tensor_json(file.path, tensor) for file in found.files for tensor in file.tensors],
        "unreadable": [{"file": file.path, **asdict(fault)} for file in found.files for fault in file.faults],
    }


def _tensor_json(file: str, tensor: TensorSummary) -> dict[str, Any]:
    return {"file": file, "name": tensor.name, **asdict(tensor.statistics), "same_as": tensor.same_as}
