"""An expression's value on all ranks for a person: the odd ranks out first, numbers also as a row of bars."""

from __future__ import annotations

import hashlib
import itertools
import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from raytrain_debug.across.hang import place_in_words, ranks_in_words
from raytrain_debug.across.stacks import short_ranks
from raytrain_debug.across.values import Values, how, summarise
from raytrain_debug.render import text
from raytrain_debug.render.sparkline import Sparkline, summary
from raytrain_debug.run import codec
from raytrain_debug.run.records import CallSite
from raytrain_debug.run.words import visible

_MAX_ROWS = 16  # of a live plot
_MAX_SAMPLES = 48
_MAX_ITEMS = 20  # of a container
_CHECKSUM = re.compile(r"  #[0-9a-f]{6}\b")
_LENGTHS = {"builtins.str": "characters", "builtins.bytes": "bytes", "builtins.bytearray": "bytes"}
_HOW = {"sampled": "sampled while running", "paused": "paused"}


def render(values: Values, cwd: str = "") -> list[RenderableType]:
    """A headline that says where and how the ranks were asked, a line a group, and a summary of numbers."""
    shared = _places(values.places.values(), cwd)
    head = Text.assemble((visible(values.expression), "bold"), (_asked(values, shared), "dim"))
    rows: list[tuple[Text, RenderableType]] = []
    for group, shown in zip(values.groups, _told_apart([group.value for group in values.groups]), strict=True):
        if len(group.ranks) > 1 and not group.seen_whole:
            shown.append("  (equal as far as looked at)", style="dim")
        own = _places([values.places[rank] for rank in group.ranks if rank in values.places], cwd)
        if len(shared) > 1:
            shown.append(f"  {', '.join(own)}", style="dim")
        rows.append((Text(short_ranks(group.ranks), style="bold"), shown))
    rows += [(Text(short_ranks(group.ranks), style="bold"), text.plain(group.error, "red")) for group in values.errors]
    parts: list[RenderableType] = [head]
    if rows:
        parts.append(text.entries(rows))
    if (numbers := values.numbers) is not None and len(values.groups) > 1:
        parts += [Sparkline(list(numbers.values())), summary(summarise(numbers))]
    return parts


def plot(history: Sequence[Values], cwd: str = "") -> list[RenderableType]:
    """How numbers have developed: a row of bars a rank, oldest sample left; only the last values of anything else."""
    last = history[-1]
    if last.numbers is None:
        return render(last, cwd)
    ranks = sorted({rank for values in history for rank in values.numbers or {}})
    newest = dict(zip(last.numbers, text.told_apart(list(last.numbers.values())), strict=True))
    rows = Table.grid(padding=(0, 2, 0, 0))
    for rank in ranks[:_MAX_ROWS]:
        series = [numbers[rank] for values in history if rank in (numbers := values.numbers or {})]
        rows.add_row(
            Text(f"rank {rank}", style="bold"), Sparkline(series[-_MAX_SAMPLES:]), Text(newest.get(rank, "-"), "dim")
        )
    parts: list[RenderableType] = [text.plain(last.expression, "bold"), rows]
    if len(ranks) > _MAX_ROWS:
        parts.append(text.plain(f"and {len(ranks) - _MAX_ROWS} more ranks", "dim"))
    return [*parts, summary(summarise(last.numbers))]


def _told_apart(different: Sequence[Any]) -> list[Text]:
    """Each value in few words; those that would read alike with all their digits, and else with a checksum."""
    found = [value_text(value) for value in different]
    for alike in _alike([_CHECKSUM.sub("", each.plain) for each in found]):
        exact = [value_text(different[at], exact=True) for at in alike]
        if len({_CHECKSUM.sub("", each.plain) for each in exact}) > 1:
            for at, each in zip(alike, exact, strict=True):
                found[at] = each
    for alike in _alike([each.plain for each in found]):
        for at in alike:
            checksum = hashlib.blake2b(codec.dumps(different[at]).encode(), digest_size=3).hexdigest()
            found[at].append(f"  #{checksum}", style="dim")
    return found


def _alike(texts: Sequence[str]) -> list[list[int]]:
    """The places of equal texts, of each text that there is more than once."""
    places: dict[str, list[int]] = {}
    for at, each in enumerate(texts):
        places.setdefault(each, []).append(at)
    return [alike for alike in places.values() if len(alike) > 1]


def value_text(value: Any, exact: bool = False) -> Text:
    """A described value in few words: a tensor by its shape and statistics, a module by its parameters.

    With `exact` numbers have all their digits.
    """
    if isinstance(value, dict) and "$type" in value:
        if "shape" in value and "repr" not in value:
            return _tensor(value, exact)
        row = text.shown(value)
        if "parameters" in value:
            row.append(f", {value['parameters']} parameters")
        elif "checksum" in value and "length" in value:
            row.append(f"  {value['length']} {_LENGTHS.get(value['$type'], 'items')}", style="dim")
        return _with_checksum(row, value)
    if isinstance(value, (dict, list)) and _holds_described(value):
        return _container(value, exact)
    return Text(repr(value)) if exact and isinstance(value, float) else text.shown(value)


def _container(value: dict[str, Any] | list[Any], exact: bool) -> Text:
    """A line an item."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    rows = [
        text.plain(f"{key}: ").append_text(value_text(item, exact)) for key, item in itertools.islice(items, _MAX_ITEMS)
    ]
    if len(value) > _MAX_ITEMS:
        rows.append(Text(f"and {len(value) - _MAX_ITEMS} more", style="dim"))
    return Text("\n").join(rows)


def _holds_described(value: dict[str, Any] | list[Any]) -> bool:
    items = value.values() if isinstance(value, dict) else value
    return any(isinstance(item, dict) and "$type" in item for item in items)


def _tensor(value: dict[str, Any], exact: bool) -> Text:
    kind = str(value["$type"]).rpartition(".")[2]
    row = text.plain(f"{kind} {tuple(value['shape'])} {value.get('dtype', '')}")
    if "global_shape" in value:
        row.append(f" (part of {tuple(value['global_shape'])})")
    if "device" in value:
        row.append(f" {value['device']}")
    if "values" in value and value["shape"]:
        row.append(f" {_elements(value['values'], exact)}")
    for name in ("min", "max", "mean", "std"):
        if isinstance(number := value.get(name), (int, float)):
            row.append(f"  {name} ", style="dim").append(repr(number) if exact else text.number(number))
    for name, word in (("nan", "NaN"), ("inf", "Inf")):
        if value.get(name):
            row.append(f"  {value[name]} {word}", style="bold red")
    if value.get("looked_at"):
        row.append(f"  (from {value['looked_at']} of {math.prod(value['shape'])} elements)", style="dim")
    if "note" in value:
        row.append(f"  {visible(str(value['note']))}", style="yellow")
    return _with_checksum(row, value)


def _with_checksum(row: Text, value: dict[str, Any]) -> Text:
    if "checksum" in value:
        row.append(f"  #{str(value['checksum'])[:6]}", style="dim")
    return row


def _elements(value: Any, exact: bool) -> str:
    """`[[1, nan], [0.25, 3]]`."""
    if isinstance(value, list):
        return f"[{', '.join(_elements(item, exact) for item in value)}]"
    if isinstance(value, dict) and "repr" in value:
        return visible(str(value["repr"]))  # a complex number, a date
    return f"{value:.4g}" if isinstance(value, float) and not exact else visible(str(value))


def _asked(values: Values, places: Sequence[str]) -> str:
    """`  in step at train.py:88, sampled while running`."""
    words = [places[0]] if len(places) == 1 else []
    ways: dict[str, list[int]] = {}
    for rank in values.states:
        ways.setdefault(_HOW[how(values.states, rank)], []).append(rank)
    words += [way if len(ways) == 1 else f"{ranks_in_words(ranks)} {way}" for way, ranks in sorted(ways.items())]
    return "  " + ", ".join(words) if words else ""


def _places(sites: Iterable[CallSite], cwd: str) -> list[str]:
    """`in train at train.py:47,51`: each function once, with all the lines at which ranks are in it."""
    lines: dict[tuple[str, str], set[int]] = {}
    for site in sites:
        lines.setdefault((site.function, site.file), set()).add(site.line)
    return [
        f"in {function} at {place_in_words(file, min(found), cwd)}{''.join(f',{line}' for line in sorted(found)[1:])}"
        for (function, file), found in sorted(lines.items())
    ]
