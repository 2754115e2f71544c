"""A comparison for a person: in one sentence whether they agree, then what differs, the most telling first."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from rich.console import RenderableType
from rich.text import Text

from raytrain_debug.postmortem import compare
from raytrain_debug.postmortem.compare import Comparison
from raytrain_debug.postmortem.matching import TensorComparison, TensorGroup, ValueComparison
from raytrain_debug.render import text
from raytrain_debug.run.ranks import format_ranks
from raytrain_debug.run.words import counted, joined

_MAX_GROUPS = 4  # of a tensor or value, beside the first
_MAX_NAMES = 20


def render(comparisons: Iterable[Comparison]) -> list[RenderableType]:
    """Each comparison after the other."""
    parts: list[RenderableType] = []
    for at, comparison in enumerate(comparisons):
        parts += [Text("")] if at else []
        parts += [text.plain(sentence(comparison), "bold"), *_details(comparison)]
    return parts


def sentence(comparison: Comparison) -> str:
    """Who was compared at what, and what came out."""
    found = comparison.found
    tally = [
        (sum(not each.agrees for each in found.tensors), len(found.tensors), "tensor"),
        (sum(not each.agrees for each in comparison.metrics), len(comparison.metrics), "metric"),
        (sum(not each.agrees for each in found.values), len(found.values), "other value"),
        (sum(not each.agrees for each in found.files), len(found.files), "file"),
    ]
    apart = [f"{count} of {counted(whole, noun)}" for count, whole, noun in tally if count]
    same = [counted(whole, noun) for _, whole, noun in tally if whole]
    if apart:
        result = f"differ: {joined(apart)}"
    elif same:
        result = f"agree: {joined(same)}"
    else:
        result = "have nothing to compare"
    return f"{_who(comparison)} {result}.{_most(comparison)}"


def _who(comparison: Comparison) -> str:
    sides = comparison.sides
    if comparison.kind == compare.RANKS:
        index = next(side.report for side in sides if side.report is not None)
        return f"At report {index}, ranks {format_ranks(side.rank for side in sides)}"
    if comparison.kind == compare.REPORTS:
        return f"Reports {sides[0].report} and {sides[1].report} of rank {comparison.rank}"
    runs = [f"{side.run} (report {side.report if side.report is not None else '-'})" for side in sides]
    return f"Rank {comparison.rank} of runs {' and '.join(runs)}"


def _most(comparison: Comparison) -> str:
    """Of two sides: what became NaN, and where the largest relative change is."""
    if comparison.kind == compare.RANKS:
        return ""
    changes = compare.changes(comparison)
    told = f" Newly NaN or infinite: {_names(changes.newly_bad)}." if changes.newly_bad else ""
    if changes.largest is not None:
        relative, name = changes.largest
        told += f" Largest relative change: {text.number(relative)} in {name}."
    return told


def _details(comparison: Comparison) -> Iterator[RenderableType]:
    found = comparison.found
    for note in comparison.notes:
        yield text.plain(note, "yellow")
    unreadable: dict[tuple[str, str, str], list[int]] = {}
    for each in found.unreadable:
        unreadable.setdefault((each.file, each.reason, each.remedy), []).append(each.side)
    for (file, reason, remedy), sides in unreadable.items():
        told = f"{reason} ({remedy})" if remedy else reason
        yield text.plain(f"{_sides(comparison, sides)}: {file}: {told}", "yellow")
    yield from _values("Metrics that differ", comparison, comparison.metrics)
    yield from _tensors(comparison)
    yield from _values("Other values that differ", comparison, found.values)
    rows = [
        (text.plain(each.path), text.plain("; ".join(_file_words(comparison, each.groups, each.absent))))
        for each in found.files
        if not each.agrees
    ]
    if rows:
        yield from text.titled("Files that differ", text.entries(rows))
    if comparison.kind == compare.REPORTS and (unchanged := compare.changes(comparison).unchanged):
        title = "Unchanged tensors (frozen, or without a gradient)"
        yield from text.titled(title, text.plain(_names(unchanged)))


def _values(title: str, comparison: Comparison, values: Sequence[ValueComparison]) -> list[RenderableType]:
    rows = []
    several = len({value.file for value in values}) > 1
    for value in values:
        if value.agrees:
            continue
        words = Text()
        for group in value.groups[: _MAX_GROUPS + 1]:
            words.append(f"{'; ' if words else ''}{_sides(comparison, group.sides)} ", style="dim")
            words.append_text(text.shown(group.value))
        if len(value.groups) > _MAX_GROUPS + 1:
            words.append(f"; {len(value.groups) - _MAX_GROUPS - 1} more", style="dim")
        if value.absent:
            words.append(f"{'; ' if words else ''}not in {_sides(comparison, value.absent)}", style="yellow")
        rows.append((text.plain(f"{value.file}: {value.name}" if several else value.name), words))
    return text.titled(title, text.entries(rows)) if rows else []


def _tensors(comparison: Comparison) -> list[RenderableType]:
    """A line for each group of sides on which a tensor differs from the first group, the largest changes first."""
    differing = [each for each in comparison.found.tensors if not each.agrees]
    if not differing:
        return []
    several = len({each.file for each in comparison.found.tensors}) > 1
    wide, narrow = [], []
    for tensor in sorted(differing, key=lambda each: -_relative(each)):
        name = text.plain(f"{tensor.file}: {tensor.name}" if several else tensor.name)
        for which, numbers, note in _lines(comparison, tensor):
            wide.append((name, text.plain(which), *map(Text, numbers), note))
            line = Text(f"\n  {which}", style="dim")
            if any(numbers):
                line.append(f"  {numbers[0]} elements, at most {numbers[1]} apart, relative {numbers[2]}")
            narrow.append((name + line + (Text("\n  ") + note if note else Text()),))
    columns = ("tensor", "differs", "elements", "at most", "relative", "")
    return text.titled(
        "Tensors that differ",
        text.Fitting(
            text.table(columns, wide, right=("elements", "at most", "relative")), text.table(("tensor",), narrow)
        ),
    )


def _lines(comparison: Comparison, tensor: TensorComparison) -> Iterator[tuple[str, tuple[str, str, str], Text]]:
    first, *others = tensor.groups
    none = ("", "", "")
    if tensor.absent:
        yield f"not in {_sides(comparison, tensor.absent)}", none, text.plain(_form(first), "dim")
    others.sort(key=lambda group: -_distance(group))
    for group in others[:_MAX_GROUPS]:
        which = f"{_sides(comparison, group.sides)} from {_sides(comparison, first.sides)}"
        found = group.difference
        note = Text()
        if (group.shape, group.dtype) != (first.shape, first.dtype):
            note.append(f"{_form(first)} became {_form(group)}" if comparison.kind != compare.RANKS else _form(group))
        if found is None:
            yield which, none, note
            continue
        if found.newly_bad or found.no_longer_bad:
            counts = ((found.newly_bad, "newly NaN or Inf"), (found.no_longer_bad, "no longer NaN or Inf"))
            told = ", ".join(f"{count} {words}" for count, words in counts if count)
            note.append(f"{'; ' if note else ''}{told}", style="bold red" if found.newly_bad else "")
        if found.at is not None and found.max_abs:
            note.append(f"{'; ' if note else ''}furthest at [{', '.join(map(str, found.at))}]", style="dim")
        elements = f"{found.differing} of {math.prod(first.shape)}"
        yield which, (elements, text.number(found.max_abs), text.number(found.relative)), note
    if len(others) > _MAX_GROUPS:
        rest = [side for group in others[_MAX_GROUPS:] for side in group.sides]
        yield f"{_sides(comparison, rest)} too", none, Text(f"{len(others) - _MAX_GROUPS} more values", "dim")


def _file_words(comparison: Comparison, groups: Sequence[Sequence[int]], absent: Sequence[int]) -> Iterator[str]:
    if len(groups) > 1:
        yield f"not the same in {', '.join(_sides(comparison, group) for group in groups)}"
    if absent:
        yield f"not in {_sides(comparison, absent)}"


def _sides(comparison: Comparison, sides: Iterable[int]) -> str:
    """How a person calls the sides."""
    numbers = sorted(sides)
    if comparison.kind == compare.RUNS:
        return ", ".join(comparison.sides[side].run for side in numbers)
    noun = "rank" if comparison.kind == compare.RANKS else "report"
    return f"{noun}{'' if len(numbers) == 1 else 's'} {format_ranks(numbers)}"


def _form(group: TensorGroup) -> str:
    return f"{group.dtype} {'×'.join(map(str, group.shape)) or 'scalar'}"


def _relative(tensor: TensorComparison) -> float:
    return max((_distance(group) for group in tensor.groups), default=0.0)


def _distance(group: TensorGroup) -> float:
    found = group.difference
    if found is None:
        return 0.0
    return found.relative if found.relative is not None else math.inf if found.max_abs else 0.0


def _names(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return ", ".join(names[:_MAX_NAMES]) + more
