"""Checkpoints as tables: files, and tensors by their statistics with a histogram each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from raytrain_debug.postmortem.checkpoints import FileSummary, TensorSummary
from raytrain_debug.postmortem.findings import CheckpointFindings, RankFindings
from raytrain_debug.postmortem.histogram import Histogram
from raytrain_debug.render import text
from raytrain_debug.render.html.markup import Markup, tag
from raytrain_debug.run.ranks import name_ranks
from raytrain_debug.run.words import counted

_MAX_TENSORS = 600  # in all tables together
_HEIGHT = 24
_NUMBERS = ("min", "max", "mean", "std", "norm", "zeros")
_COLUMNS = ("tensor", "dtype", "shape", *_NUMBERS, "NaN, Inf", "how its values spread")


def checkpoints(ranks: Sequence[RankFindings]) -> Iterator[Markup]:
    """A table for each group of ranks whose checkpoints hold the same."""
    left = _MAX_TENSORS
    for members, found in _groups(ranks):
        same = f" ({found.sameness})" if len(members) > 1 else ""
        yield tag("h3", f"{name_ranks(members)}, from report {found.report}{same}")
        yield _health(found)
        yield tag("p", str(found.directory or f"{found.record.source} (kept: {found.record.kept})"), class_="mono soft")
        yield tag("div", _files(found.files), class_="wide")
        tensors = [(file.path, tensor) for file in found.files for tensor in file.tensors]
        if tensors:
            yield _tensors(tensors, max(left, 0))
            left -= len(tensors)


def _groups(ranks: Sequence[RankFindings]) -> list[tuple[list[int], CheckpointFindings]]:
    groups: list[tuple[list[int], CheckpointFindings]] = []
    for each in ranks:
        found = each.checkpoint
        if found is None:
            continue
        for members, other in groups:
            if (other.report, other.files, other.health) == (found.report, found.files, found.health):
                members.append(each.rank.rank)
                break
        else:
            groups.append(([each.rank.rank], found))
    return groups


def _health(found: CheckpointFindings) -> Markup:
    style = {"usable": "good-text", "unknown": "soft"}.get(found.health.state, "bad-text")
    older = f"; the newest usable one before it is of report {found.older}" if found.older is not None else ""
    why = f": {found.health.why}" if found.health.why else ""
    return tag("p", tag("span", found.health.state, class_=style), f"{why}{older}")


def _files(files: Sequence[FileSummary]) -> Markup:
    rows = []
    for file in files:
        told = [file.format or ""]
        if file.values:
            told.append(counted(file.values, "other value"))
        if file.scalars:
            told.append(text.pairs(file.scalars).plain)
        faults = [
            tag("div", f"{fault.reason}{f' ({fault.remedy})' if fault.remedy else ''}", class_="bad-text")
            for fault in file.faults
        ]
        cells = tag("td", file.path, class_="mono"), tag("td", text.size(file.size), class_="number")
        rows.append(tag("tr", cells, tag("td", ", ".join(filter(None, told)), faults)))
    return _table(("file", "size", "content"), rows, ("size",))


def _tensors(tensors: Sequence[tuple[str, TensorSummary]], most: int) -> Markup:
    several = len({path for path, _ in tensors}) > 1
    rows = [_tensor(f"{path}: {tensor.name}" if several else tensor.name, tensor) for path, tensor in tensors[:most]]
    hidden = len(tensors) - len(rows)
    more = tag("p", f"{hidden} more tensors are left out for size", class_="soft") if hidden else None
    bad = sum(1 for _, tensor in tensors if tensor.statistics.nan or tensor.statistics.inf)
    words = counted(len(tensors), "tensor")
    summary = tag("summary", words, tag("span", f", {bad} of them not finite", class_="bad-text") if bad else None)
    return tag(
        "details", summary, tag("div", _table(_COLUMNS, rows, _NUMBERS), more, class_="wide"), open=len(rows) <= 40
    )


def _tensor(name: str, tensor: TensorSummary) -> Markup:
    found = tensor.statistics
    bad = ", ".join(f"{count} {word}" for count, word in ((found.nan, "NaN"), (found.inf, "Inf")) if count)
    first = f", first at {list(found.first_bad)}" if bad and found.first_bad is not None else ""
    notes = [found.note, f"same memory as {tensor.same_as}" if tensor.same_as else ""]
    return tag(
        "tr",
        tag("td", name, class_="mono"),
        tag("td", found.dtype),
        tag("td", "×".join(map(str, found.shape)) or "scalar"),
        (tag("td", text.number(getattr(found, each)), class_="number") for each in _NUMBERS),
        tag("td", tag("span", bad + first, class_="bad-text") if bad else "none" if found.nan is not None else "-"),
        tag("td", _bars(found.histogram) if found.histogram is not None else None, "; ".join(filter(None, notes))),
    )


def _bars(histogram: Histogram) -> Markup:
    """Bars of equal width, the highest as high as the row."""
    width, highest = 130 / len(histogram.counts), max(histogram.counts)
    data = []
    for at, count in enumerate(histogram.counts):
        if count:
            left, height = round(at * width), max(1, round(count / highest * _HEIGHT))
            data.append(f"M{left} {_HEIGHT}v-{height}h{max(round((at + 1) * width) - left - 1, 1)}v{height}")
    low, high = histogram.start, histogram.start + histogram.width * len(histogram.counts)
    title = tag("title", f"from {text.number(low)} to {text.number(high)}")
    path = tag("path", d="".join(data), class_="bars")
    return tag("svg", title, path, viewBox=f"0 0 130 {_HEIGHT}", class_="histogram", role="img")


def _table(columns: Sequence[str], rows: Sequence[Markup], right: Sequence[str]) -> Markup:
    heads = [tag("th", each, class_="number" if each in right else None) for each in columns]
    return tag("table", tag("thead", tag("tr", heads)), tag("tbody", rows))
