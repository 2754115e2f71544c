"""The runs that one job left on several nodes, read as one run."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from raytrain_debug.errors import UsageError
from raytrain_debug.run.reader import Rank, Run
from raytrain_debug.run.records import ExitRecord, RunRecord


def join(runs: Sequence[Run]) -> Run:
    """One run of `runs`, the directories of a job's nodes in any order; a single run is returned as it is.

    Its record is node 0's, with the ends of all nodes' ranks in the order of their times: the nodes' clocks decide who
    was first. Raises UsageError for runs that are not of one job.
    """
    first = next((run for run in runs if run.record is not None and run.record.id == run.record.job), runs[0])
    if len(runs) == 1:
        return first
    records = [run.record for run in runs if run.record is not None]
    jobs = {record.job for record in records}
    if len(records) < len(runs) or len(jobs) != 1 or "" in jobs:
        names = ", ".join(str(run.paths.directory) for run in runs)
        raise UsageError(
            f"{names} are not the nodes of one job", "name the run directories that one job left on its nodes"
        )
    exits = _in_order(records)
    ranks: dict[int, Rank] = {}
    for run in (first, *(each for each in runs if each is not first)):
        for rank in run.ranks:
            # Each node's run.json knows of all ranks; only the node that had a rank has its directory.
            if rank.rank not in ranks or (ranks[rank.rank].process is None and rank.process is not None):
                own = tuple(each for each in exits if each.rank == rank.rank)
                ranks[rank.rank] = dataclasses.replace(rank, exits=own)
    return Run(
        first.paths, _joined(first.record or records[0], records, exits), tuple(ranks[key] for key in sorted(ranks))
    )


def _in_order(records: Sequence[RunRecord]) -> tuple[ExitRecord, ...]:
    ends = sorted(
        (end for record in records for end in record.exits), key=lambda end: (end.attempt, end.time, end.order)
    )
    return tuple(dataclasses.replace(end, order=order) for order, end in enumerate(ends))


def _joined(first: RunRecord, records: Sequence[RunRecord], exits: tuple[ExitRecord, ...]) -> RunRecord:
    ended = [record.ended for record in records]
    codes = [record.exit_code for record in records if record.exit_code is not None]
    return dataclasses.replace(
        first,
        started=min(record.started for record in records),
        attempt=max(record.attempt for record in records),
        exits=exits,
        ended=None if None in ended else max(end for end in ended if end is not None),
        exit_code=next((code for code in codes if code), codes[0] if codes else None),
        stopped=next((record.stopped for record in records if record.stopped), None),
    )
