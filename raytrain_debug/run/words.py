"""Counts, lists and first lines as all messages tell them, and text of the user's, which does nothing to a terminal."""

from __future__ import annotations

from collections.abc import Sequence


def counted(count: int, noun: str) -> str:
    """`1 report`, `2 reports`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def joined(parts: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def visible(text: str) -> str:
    """`text` with every character that does not print, but for newlines and tabs, written as an escape."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in "\n\t" else char.encode("unicode_escape").decode() for char in text
    )


def first_line(text: str) -> str:
    """The first line of a message that has any, with a sign of those that follow."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return f"{lines[0]} […]" if len(lines) > 1 else "".join(lines)
