"""What several ranks say, said once: equal texts with the ranks that say them, the odd ones first as `print` has it."""

from __future__ import annotations

from collections.abc import Mapping

from raytrain_debug.across.hang import ranks_in_words
from raytrain_debug.run.ranks import format_ranks

_VERBS = {"was": "were", "is": "are", "has": "have", "starts": "start", "goes": "go", "waits": "wait", "runs": "run"}
_VERBS |= {"gives": "give", "answers": "answer"}


def merged(texts: Mapping[int, str]) -> str:
    """`0,2-3: 0.25`, a line a text. Empty texts say nothing."""
    found: dict[str, list[int]] = {}
    for rank, text in sorted(texts.items()):
        found.setdefault(text.removesuffix("\n"), []).append(rank)
    groups = sorted(found.items(), key=lambda item: (len(item[1]), item[1]))
    return "\n".join(_labelled(ranks, text) for text, ranks in groups if text)


def said_of_ranks(texts: Mapping[int, str]) -> list[str]:
    """Sentences about `rank N`, those that are alike in one: `ranks 0-3 were killed by SIGKILL`."""
    found: dict[tuple[str, str], list[int]] = {}
    for rank, text in sorted(texts.items()):
        before, own, after = text.partition(f"rank {rank} ")
        found.setdefault((before, after) if own else (text, ""), []).append(rank)
    return [before + (about(ranks, after) if after else "") for (before, after), ranks in found.items()]


def about(ranks: list[int] | tuple[int, ...], text: str) -> str:
    """`rank 1 goes on`, `ranks 0, 2 go on` from "goes on"."""
    verb, space, rest = text.partition(" ")
    if len(ranks) > 1:
        verb = _VERBS.get(verb, verb)
    return f"{ranks_in_words(ranks)} {verb}{space}{rest}"


def _labelled(ranks: list[int], text: str) -> str:
    label = format_ranks(ranks)
    if text.startswith("> "):
        return f"{label} {text}"  # a place: `0,2-3 > train.py(31)train()`
    return f"{label}:{chr(10) if chr(10) in text else ' '}{text}"
