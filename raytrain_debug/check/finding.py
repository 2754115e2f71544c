"""A finding, and the row of the table of rules that it comes from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from raytrain_debug.check.program import Program
    from raytrain_debug.run.reader import Run


@dataclass(frozen=True)
class Finding:
    """Something that will break: where, why, what to write instead, and the Ray version from which it holds ("any").

    `line` is 1 for the file's first line, 0 for the file as a whole. `guess` is True where the source alone cannot
    tell for sure.
    """

    rule: str
    file: str
    line: int
    reason: str
    remedy: str
    since: str
    guess: bool = False

    @property
    def is_of_v2(self) -> bool:
        """Whether it holds for Ray Train V2 alone, which is what one gets from Ray 2.51 on."""
        return self.since != "any" and tuple(map(int, self.since.split("."))) >= (2, 51)


@dataclass(frozen=True)
class Place:
    """What a rule found; what it leaves empty is said by the rule."""

    file: str
    line: int
    reason: str
    remedy: str = ""
    since: str = ""
    guess: bool | None = None


@dataclass(frozen=True)
class Subject:
    """What is examined: the script with the modules beside it, and a run of it where there is one."""

    program: Program
    run: Run | None = None


@dataclass(frozen=True)
class Rule:
    """A row of the table; `finds` says in a line what it finds."""

    id: str
    since: str
    finds: str
    remedy: str
    look: Callable[[Subject], Iterator[Place]]
    guess: bool = False

    def findings(self, subject: Subject) -> Iterator[Finding]:
        """What it finds in `subject`, each place once."""
        for place in dict.fromkeys(self.look(subject)):
            yield Finding(
                self.id,
                place.file,
                place.line,
                place.reason,
                place.remedy or self.remedy,
                place.since or self.since,
                self.guess if place.guess is None else place.guess,
            )
