"""What is told of ranks while the user does something else: at once for one rank, gathered for a moment for several."""

from __future__ import annotations

import threading

from raytrain_debug.cli import console
from raytrain_debug.cli.prompt.merge import said_of_ranks

_MOMENT = 0.2  # seconds in which ranks that have the same to say usually have said it

# pydevd's long advice to whoever evaluates something slow, about variables that the user has not set.
_ADVICE = ("Evaluating:", "pydevd:")
_BAD_CONDITION = "pydevd: Error while evaluating expression in conditional breakpoint: "


class Notes:
    """Sentences about ranks, none told twice in a row. Any thread may say something."""

    def __init__(self, several: bool) -> None:
        self._several = several
        self._lock = threading.Lock()
        self._waiting: list[dict[int, str]] = []
        self._last: dict[int, str] = {}

    def say(self, rank: int, text: str) -> None:
        """Tell `text`, a sentence that begins with "rank N" if it is about the rank."""
        text = _in_words(rank, text.strip())
        with self._lock:
            if not text or text.startswith(_ADVICE) or self._last.get(rank) == text:
                return
            self._last[rank] = text
            first = not self._waiting
            for each in self._waiting:
                if rank not in each:
                    each[rank] = text
                    break
            else:
                self._waiting.append({rank: text})
        if not self._several:
            self.flush()
        elif first:
            timer = threading.Timer(_MOMENT, self.flush)
            timer.daemon = True
            timer.start()

    def flush(self) -> None:
        """Tell now what is gathered."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
        for texts in waiting:
            for text in said_of_ranks(texts):
                console.note(text)


def _in_words(rank: int, text: str) -> str:
    """What pydevd says of a condition that raised: the condition, then a traceback."""
    if not text.startswith(_BAD_CONDITION):
        return text
    condition, _, raised = text.removeprefix(_BAD_CONDITION).partition("\n")
    return f"rank {rank} stops, for the condition {condition!r} raises {raised.strip().rpartition(chr(10))[2]}"
