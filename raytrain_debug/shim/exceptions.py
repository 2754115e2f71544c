"""An exception taken apart for a core: its chain and groups, its notes and what else it carries."""

from __future__ import annotations

import traceback
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from raytrain_debug.run.records import CallSite
from raytrain_debug.shim import callsite, frames
from raytrain_debug.shim.frames import Position
from raytrain_debug.shim.structure import attributes, type_name

_MAX_EXCEPTIONS = 50  # of one tree
_MAX_MESSAGE = 10_000  # characters
_MAX_TRACEBACK = 2_000  # lines
_MAX_LINE = 1_000  # characters


@dataclass
class Taken:
    """An exception's parts; `fields` are live values, `positions` live frames."""

    error: BaseException
    type: str
    message: str
    where: CallSite | None
    positions: Sequence[Position]
    notes: tuple[str, ...] = ()
    fields: Mapping[str, Any] = field(default_factory=dict)
    cause: Taken | None = None
    context: Taken | None = None
    members: tuple[Taken, ...] = ()

    def tree(self) -> Iterator[Taken]:
        """This one, and all it is chained to or made of."""
        yield self
        for each in (self.cause, self.context, *self.members):
            if each is not None:
                yield from each.tree()


def take(error: BaseException) -> Taken:
    """Take `error` apart. Runs its `__str__`; an error in that is told in the message's place."""
    return _take(error, set())


def printed(error: BaseException) -> tuple[str, ...]:
    """The lines that Python prints for `error`, within bounds."""
    lines: list[str] = []
    for text in traceback.TracebackException.from_exception(error, compact=True).format():
        lines += [line[:_MAX_LINE] for line in text.splitlines()]
        if len(lines) > _MAX_TRACEBACK:
            half = _MAX_TRACEBACK // 2
            return (*lines[:half], f"  [{len(lines) - _MAX_TRACEBACK} lines left out]", *lines[-half:])
    return tuple(lines)


def message_of(error: BaseException) -> str:
    """What the exception says of itself."""
    try:
        text = str(error)
    except Exception as failure:
        return f"<its message could not be had: {type(failure).__name__}>"
    return text if len(text) <= _MAX_MESSAGE else text[: _MAX_MESSAGE - 1] + "…"


def positions_of(trace: types.TracebackType | None) -> list[Position]:
    """The frames of a traceback, outermost first, none of ours."""
    found = []
    while trace is not None:
        frame = trace.tb_frame
        found.append(
            Position(
                frame,
                frame.f_code,
                trace.tb_lineno or frame.f_code.co_firstlineno,
                trace.tb_lasti,
                str(frame.f_globals.get("__name__", "")),
                callsite.origin(frame),
            )
        )
        trace = trace.tb_next
    return frames.clean(found)


def last_user_site(positions: Sequence[Position]) -> CallSite | None:
    """The innermost place in a file of the user's own; the innermost of all when none is."""
    own = [each for each in frames.user_positions(positions) if not each.file.startswith("<")]
    chosen = own or positions
    return CallSite(chosen[-1].file, chosen[-1].line, chosen[-1].function) if chosen else None


def _take(error: BaseException, seen: set[int]) -> Taken:
    seen.add(id(error))
    positions = positions_of(error.__traceback__)
    notes = getattr(error, "__notes__", ())

    def other(chained: BaseException | None) -> Taken | None:
        new = chained is not None and id(chained) not in seen and len(seen) < _MAX_EXCEPTIONS
        return _take(chained, seen) if new and chained is not None else None

    inside = getattr(error, "exceptions", ()) if _is_group(error) else ()
    where = last_user_site(positions)
    if where is None and isinstance(error, SyntaxError) and error.filename and error.lineno:
        where = CallSite(error.filename, error.lineno, "<module>")  # the script itself could not be compiled
    return Taken(
        error,
        type_name(type(error)),
        message_of(error),
        where,
        positions,
        tuple(str(note)[:_MAX_MESSAGE] for note in notes) if isinstance(notes, (list, tuple)) else (),
        _fields(error),
        cause=other(error.__cause__),
        context=None if error.__suppress_context__ or error.__cause__ is not None else other(error.__context__),
        members=tuple(taken for each in inside if (taken := other(each)) is not None),
    )


def _fields(error: BaseException) -> dict[str, Any]:
    """What the exception carries besides its message: its attributes, and its arguments when they say more."""
    found: dict[str, Any] = {}
    for base in type(error).__mro__:
        for name, member in base.__dict__.items():
            if isinstance(member, types.MemberDescriptorType) and not name.startswith("_"):
                try:
                    found.setdefault(name, member.__get__(error))
                except AttributeError:
                    pass
    found.update(attributes(error))
    for name in ("message", "exceptions"):
        if _is_group(error):
            found.pop(name, None)
    arguments = error.args
    if len(arguments) > 1 or any(not isinstance(each, str) for each in arguments):
        found.setdefault("args", arguments)
    return {name: value for name, value in found.items() if value is not None}


def _is_group(error: BaseException) -> bool:
    """Whether it is an exception group: of Python 3.11, or of the backport for 3.10."""
    return any(kind.__name__ == "BaseExceptionGroup" for kind in type(error).__mro__)
