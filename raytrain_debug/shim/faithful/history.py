"""Which reported checkpoints a run keeps, in which order: the rules of CheckpointConfig as a cluster follows them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass
class History:
    """The checkpoints kept so far with their metrics, the worst first; without a score in the order of their reports.

    `keep` of them at most (None: all), the best by the metric named `score`, of which "max" or "min" is best.
    """

    keep: int | None = None
    score: str | None = None
    order: str = "max"
    kept: list[tuple[Any, dict[str, Any]]] = field(default_factory=list)

    def add(self, checkpoint: Any, metrics: dict[str, Any]) -> list[Any]:
        """Take in a report; the checkpoints that are kept no more. The newest is always kept.

        Raises ValueError when the score is no number.
        """
        new = self._score_of(metrics)
        at = sum(1 for _, other in self.kept if self._score_of(other) <= new)
        self.kept.insert(at, (checkpoint, metrics))
        if self.keep is None:
            return []
        worst = [each for each, _ in self.kept[: -self.keep] if each is not checkpoint]
        self.kept = [entry for entry in self.kept if not any(entry[0] is each for each in worst)]
        return worst

    def _score_of(self, metrics: Mapping[str, Any]) -> tuple[bool, float]:
        """What to sort by: no number at all, then infinities and numbers. Equal for all reports without a score."""
        if self.score is None:
            return True, 0.0
        found = _find(metrics, self.score)
        value = float("-inf") if found is None else found
        try:
            number = float(value) * (1.0 if self.order == "max" else -1.0)
        except (TypeError, ValueError):
            raise ValueError(f"checkpoint_score_attribute {self.score!r} has the value {value!r}: no number") from None
        return (False, float("-inf")) if math.isnan(number) else (True, number)


def _find(metrics: Mapping[str, Any], path: str) -> Any:
    """The metric of that name; `a/b` is `b` of the dict `a`."""
    if path in metrics:
        return metrics[path]
    for name, value in metrics.items():
        if isinstance(value, Mapping) and path.startswith(f"{name}/"):
            found = _find(value, path[len(str(name)) + 1 :])
            if found is not None:
                return found
    return None
