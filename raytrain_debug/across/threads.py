"""Exceptions that ended threads of ranks, equal ones told once: no rank fails with them, but a rank may wait for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from raytrain_debug.across.hang import place_in_words
from raytrain_debug.run.ranks import name_ranks
from raytrain_debug.run.records import ExceptionRecord, ThreadExceptionRecord
from raytrain_debug.run.words import counted, first_line, joined

_FEW = 3  # told in words; of names too


@dataclass(frozen=True)
class ThreadEnd:
    """Threads that ended with the same exception: the rank and the record of each, oldest first."""

    threads: tuple[tuple[int, ThreadExceptionRecord], ...]

    @property
    def exception(self) -> ExceptionRecord:
        """What ended them."""
        return self.threads[0][1].exception

    @property
    def headline(self) -> str:
        """`KeyError: 'x'`: the first line of what it says."""
        error = self.exception
        return first_line(f"{error.type}: {error.message}" if error.message else error.type)

    @property
    def ranks(self) -> list[int]:
        """The ranks that had such a thread."""
        return sorted({rank for rank, _ in self.threads})

    @property
    def attempts(self) -> list[int]:
        """The attempts in which they ended."""
        return sorted({record.attempt for _, record in self.threads})

    @property
    def names(self) -> str:
        """The names of the threads, as many as one wants to read."""
        names = list(dict.fromkeys(repr(record.thread) for _, record in self.threads))
        more = len(names) - _FEW
        return joined(names if more <= 0 else [*names[:_FEW], f"{more} more"])


def thread_ends(threads: Iterable[tuple[int, ThreadExceptionRecord]]) -> list[ThreadEnd]:
    """Ranks and records put together where the exceptions are equal, in the order of their first."""
    groups: dict[object, list[tuple[int, ThreadExceptionRecord]]] = {}
    for rank, record in sorted(threads, key=lambda each: (each[1].time, each[0])):
        error = record.exception
        groups.setdefault((error.type, error.message, error.where, error.traceback), []).append((rank, record))
    return [ThreadEnd(tuple(group)) for group in groups.values()]


def in_words(
    ends: Sequence[ThreadEnd], cwd: str, verb: str = "has ended", when: Callable[[ThreadEnd], str] | None = None
) -> list[str]:
    """`a thread of rank 1, 'loader', has ended with KeyError: 'x' at train.py:5 in feed` for the first few of `ends`.

    Then how many more there are. `when` may add to each at which point of the run.
    """
    told = [_in_words(end, cwd, verb, when(end) if when is not None else "") for end in ends[:_FEW]]
    more = sum(len(end.threads) for end in ends[_FEW:])
    if more:
        told.append(f"{counted(more, 'more thread')} {_verb(verb, more)} with an exception")
    return told


def place_of(end: ThreadEnd, cwd: str) -> str:
    """` at train.py:5 in feed`; nothing where the exception came by no code of the user's."""
    where = end.exception.where
    return f" at {place_in_words(where.file, where.line, cwd)} in {where.function}" if where is not None else ""


def _in_words(end: ThreadEnd, cwd: str, verb: str, when: str) -> str:
    count, ranks = len(end.threads), end.ranks
    one_each = count == len(ranks) and len({record.thread for _, record in end.threads}) == 1
    whose = f"a thread of {'each of ' if count > 1 else ''}" if one_each else f"{count} threads of "
    ended = f"{whose}{name_ranks(ranks)}, {end.names}, {_verb(verb, 1 if one_each else count)}"
    said, place = end.headline.removesuffix("."), place_of(end, cwd)
    if ". " in said:
        # Sentences of its own would run into the place, and the place into them.
        return f"{ended}{place}{when}, with {said}"
    return f"{ended} with {said}{place}{when}"


def _verb(verb: str, count: int) -> str:
    return verb if count == 1 else verb.replace("has ", "have ", 1)
