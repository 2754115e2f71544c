"""JSON with comments, as VS Code reads it: every value together with the span of text it came from.

Accepted beyond JSON: // and /* */ comments, trailing commas, a byte order mark. Of duplicate keys the last one counts.
"""

from __future__ import annotations

import bisect
import json
import re
from dataclasses import dataclass
from typing import Any, NoReturn

from raytrain_debug.errors import LaunchJsonError

MAX_DEPTH = 100
_REMEDY = "the file was left untouched; correct it at this place and run the command again"

_BLANK = re.compile(r"[ \t\r\n]*")
_STRING = re.compile(r'"[^"\\\x00-\x1f]*(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\\x00-\x1f]*)*"')
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_WORD = re.compile(r"[A-Za-z0-9_.+-]+")
_LITERALS = {"true": True, "false": False, "null": None}
_LINE_COMMENT = re.compile(r"//[^\r\n]*")
_LINE_BREAK = re.compile(r"\r\n|\n|\r")


@dataclass(frozen=True)
class Node:
    """A value at `text[start:end]`; `items` are the parts of an array or object, in the order of the text."""

    start: int
    end: int
    value: Any
    items: tuple[Item, ...] = ()


@dataclass(frozen=True)
class Item:
    """An element or a property: `start` is where its key (or value) begins, `comma` where the comma after it stands."""

    start: int
    node: Node
    key: str | None = None
    comma: int | None = None

    @property
    def end(self) -> int:
        """Where its value ends."""
        return self.node.end


@dataclass(frozen=True)
class Document:
    """A parsed text; `root` is None when it holds blanks and comments only. `comments` are (start, end), in order."""

    text: str
    root: Node | None
    comments: tuple[tuple[int, int], ...]

    @property
    def value(self) -> Any:
        """The plain Python value of the whole text; None when there is none."""
        return None if self.root is None else self.root.value


def parse(text: str, name: str = "the text") -> Document:
    """The document in `text`; raises LaunchJsonError, which tells `name`, line and column of the first fault."""
    scanner = _Scanner(text, name)
    scanner.skip()
    root = None if scanner.position == len(text) else scanner.value(0)
    scanner.skip()
    if scanner.position < len(text):
        scanner.fail("something follows the end of the value")
    return Document(text, root, tuple(scanner.comments))


def fault(text: str, position: int, name: str, what: str) -> LaunchJsonError:
    """An error about `text[position]`, for whoever finds a value of the wrong kind there."""
    starts = [0, *(match.end() for match in _LINE_BREAK.finditer(text))]
    line = bisect.bisect_right(starts, position)
    column = position - starts[line - 1] + 1
    if line == 1 and text.startswith("\ufeff"):
        column = max(1, column - 1)
    return LaunchJsonError(f"{name}, line {line}, column {column}: {what}", _REMEDY)


class _Scanner:
    """Recursive descent over one text; `position` is the next character to read."""

    def __init__(self, text: str, name: str) -> None:
        self.text = text
        self.name = name
        self.position = 1 if text.startswith("\ufeff") else 0
        self.comments: list[tuple[int, int]] = []

    def fail(self, what: str, position: int | None = None) -> NoReturn:
        raise fault(self.text, self.position if position is None else position, self.name, what)

    def skip(self) -> None:
        """Move past blanks and comments."""
        while True:
            self._match(_BLANK)
            start = self.position
            if self.text.startswith("/*", start):
                end = self.text.find("*/", start + 2)
                if end < 0:
                    self.fail("this comment has no end", start)
                self.position = end + 2
            elif not self._match(_LINE_COMMENT):
                return
            self.comments.append((start, self.position))

    def value(self, depth: int) -> Node:
        if depth > MAX_DEPTH:
            self.fail(f"values are nested more than {MAX_DEPTH} deep")
        start = self.position
        opening = self.text[start : start + 1]
        if opening == "{":
            members = self._items("}", depth)
            return Node(start, self.position, {item.key: item.node.value for item in members}, members)
        if opening == "[":
            elements = self._items("]", depth)
            return Node(start, self.position, [item.node.value for item in elements], elements)
        if opening == '"':
            string = self._string()
            return Node(start, self.position, string)
        word = self._match(_WORD)
        if word in _LITERALS:
            return Node(start, self.position, _LITERALS[word])
        if not _NUMBER.fullmatch(word):
            self.fail(f"{word[:40]!r} is not a JSON value" if word else "a value is missing here", start)
        try:
            return Node(start, self.position, json.loads(word))
        except ValueError:
            self.fail("this number has too many digits", start)

    def _items(self, closing: str, depth: int) -> tuple[Item, ...]:
        """The parts of a container whose opening bracket is the next character, and past its closing one."""
        opened = self.position
        self.position += 1
        items: list[Item] = []
        while True:
            self.skip()
            if self.text.startswith(closing, self.position):
                self.position += 1
                return tuple(items)
            if self.position == len(self.text):
                self.fail(f"this {self.text[opened]} is never closed by a {closing}", opened)
            if items and items[-1].comma is None:
                self.fail(f"a comma or {closing} is missing here")
            start, key = self.position, None
            if closing == "}":
                if not self.text.startswith('"', start):
                    self.fail("a property name in double quotes is missing here")
                key = self._string()
                self.skip()
                if not self._take(":"):
                    self.fail("a colon is missing here")
                self.skip()
            node = self.value(depth + 1)
            self.skip()
            comma = self.position
            items.append(Item(start, node, key, comma if self._take(",") else None))

    def _string(self) -> str:
        start = self.position
        token = self._match(_STRING)
        if not token:
            self.fail("this string has no end, or an invalid escape or control character in it", start)
        text: str = json.loads(token)
        return text

    def _take(self, character: str) -> bool:
        found = self.text.startswith(character, self.position)
        self.position += found
        return found

    def _match(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self.text, self.position)
        if match is None:
            return ""
        self.position = match.end()
        return match.group()
