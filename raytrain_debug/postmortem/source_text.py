"""The source that a dead rank ran: the file on disk while it still says the same there, else the text that was kept."""

from __future__ import annotations

import os
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass

from raytrain_debug.run.reader import Rank
from raytrain_debug.run.records import CoreRecord, ExceptionRecord, FrameRecord

_LONGEST_LINE = 1_000  # characters that a core keeps of a line


@dataclass(frozen=True)
class KeptText:
    """The text of a source file as it was; `why` it is shown in place of the file."""

    text: str
    why: str


class SourceTexts:
    """Source files of the frames of one rank's core."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._lines: dict[str, dict[int, str]] = {}
        core = rank.core
        for frame in frames_of(core) if core is not None else ():
            known = self._lines.setdefault(frame.file, {})
            known.update({frame.first_line + at: line for at, line in enumerate(frame.source)})
        self._known: dict[str, tuple[int, KeptText | None]] = {}
        self._whole = {source.file: source for source in core.sources} if core is not None else {}

    def kept(self, file: str) -> KeptText | None:
        """The recorded text of `file` where the file has changed since or is not here, None where it can be used."""
        changed = _changed(file)
        if file not in self._known or self._known[file][0] != changed:
            self._known[file] = changed, self._look(file)
        return self._known[file][1]

    def _look(self, file: str) -> KeptText | None:
        recorded = self._lines.get(file, {})
        lines = _read(file)
        if lines is not None and all(
            number <= len(lines) and lines[number - 1][:_LONGEST_LINE] == line for number, line in recorded.items()
        ):
            return None
        if not recorded:
            return None  # nothing is known that the file could be told from
        return KeptText(self._text(file, recorded), "as it ran" if lines is not None else "the file is not here")

    def _text(self, file: str, recorded: dict[int, str]) -> str:
        whole = self._whole.get(file)
        if whole is not None:
            try:
                return (self._rank.paths.directory / whole.path).read_text("utf-8", "replace")
            except OSError:
                pass
        # Lines stand where they stood, so that line numbers stay true; nothing is known of those between.
        return "\n".join(recorded.get(number, "") for number in range(1, max(recorded) + 1)) + "\n"


def frames_of(core: CoreRecord) -> Iterator[FrameRecord]:
    """All frames of a core, those of chained exceptions too."""
    for thread in core.threads:
        yield from thread.frames
    if core.exception is not None:
        for _, error in chain(core.exception):
            yield from error.frames


def chain(error: ExceptionRecord) -> Iterator[tuple[str, ExceptionRecord]]:
    """The exceptions behind `error`, nearest first, each with how it is tied to the one before."""
    if error.cause is not None:
        yield "caused by", error.cause
        yield from chain(error.cause)
    if error.context is not None:
        yield "while handling", error.context
        yield from chain(error.context)
    for member in error.members:
        yield "group member", member
        yield from chain(member)


def _changed(file: str) -> int:
    try:
        return os.stat(file).st_mtime_ns
    except (OSError, ValueError):
        return 0


def _read(file: str) -> list[str] | None:
    try:
        with tokenize.open(file) as stream:
            return stream.read().split("\n")
    except (OSError, SyntaxError, ValueError):
        return None
