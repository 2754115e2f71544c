"""The one paragraph a post-mortem opens with: who failed, how far each rank came, what is NaN, what can be used."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from raytrain_debug.across.threads import ThreadEnd, in_words, thread_ends
from raytrain_debug.postmortem.health import GONE, UNKNOWN, USABLE, numbers
from raytrain_debug.postmortem.verdict import RUNNING
from raytrain_debug.run.ranks import name_ranks
from raytrain_debug.run.words import counted, joined

if TYPE_CHECKING:
    from raytrain_debug.postmortem.findings import CheckpointFindings, Findings, RankFindings

K = TypeVar("K", bound=Hashable)

_MAX_METRICS = 4


def paragraph(findings: Findings) -> str:
    """The verdict, then of the ranks that were asked for: their last reports, bad metrics, and checkpoints."""
    ranks = findings.ranks
    sentences = [
        findings.verdict.sentence,
        *_threads(findings),
        *_reports(ranks),
        *_bad_metrics(ranks),
        *_checkpoints(ranks),
    ]
    return " ".join(sentence for sentence in sentences if sentence)


def _threads(findings: Findings) -> Iterator[str]:
    """What ended threads in the last attempt; of those that ended after the first failure it may be the cause."""
    record, judged = findings.run.record, findings.verdict
    cwd = record.cwd if record is not None else ""
    counts = {each.rank.rank: each.rank.report_count for each in findings.ranks}
    threads = [
        (each.rank.rank, ended)
        for each in findings.ranks
        for ended in each.rank.thread_exceptions
        if ended.attempt == judged.attempt
    ]
    failure = judged.first_failure.time if judged.first_failure is not None else math.inf
    before = [each for each in threads if each[1].time <= failure]
    after = [each for each in threads if each[1].time > failure]
    for some, verb in ((before, "has ended" if judged.state == RUNNING else "had ended"), (after, "ended after that")):
        for told in in_words(thread_ends(some), cwd, verb, lambda end: _between_reports(end, counts)):
            yield f"{told[:1].upper()}{told[1:]}."


def _between_reports(end: ThreadEnd, counts: Mapping[int, int]) -> str:
    """`, before report 3`, or `, after 3 reports` where no other came; nothing of ranks that never report."""
    known = [(record.report, counts[rank]) for rank, record in end.threads if counts[rank]]
    places = [report for report, _ in known if report is not None]
    if not places or len(places) < len(end.threads):
        return ""
    low, high = min(places), max(places)
    if low == high and all(count <= low for _, count in known):
        return f", after {counted(low, 'report')}"
    return f", before report {low}" if low == high else f", before reports {low} to {high}"


def _reports(ranks: Sequence[RankFindings]) -> Iterator[str]:
    last = {each.rank.rank: each.rank.last_report for each in ranks}
    made = {rank: report for rank, report in last.items() if report is not None}
    if not made:
        if ranks:
            yield "Nothing was reported." if len(ranks) > 1 else f"Rank {ranks[0].rank.rank} reported nothing."
        return
    counts = _grouped({each.rank.rank: each.rank.report_count for each in ranks})
    if len(counts) == 1:
        (count,) = counts
        yield f"{_all(list(made), 'reported').capitalize()} {_times(count)}{_told(made)}."
    else:
        parts = [f"{name_ranks(group)} {_times(count)}" for count, group in counts.items()]
        yield f"Reports: {joined(parts)}{_told(made)}."


def _told(reports: Mapping[int, Any]) -> str:
    """The last words of all: `; last: step=820 loss=0.31 to 0.35`."""
    found = [numbers(report.metrics) for report in reports.values()]
    common = [name for name in found[0] if all(name in each for each in found)]
    told = [f"{name}={_range([each[name] for each in found])}" for name in common[:_MAX_METRICS]]
    return f"; last: {' '.join(told)}" if told else ""


def _range(values: Sequence[float]) -> str:
    """One number when all are equal, else the lowest and the highest; NaN is named where some have it."""
    finite = [value for value in values if not math.isnan(value)]
    parts = []
    if finite:
        low, high = min(finite), max(finite)
        parts.append(_number(low) if low == high else f"{_number(low)} to {_number(high)}")
    if len(finite) < len(values):
        parts.append("NaN")
    return " or ".join(parts)


def _bad_metrics(ranks: Sequence[RankFindings]) -> Iterator[str]:
    """A sentence for each metric that ended as NaN or infinite: since which report, on which ranks."""
    found: dict[tuple[str, str], dict[int, int]] = {}
    for each in ranks:
        for bad in each.bad:
            found.setdefault((bad.metric, _number(bad.value)), {})[bad.rank] = bad.since
    alone = len(ranks) == 1
    for (metric, value), since in list(found.items())[:_MAX_METRICS]:
        groups = sorted(_grouped(since).items())
        if alone or (len(groups) == 1 and len(groups[0][1]) == len(ranks)):
            where = f"since report {groups[0][0]}{'' if alone else f' on {_all(groups[0][1])}'}"
        else:
            where = joined([f"on {name_ranks(group)} since report {report}" for report, group in groups])
        yield f"{metric} is {value} {where}."


def _checkpoints(ranks: Sequence[RankFindings]) -> Iterator[str]:
    found = {each.rank.rank: each.checkpoint for each in ranks if each.checkpoint is not None}
    if not found:
        if ranks and any(each.rank.report_count for each in ranks):
            yield "No checkpoint was reported."
        return
    groups = _grouped({rank: (each.report, each.health, each.older, bool(each.others)) for rank, each in found.items()})
    for group in groups.values():
        checkpoint = found[group[0]]
        whose = "" if len(ranks) == 1 else f" of {name_ranks(group)}"
        parts = ", in parts," if checkpoint.others else ""
        yield f"The checkpoint{whose} from report {checkpoint.report}{parts} {_health(checkpoint)}."


def _health(found: CheckpointFindings) -> str:
    state, why = found.health.state, found.health.why
    if state == USABLE:
        return f"is usable: {why}"
    if state == GONE:
        return f"is gone: {why}"
    if state == UNKNOWN:
        return f"is there, but {why}"
    instead = f"; the one from report {found.older} is" if found.older is not None else "; no older one is kept that is"
    return f"is not usable: {why}{instead}"


def _grouped(values: Mapping[int, K]) -> dict[K, list[int]]:
    groups: dict[K, list[int]] = {}
    for rank, value in values.items():
        groups.setdefault(value, []).append(rank)
    return groups


def _all(ranks: Sequence[int], verb: str = "") -> str:
    which = f"rank {ranks[0]}" if len(ranks) == 1 else "both ranks" if len(ranks) == 2 else f"all {len(ranks)} ranks"
    return f"{which} {verb}".strip()


def _times(count: int) -> str:
    return {0: "never", 1: "once", 2: "twice"}.get(count, f"{count} times")


def _number(value: float) -> str:
    if isinstance(value, int):
        return str(value)
    return "NaN" if math.isnan(value) else f"{value:.4g}".replace("inf", "Inf")
