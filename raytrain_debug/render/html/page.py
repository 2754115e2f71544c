"""The page: verdict first, then ranks, curves, timeline, stacks, cores, checkpoints."""

from __future__ import annotations

import importlib.resources
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from raytrain_debug.postmortem.compare import Comparison
from raytrain_debug.postmortem.contexts import shared
from raytrain_debug.postmortem.findings import Findings, RankFindings
from raytrain_debug.postmortem.lateness import lateness
from raytrain_debug.postmortem.overview import command_of
from raytrain_debug.postmortem.series import RankSeries
from raytrain_debug.postmortem.summary import paragraph
from raytrain_debug.postmortem.verdict import FINISHED, RUNNING
from raytrain_debug.render import compare, text
from raytrain_debug.render.html import cores, curves, stacks, threads, timeline
from raytrain_debug.render.html.checkpoints import checkpoints
from raytrain_debug.render.html.markup import Child, Markup, join, tag
from raytrain_debug.render.html.places import place, pre
from raytrain_debug.render.threads import TITLE
from raytrain_debug.run.ranks import name_ranks
from raytrain_debug.run.words import counted

# Nothing may be run or fetched, whatever stands in the page: scripts, frames, images, forms.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_MANY = 16  # ranks


@dataclass(frozen=True)
class Report:
    """All that the page shows. `series` has the reports of the ranks, in the order of `findings.ranks`.

    `comparison` is that of the ranks' checkpoints, or None with the reason in `not_compared`. `now` in Unix seconds.
    """

    findings: Findings
    series: tuple[RankSeries, ...]
    now: float
    comparison: Comparison | None = None
    not_compared: str = ""


def page(report: Report) -> str:
    """The report as an HTML document."""
    findings = report.findings
    title = f"Post-mortem of run {findings.run.paths.id}"
    sections = [(name, content) for name, content in _sections(report) if content]
    style = importlib.resources.files(__package__).joinpath("style.css").read_text("utf-8")
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", title),
        tag("style", Markup(style)),
    )
    body = tag(
        "body",
        tag(
            "main",
            tag("h1", title),
            tag("p", paragraph(findings), class_=f"verdict {findings.verdict.state}"),
            tag("p", _about(report), class_="soft"),
            tag("nav", (tag("a", name, href=f"#{_anchor(name)}") for name, _ in sections)),
            (tag("section", tag("h2", name), content, id=_anchor(name)) for name, content in sections),
            tag("footer", f"Written by raytrain_debug on {text.clock(report.now)}."),
        ),
    )
    return f"<!DOCTYPE html>\n{tag('html', head, body, lang='en')}\n"


def _sections(report: Report) -> Iterator[tuple[str, Markup]]:
    findings = report.findings
    cwd = findings.run.record.cwd if findings.run.record is not None else None
    first = findings.verdict.first_failure.rank if findings.verdict.first_failure is not None else None
    ranks = [each.rank for each in findings.ranks]
    reported = [series for series in report.series if len(series.index)]
    yield "Ranks", tag("div", _ranks(findings, cwd), class_="wide") if ranks else Markup("")
    if (hang := report.findings.hang) is not None:
        notes = [tag("p", note) for note in hang.notes]
        yield "Hang", join([tag("p", hang.verdict), notes, stacks.of_hang(hang, cwd)])
    yield "Stacks", join([stacks.of_cores(ranks, cwd)])
    yield "Cores", join(cores.cores(ranks, first, cwd))
    yield TITLE, threads.ended(findings.run, ranks)
    charts = list(curves.metrics(reported, first))
    legend = curves.legend([series.rank for series in reported], first)
    yield "Metrics", join([legend, tag("div", charts, class_="charts")]) if charts else Markup("")
    yield "Timeline of reports", join(_timeline(report, reported))
    charts = list(curves.memory(reported, _started(report, reported), first))
    yield "Memory", join([legend, tag("div", charts, class_="charts")]) if charts else Markup("")
    yield "Context", _contexts(findings.ranks)
    yield "Checkpoints", join(checkpoints(findings.ranks))
    if report.comparison is not None:
        yield "Ranks compared", pre(compare.render([report.comparison]))
    elif report.not_compared:
        yield "Ranks compared", tag("p", report.not_compared, class_="soft")


def _about(report: Report) -> str:
    run, record = report.findings.run, report.findings.run.record
    if record is None:
        return "Its run.json is missing or damaged."
    took = f", took {text.duration(record.ended - record.started)}" if record.ended is not None else ""
    versions = ", ".join(f"{name} {version}" for name, version in record.versions.items())
    return (
        f"{command_of(run)} ({record.mode}, {counted(record.world_size, 'rank')}), "
        f"started {text.clock(record.started)}{took}{f'; {versions}' if versions else ''}"
    )


def _ranks(findings: Findings, cwd: str | None) -> Markup:
    """A row a rank; of many ranks those that ended as nothing had happened, or in consequence, are folded away."""
    told, folded = list(findings.ranks), []
    if len(told) > _MANY:
        folded = [each for each in told if _is_quiet(each)]
        told = [each for each in told if not _is_quiet(each)]
    parts = [_rank_table(findings, told, cwd)] if told else []
    if folded:
        words = f"{len(folded)} ranks that finished, run, or were ended in consequence"
        parts.append(tag("details", tag("summary", words), _rank_table(findings, folded, cwd)))
    return join(parts)


def _rank_table(findings: Findings, ranks: Sequence[RankFindings], cwd: str | None) -> Markup:
    record = findings.run.record
    rows = []
    for each in ranks:
        last, end = each.rank.last_report, each.rank.last_exit
        ended = text.duration(end.time - record.started) if end is not None and record is not None else "-"
        told: list[Child] = []
        if last is not None:
            told = [text.pairs(last.metrics).plain]
            told += [" at ", place(last.where.file, last.where.line, cwd)] if last.where is not None else []
        good = each.outcome in (FINISHED, RUNNING)
        style = "good-text" if good else "warn-text" if _is_quiet(each) else "bad-text"
        cells = (
            tag("td", each.rank.rank, class_="number"),
            tag("td", tag("span", each.outcome, class_=style), class_="whole"),
            tag("td", ended, class_="number"),
            tag("td", each.rank.report_count, class_="number"),
            tag("td", told),
        )
        rows.append(tag("tr", cells))
    heads = [tag("th", "rank", class_="number"), tag("th", "outcome"), tag("th", "ended after", class_="number")]
    heads += [tag("th", "reports", class_="number"), tag("th", "last report")]
    return tag("table", tag("thead", tag("tr", heads)), tag("tbody", rows))


def _is_quiet(each: RankFindings) -> bool:
    """Whether the rank's end is no cause of anything."""
    end = each.rank.last_exit
    return each.outcome in (FINISHED, RUNNING) or (end is not None and end.caused)


def _started(report: Report, reported: Sequence[RankSeries]) -> float:
    record = report.findings.run.record
    return record.started if record is not None else min((series.time[0] for series in reported), default=0.0)


def _timeline(report: Report, reported: Sequence[RankSeries]) -> Iterator[Markup | None]:
    found = lateness(reported)
    ended = {
        each.rank.rank: (each.rank.last_exit.time, each.outcome)
        for each in report.findings.ranks
        if each.rank.last_exit is not None and each.outcome != FINISHED
    }
    shown = {series.rank for series in reported}
    ended = {rank: end for rank, end in ended.items() if rank in shown}
    yield from timeline.timeline(reported, found, _started(report, reported), ended)
    yield timeline.stragglers(found)


def _contexts(ranks: Sequence[RankFindings]) -> Markup:
    """What `ray.train.get_context()` told at the last reports: what all ranks have in common, then the rest of each."""
    contexts = {each.rank.rank: last.context for each in ranks if (last := each.rank.last_report) is not None}
    cells = [
        tag(
            "tr",
            tag("td", "all ranks" if 1 < len(members) == len(contexts) else name_ranks(members)),
            tag("td", text.pairs(values).plain, class_="mono"),
        )
        for members, values in shared(contexts)
    ]
    return (
        tag("details", tag("summary", "at the last reports"), tag("table", tag("tbody", cells)))
        if cells
        else Markup("")
    )


def _anchor(name: str) -> str:
    return name.lower().replace(" ", "-")
