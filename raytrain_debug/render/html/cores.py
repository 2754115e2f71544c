"""What ranks left at their death: exceptions, frames with their source lines, and locals that open level by level."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from raytrain_debug.postmortem.dead_job import last_core
from raytrain_debug.postmortem.recorded import headline, of_exception
from raytrain_debug.postmortem.source_text import chain
from raytrain_debug.render import text
from raytrain_debug.render.html.markup import Markup, tag
from raytrain_debug.render.html.places import place
from raytrain_debug.run.ranks import name_ranks
from raytrain_debug.run.reader import Rank
from raytrain_debug.run.records import CoreRecord, Described, ExceptionRecord, FrameRecord, TensorDescription
from raytrain_debug.run.words import counted

_SIZE = 700_000  # bytes of all cores together
_OF_ONE = 250_000
_DEPTH = 4
_ITEM = 90  # bytes of markup around a value


@dataclass
class _Room:
    """How many bytes may still be written."""

    left: int

    def take(self, *texts: str) -> bool:
        """Take room for a value; False when there is none."""
        self.left -= _ITEM + sum(map(len, texts))
        return self.left > 0


def cores(ranks: Sequence[Rank], first: int | None, cwd: str | None) -> Iterator[Markup]:
    """An element a rank, the first failure's first and open, then those that stand somewhere else than those before.

    Ranks for which there is no room are named.
    """
    found = [(rank, core) for rank in ranks if (core := last_core(rank)) is not None]
    ordered = sorted(found, key=lambda each: (each[0].rank != first, each[1].exception is None, each[0].rank))
    seen: set[object] = set()
    unlike: list[tuple[Rank, CoreRecord]] = []
    alike: list[tuple[Rank, CoreRecord]] = []
    for rank, core in ordered:
        where = _where(core)
        (alike if where in seen else unlike).append((rank, core))
        seen.add(where)
    room = _SIZE
    left_out = []
    made: dict[int, Markup] = {}
    for rank, core in [*unlike, *alike]:
        if room <= 0:
            left_out.append(rank.rank)
            continue
        made[rank.rank] = _core(rank, core, _Room(min(room, _OF_ONE)), cwd, is_first=rank.rank == first)
        room -= len(made[rank.rank])
    yield from (made[rank.rank] for rank, _ in unlike if rank.rank in made)
    rest = [made[rank.rank] for rank, _ in alike if rank.rank in made]
    if rest:
        words = f"{counted(len(rest), 'more rank')}, each at the same lines as one of these"
        yield tag("details", tag("summary", words), rest)
    if left_out:
        words = f"Left out for size: {name_ranks(left_out)}. "
        yield tag("p", words, tag("code", "python -m raytrain_debug postmortem --rank N --shell"), " shows each.")


def _where(core: CoreRecord) -> object:
    frames = core.thread.frames if core.thread is not None else ()
    return core.exception is None, tuple((frame.file, frame.line) for frame in frames)


def _core(rank: Rank, core: CoreRecord, room: _Room, cwd: str | None, is_first: bool) -> Markup:
    error = core.exception
    said = headline(error) if error is not None else _ended(core)
    parts: list[Markup | None] = [tag("p", note, class_="warn-text") for note in core.notes]
    if error is not None:
        parts.append(_exception(error, room))
    for number, thread in enumerate(core.threads):
        innermost = next((each for each in reversed(thread.frames) if each.origin == "user"), None)
        opened = innermost if is_first and number == 0 else None
        frames = [_frame(each, room, cwd, each is opened) for each in reversed(thread.frames)]
        if number == 0:
            parts += frames
        else:
            waits = f", in {thread.waiting_in}" if thread.waiting_in else ""
            parts.append(tag("details", tag("summary", f"thread {thread.name}{waits}"), frames, class_="frame"))
    for tie, other in chain(error) if error is not None else ():
        parts.append(tag("h3", f"{tie} {headline(other)}"))
        parts += [_frame(each, room, cwd) for each in reversed(other.frames)]
    summary = tag("summary", tag("b", f"rank {rank.rank}"), f": {said}")
    return tag("details", summary, parts, class_="core", open=is_first)


def _ended(core: CoreRecord) -> str:
    how = {"ended": "ended by the launcher", "signal": "ended by a signal"}.get(core.reason, core.reason)
    return f"{how}, in {core.waiting_in}" if core.waiting_in else how


def _exception(error: ExceptionRecord, room: _Room) -> Markup:
    lines = "\n".join(error.traceback)
    room.take(lines)
    extra = [_value(name, item, room, 1) for name, item in of_exception(error).items.items() if name != "message"]
    return tag("details", tag("summary", "traceback"), tag("pre", lines), extra, class_="frame")


def _frame(frame: FrameRecord, room: _Room, cwd: str | None, opened: bool = False) -> Markup:
    room.take(*frame.source)
    head = tag("summary", tag("code", frame.function), "  ", place(frame.file, frame.line, cwd))
    values = [_value(name, item, room, 0) for name, item in frame.locals.items() if room.left > 0]
    if len(values) < len(frame.locals):
        values.append(tag("p", f"{len(frame.locals) - len(values)} locals are left out for size", class_="soft"))
    note = tag("p", frame.note, class_="soft") if frame.note else None
    body = tag("div", _source(frame), note, values)
    return tag("details", head, body, class_="frame" if frame.origin == "user" else "frame library", open=opened)


def _source(frame: FrameRecord) -> Markup | None:
    if not frame.source:
        return None
    rows = []
    for number, line in enumerate(frame.source, frame.first_line):
        row = f"{number:>5}  {line}"
        rows.append(tag("b", row) if number == frame.line else row)
    return tag("pre", [part for row in rows for part in (row, "\n")][:-1], class_="source")


def _value(name: str, described: Described, room: _Room, depth: int) -> Markup:
    words = (tag("span", name, class_="name"), f" = {described.text}")
    fits = room.take(name, described.text)
    parts = _parts(described, room, depth) if fits and depth < _DEPTH else []
    if not parts:
        return tag("div", words, class_="value")
    return tag("details", tag("summary", words), tag("div", parts, class_="values"), class_="value")


def _parts(described: Described, room: _Room, depth: int) -> list[Markup]:
    if described.tensor is not None:
        facts = _facts(described.tensor)
        return [tag("div", facts, class_="value")] if room.take(facts) else []
    parts = [_value(name, item, room, depth + 1) for name, item in described.items.items() if room.left > 0]
    hidden = (described.length or len(described.items)) - len(parts)
    if parts and hidden > 0:
        parts.append(tag("div", f"{hidden:,} more", class_="value soft"))
    return parts


def _facts(tensor: TensorDescription) -> str:
    """All that is known of a tensor, in a line."""
    names = ("min", "max", "mean", "std", "nan", "inf", "first_bad", "device", "global_shape", "note")
    known = [(name, getattr(tensor, name)) for name in names]
    words = [f"{name} {_fact(value)}" for name, value in known if value not in (None, "")]
    return "  ".join([f"shape {_fact(tensor.shape)}", tensor.dtype, *words])


def _fact(value: object) -> str:
    if isinstance(value, (int, float)):
        return text.number(value)
    return str(list(value)) if isinstance(value, tuple) else str(value)
