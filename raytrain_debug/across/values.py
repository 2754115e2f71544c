"""One expression's value on many ranks: ranks grouped by equal value, the odd ones first, and numbers summed up."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from raytrain_debug.errors import ControlError
from raytrain_debug.run import codec
from raytrain_debug.run.records import CallSite


@dataclass(frozen=True)
class ValueGroup:
    """Ranks with an equal value, as the control channel describes it."""

    ranks: tuple[int, ...]
    value: Any

    @property
    def seen_whole(self) -> bool:
        """Whether the values were looked at whole, so that they are equal, not only alike in what was looked at."""
        return _seen_whole(self.value)


@dataclass(frozen=True)
class ErrorGroup:
    """Ranks that gave no value for the same reason."""

    ranks: tuple[int, ...]
    error: str


@dataclass(frozen=True)
class Values:
    """An expression on all ranks asked. `states` says of each that gave a value "running", "paused" or "waiting"."""

    expression: str
    groups: tuple[ValueGroup, ...]
    errors: tuple[ErrorGroup, ...]
    states: dict[int, str]
    places: dict[int, CallSite]

    @property
    def by_rank(self) -> dict[int, Any]:
        """The values of the ranks that gave one, in rank order."""
        found = {rank: group.value for group in self.groups for rank in group.ranks}
        return {rank: found[rank] for rank in sorted(found)}

    @property
    def numbers(self) -> dict[int, float] | None:
        """The values by rank when all of them are numbers (NaN and infinities too), else None."""
        values = self.by_rank
        if not values or not all(is_number(value) for value in values.values()):
            return None
        return {rank: codec.as_float(value) for rank, value in values.items()}


@dataclass(frozen=True)
class Summary:
    """Numbers summed up: over the finite ones `low`, `high`, `mean` (None when there is none), others counted."""

    count: int
    low: float | None
    high: float | None
    mean: float | None
    nan: int
    inf: int


def collect(expression: str, answers: Mapping[int, dict[str, Any] | ControlError]) -> Values:
    """What the ranks answered to the operation `evaluate`, grouped. NaN equals NaN; small groups come first."""
    values: dict[Any, tuple[Any, list[int]]] = {}
    errors: dict[str, list[int]] = {}
    states: dict[int, str] = {}
    places: dict[int, CallSite] = {}
    for rank, answer in sorted(answers.items()):
        if isinstance(answer, ControlError) or "value" not in answer:
            errors.setdefault(_why(answer), []).append(rank)
            continue
        value = answer["value"]
        values.setdefault(_key(value), (value, []))[1].append(rank)
        states[rank] = str(answer.get("state", ""))
        where = answer.get("where")
        if isinstance(where, dict):
            places[rank] = CallSite(str(where["file"]), int(where["line"]), str(where["function"]))
    groups = [ValueGroup(tuple(ranks), value) for value, ranks in values.values()]
    failures = [ErrorGroup(tuple(ranks), why) for why, ranks in errors.items()]
    return Values(
        expression,
        tuple(sorted(groups, key=lambda group: (len(group.ranks), group.ranks))),
        tuple(sorted(failures, key=lambda group: (len(group.ranks), group.ranks))),
        states,
        places,
    )


def summarise(numbers: Mapping[int, float]) -> Summary:
    """The numbers of ranks in one line."""
    finite = [number for number in numbers.values() if math.isfinite(number)]
    return Summary(
        len(numbers),
        min(finite, default=None),
        max(finite, default=None),
        math.fsum(number / len(finite) for number in finite) if finite else None,
        sum(math.isnan(number) for number in numbers.values()),
        sum(math.isinf(number) for number in numbers.values()),
    )


def how(states: Mapping[int, str], rank: int) -> str:
    """ "paused" when the rank's frames stood still while it was asked, else "sampled"."""
    return "sampled" if states.get(rank) == "running" else "paused"


def to_json(values: Values) -> dict[str, Any]:
    """What `print --json` prints."""
    return {
        "groups": [{"ranks": list(group.ranks), "value": group.value} for group in values.groups],
        "errors": [{"ranks": list(group.ranks), "error": group.error} for group in values.errors],
        "how": {str(rank): how(values.states, rank) for rank in sorted(values.states)},
    }


def is_number(value: Any) -> bool:
    """Whether a value is a number; True and False are none."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _key(value: Any) -> Any:
    """Something hashable that is equal for values that count as equal."""
    if isinstance(value, float) and math.isnan(value):
        return ("nan",)
    if isinstance(value, bool):
        return ("bool", value)
    if isinstance(value, dict):
        # A checksum tells more than a repr, which can be cut, or name the items of a set in any order.
        told_by = "repr" if "$type" in value and "checksum" in value else None
        return ("dict", frozenset((key, _key(item)) for key, item in value.items() if key != told_by))
    if isinstance(value, list):
        return ("list", tuple(_key(item) for item in value))
    return value


def _seen_whole(value: Any) -> bool:
    if isinstance(value, dict):
        return not ("$type" in value and "looked_at" in value) and all(map(_seen_whole, value.values()))
    return all(map(_seen_whole, value)) if isinstance(value, list) else True


def _why(answer: dict[str, Any] | ControlError) -> str:
    if isinstance(answer, ControlError):
        return str(answer)
    raised = answer.get("raised")
    if isinstance(raised, dict):
        return f"{raised.get('type')}: {raised.get('message')}".rstrip(": ")
    return str(answer.get("unanswerable", "its answer makes no sense"))
