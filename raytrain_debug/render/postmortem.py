"""The post-mortem for a person: the verdict, a line a rank, then last reports, contexts and checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from rich.console import RenderableType
from rich.text import Text

from raytrain_debug.postmortem.causes import crashed_in, exit_called
from raytrain_debug.postmortem.checkpoints import FileSummary, TensorSummary
from raytrain_debug.postmortem.contexts import shared
from raytrain_debug.postmortem.dead_job import last_core
from raytrain_debug.postmortem.findings import CheckpointFindings, Findings, RankFindings
from raytrain_debug.postmortem.histogram import coarser
from raytrain_debug.postmortem.overview import command_of
from raytrain_debug.postmortem.recorded import headline
from raytrain_debug.postmortem.summary import paragraph
from raytrain_debug.postmortem.verdict import EXCEPTION, RUNNING, short_path
from raytrain_debug.render import text, threads
from raytrain_debug.run.ranks import name_ranks
from raytrain_debug.run.records import CallSite, ReportRecord
from raytrain_debug.run.words import counted, first_line

T = TypeVar("T")

_NONE = "none"
_BARS = 16  # of a histogram
_NUMBERS = ("min", "max", "mean", "std", "norm", "zeros")  # of a tensor
_LESS = ("norm", "zeros")  # left out first where the width does not do for all
_FEW = 4  # tensors of an optimizer's state that are not worth folding
_SILENT = {"DeprecationWarning": "deprecated in Ray Train", "NotImplementedError": "not in local mode"}
"""What it means that a getter of Ray's context raised that."""


def render(findings: Findings, now: float) -> list[RenderableType]:
    """All of it, most important first; `now` in Unix seconds, for ages."""
    cwd = findings.run.record.cwd if findings.run.record is not None else None
    return [
        text.plain(paragraph(findings), "bold"),
        _about(findings, now),
        *(text.titled("Ranks", _ranks(findings, now)) if findings.ranks else ()),
        *_traceback(findings),
        *_crashes(findings),
        *_lost(findings, cwd),
        *threads.render(findings.run, [each.rank for each in findings.ranks]),
        *_hang(findings, cwd),
        *_reports(findings, cwd, now),
        *_contexts(findings),
        *_checkpoints(findings),
    ]


def _about(findings: Findings, now: float) -> Text:
    run, record = findings.run, findings.run.record
    parts = [f"run {run.paths.id}"]
    if record is None:
        parts.append("its run.json is missing or damaged")
    else:
        parts.append(f"{command_of(run)} ({record.mode}, {counted(record.world_size, 'rank')})")
        parts.append(f"started {text.clock(record.started)}, {text.duration(now - record.started)} ago")
        if record.ended is not None:
            parts.append(f"took {text.duration(record.ended - record.started)}")
    return text.plain("; ".join(parts), "dim")


def _ranks(findings: Findings, now: float) -> RenderableType:
    rows = [
        (
            Text(str(each.rank.rank)),
            text.word(each.outcome),
            Text(str(each.rank.report_count)),
            Text(_age(each.rank.last_report, now)),
            Text(_ended(findings, each)),
        )
        for each in findings.ranks
    ]
    return text.table(("rank", "outcome", "reports", "last report", "ended"), rows, right=("rank", "reports"))


def _ended(findings: Findings, each: RankFindings) -> str:
    end, record = each.rank.last_exit, findings.run.record
    if end is None or record is None:
        return "-"
    return f"{text.duration(end.time - record.started)} after the start"


def _traceback(findings: Findings) -> list[RenderableType]:
    """Tracebacks of the ranks shown that ended with one, equal ones once; the first failure's before the others."""
    first, lost = findings.verdict.first_failure, findings.verdict.consequences
    raised = [
        (each.rank.rank, each.rank.core.exception)
        for each in findings.ranks
        if each.rank.core is not None
        and each.rank.core.exception is not None
        and (
            each.outcome == EXCEPTION
            or (each.outcome.startswith("exit ") and exit_called(each.rank, each.rank.last_exit))
        )
    ]
    failed = [(rank, error.traceback) for rank, error in raised if rank not in lost]
    failed.sort(key=lambda each: (first is None or each[0] != first.rank, each[0]))
    parts: list[RenderableType] = []
    for ranks, (_, lines) in _grouped(failed, lambda each: each[1], lambda each: each[0]):
        if lines:
            parts += text.titled(f"Traceback of {name_ranks(ranks)}", text.plain("\n".join(lines)))
    return parts


def _lost(findings: Findings, cwd: str | None) -> list[RenderableType]:
    """A line for each rank that lost its connection to the one that failed first: its traceback tells no more."""
    rows = []
    for each in findings.ranks:
        error = each.rank.core.exception if each.rank.core is not None else None
        if each.rank.rank in findings.verdict.consequences and error is not None:
            place = f", at {_site(error.where, cwd)}" if error.where is not None else ""
            rows.append((Text(f"rank {each.rank.rank}"), text.plain(f"{first_line(headline(error))}{place}", "dim")))
    return text.titled("Failed in consequence", text.entries(rows)) if rows else []


def _crashes(findings: Findings) -> list[RenderableType]:
    """Where the ranks that a fatal signal ended stood, as Python's faulthandler saw it, printed as a traceback is."""
    parts: list[RenderableType] = []
    for each in findings.ranks:
        thread = crashed_in(last_core(each.rank)) if each.outcome not in (RUNNING, EXCEPTION) else None
        if thread is not None and thread.frames:
            lines = [f'  File "{frame.file}", line {frame.line or "?"}, in {frame.function}' for frame in thread.frames]
            head = f"Stack of rank {each.rank.rank} when {each.outcome} came, in {thread.name} (most recent call last)"
            parts += text.titled(head, text.plain("\n".join(lines)))
    return parts


def _reports(findings: Findings, cwd: str | None, now: float) -> list[RenderableType]:
    made = [(each.rank.rank, report) for each in findings.ranks if (report := each.report) is not None]
    if not made:
        return []
    rows = []
    for rank, report in made:
        where = f", at {_site(report.where, cwd)}" if report.where is not None else ""
        attempt = f", attempt {report.attempt}" if report.attempt else ""
        head = text.plain(f"report {report.index}, {_age(report, now)}{where}{attempt}", "dim")
        rows.append((Text(f"rank {rank}"), head + Text("\n") + text.pairs(report.metrics)))
    title = "Last reports" if findings.index is None else f"Report {findings.index}"
    return text.titled(title, text.entries(rows))


def _hang(findings: Findings, cwd: str | None) -> list[RenderableType]:
    """The last hang that was seen while the job ran: what ranks did, and where each of them was."""
    hang = findings.hang
    if hang is None:
        return []
    rows = []
    for group in hang.groups:
        place = f"at {_site(group.frames[-1], cwd)}" if group.frames else "at an unknown place"
        waits = f"waits in {group.waiting_in} " if group.waiting_in else ""
        rows.append((Text(name_ranks(group.ranks)), text.plain(waits + place)))
    rows += [(Text(f"rank {rank}"), text.plain(f"gave no answer: {why}")) for rank, why in hang.silent.items()]
    record = findings.run.record
    when = f", {text.duration(hang.time - record.started)} after the start" if record is not None else ""
    attempt = f", attempt {hang.attempt}" if hang.attempt else ""
    said = "\n".join((hang.verdict, *hang.notes))
    title = f"Hang{when}{attempt}: no rank had moved for {text.duration(hang.seconds)}"
    return text.titled(title, text.plain(said), text.entries(rows))


def _contexts(findings: Findings) -> list[RenderableType]:
    contexts = {each.rank.rank: each.report.context for each in findings.ranks if each.report is not None}
    rows = [(Text(name_ranks(members)), _context(values)) for members, values in shared(contexts)]
    when = "the last report" if findings.index is None else f"report {findings.index}"
    return text.titled(f"Context at {when}", text.entries(rows)) if rows else []


def _context(context: Mapping[str, Any]) -> Text:
    """The getters that told something, then the names of those that did not, and why."""
    failed: dict[str, list[str]] = {}
    for key, value in context.items():
        if isinstance(value, dict) and "$error" in value:
            failed.setdefault(str(value["$error"]), []).append(key)
    told = text.pairs(
        {key: value for key, value in context.items() if not any(key in keys for keys in failed.values())}
    )
    for error, keys in failed.items():
        told.append_text(
            Text("\n" if told else "") + text.plain(f"{_SILENT.get(error, error)}: {', '.join(keys)}", "dim")
        )
    return told


def _checkpoints(findings: Findings) -> list[RenderableType]:
    found = [(each.rank.rank, each.checkpoint) for each in findings.ranks if each.checkpoint is not None]
    if not found:
        none = "none was reported" + (f" with report {findings.index}" if findings.index is not None else "")
        return text.titled("Checkpoints", Text(none)) if findings.ranks else []
    parts: list[RenderableType] = []
    for members, (_, checkpoint) in _grouped(
        found, lambda each: (each[1].report, each[1].files), lambda each: each[0], equal=True
    ):
        places = [(rank, each) for rank, each in found if rank in members]
        last = "Last checkpoint" if findings.index is None else "Checkpoint"
        title = f"{last} of {name_ranks(members)}, from report {checkpoint.report}"
        if len(members) > 1:
            title += f" ({checkpoint.sameness})"
        parts += text.titled(title, _places(places), _files(checkpoint.files), *_tensors(checkpoint.files))
    return parts


def _places(checkpoints: Iterable[tuple[int, CheckpointFindings]]) -> RenderableType:
    rows = []
    for rank, found in checkpoints:
        if found.directory is not None:
            place = text.plain(found.directory)
        else:
            place = text.plain(f"no snapshot (kept: {found.record.kept}); the script had it at {found.record.source}")
            place.stylize("yellow")
        for skipped in found.record.skipped:
            place.append_text(text.plain(f"\nnot kept: {skipped}", "yellow"))
        rows.append((Text(f"rank {rank}"), place))
    return text.entries(rows)


def _files(files: Sequence[FileSummary]) -> RenderableType:
    rows = []
    for file in files:
        notes = text.plain(file.format or "")
        if file.values:
            notes.append(f"{', ' if notes else ''}{counted(file.values, 'other value')}")
        if file.scalars:
            notes.append_text(Text(": ") + text.pairs(file.scalars))
        for fault in file.faults:
            remedy = f" ({fault.remedy})" if fault.remedy else ""
            notes.append_text(Text("\n" if notes else "") + text.plain(f"{fault.reason}{remedy}", "yellow"))
        rows.append((text.plain(file.path), Text(text.size(file.size)), notes))
    return text.table(("file", "size", "content"), rows, right=("size",))


def _tensors(files: Sequence[FileSummary]) -> list[RenderableType]:
    found = [(file.path, tensor) for file in files for tensor in file.tensors]
    if not found:
        return []
    routine = [each for each in found if _is_routine(each[1])]
    if len(routine) > _FEW:
        found = [each for each in found if not _is_routine(each[1])]
    else:
        routine = []
    several = len({path for path, _ in found}) > 1
    whole, narrow = [], []
    for path, tensor in found:
        name = text.plain(f"{path}: {tensor.name}" if several else tensor.name)
        numbers = tensor.statistics
        shape = "×".join(map(str, numbers.shape)) or "scalar"
        values = [text.number(getattr(numbers, each)) for each in _NUMBERS]
        bad = _bad(tensor)
        bars = text.bars(coarser(numbers.histogram, _BARS)) if numbers.histogram is not None else ""
        whole.append((name, Text(numbers.dtype), Text(shape), *map(Text, values), Text(bars, "cyan"), bad))
        line = Text(f"\n  {numbers.dtype} {shape}", style="dim")
        if numbers.zeros is not None:
            line.append(f"  min {values[0]}  max {values[1]}  mean {values[2]}  std {values[3]}")
            line.append(f"  {bars}", style="cyan")
        narrow.append((name + line + (Text("\n  ") + bad if bad.plain != _NONE else Text()),))
    columns = ("tensor", "dtype", "shape", *_NUMBERS, "histogram", "NaN, Inf")
    fewer = [at for at, column in enumerate(columns) if column not in _LESS]
    return [
        Text(""),
        text.Fitting(
            text.table(columns, whole, right=_NUMBERS),
            text.table((columns[at] for at in fewer), ([row[at] for at in fewer] for row in whole), right=_NUMBERS),
            text.table(("tensor",), narrow),
        ),
        *_folded(routine),
    ]


def _is_routine(tensor: TensorSummary) -> bool:
    """True for a sound tensor of an optimizer's state, of which there are two or three for each of the model's."""
    numbers = tensor.statistics
    sound = numbers.nan == 0 and numbers.inf == 0 and not numbers.note and not tensor.same_as
    return sound and any(part.lower().startswith("optim") for part in tensor.name.split("."))


def _folded(tensors: Sequence[tuple[str, TensorSummary]]) -> list[RenderableType]:
    if not tensors:
        return []
    return [
        text.plain(f"  and {len(tensors)} tensors of the optimizer's state, all of them finite (--json has all)", "dim")
    ]


def _bad(tensor: TensorSummary) -> Text:
    """What is wrong or odd about a tensor: NaN and infinities and where the first stands, ties, notes."""
    numbers = tensor.statistics
    result = Text()
    if numbers.nan or numbers.inf:
        counts = [f"{count} {name}" for count, name in ((numbers.nan, "NaN"), (numbers.inf, "Inf")) if count]
        first = f", first at [{', '.join(map(str, numbers.first_bad))}]" if numbers.first_bad is not None else ""
        result.append(", ".join(counts) + first, style="bold red")
    elif numbers.nan is not None:
        result.append(_NONE, style="dim")
    for note in (numbers.note, f"same memory as {tensor.same_as}" if tensor.same_as else ""):
        if note:
            result.append_text(Text("; " if result else "") + text.plain(note, "dim"))
    return result


def _grouped(
    items: Iterable[T], key: Callable[[T], Any], rank: Callable[[T], int], equal: bool = False
) -> list[tuple[list[int], T]]:
    """Ranks whose items have equal keys, and one item of each group; `equal` compares keys that have no hash."""
    groups: list[tuple[Any, list[int], T]] = []
    index: dict[Hashable, int] = {}
    for item in items:
        value = key(item)
        if equal:
            at = next((at for at, (other, _, _) in enumerate(groups) if other == value), None)
        else:
            at = index.get(value)
            index.setdefault(value, len(groups))
        if at is None:
            groups.append((value, [rank(item)], item))
        else:
            groups[at][1].append(rank(item))
    return [(ranks, item) for _, ranks, item in groups]


def _age(report: ReportRecord | None, now: float) -> str:
    return f"{text.duration(now - report.time)} ago" if report is not None else "-"


def _site(where: CallSite, cwd: str | None) -> str:
    return f"{short_path(where.file, cwd)}:{where.line} in {where.function}"
