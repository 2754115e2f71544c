"""The least text edits that turn a JSONC document into one with another value; all other text stays to the byte.

Comments outside removed values, the order of what stays, trailing commas, indentation and line endings are kept. What
is added is written in the style that its surroundings have.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

from raytrain_debug.editor.jsonc import Document, Item, Node

_DEFAULT_INDENT = "    "
_LINE_WIDTH = 100
_EOL = re.compile(r"\r\n|\n|\r")


@dataclass(frozen=True)
class Edit:
    """Replace `text[start:end]` of the document by `text`."""

    start: int
    end: int
    text: str


def update(document: Document, value: Any) -> str:
    """The document's text, edited so that it parses to `value` (JSON types; object order does not matter)."""
    return apply(document.text, plan(document, value))


def plan(document: Document, value: Any) -> list[Edit]:
    """The edits of `update`, sorted and not overlapping; empty when the document has that value already."""
    planner = _Planner(document)
    if document.root is None:
        planner.fill_empty(value)
    else:
        planner.change(document.root, value)
    return planner.edits()


def apply(text: str, edits: Iterable[Edit]) -> str:
    """`text` with `edits` (sorted, not overlapping) done."""
    parts: list[str] = []
    position = 0
    for edit in edits:
        parts += (text[position : edit.start], edit.text)
        position = edit.end
    return "".join((*parts, text[position:]))


def same(one: Any, other: Any) -> bool:
    """Whether two JSON values are equal, with 1, 1.0 and true told apart as Python's own == does not."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(value, other[key]) for key, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and bool(one == other)


@dataclass(frozen=True)
class _Part:
    """One part of a container as it shall be: an item that stays, perhaps changed, or (`item` None) a new one."""

    item: Item | None
    key: str | None
    value: Any


class _Planner:
    """Collects what to delete and what to insert in one document."""

    def __init__(self, document: Document) -> None:
        self.text = document.text
        self.root = document.root
        self.comments = dict(document.comments)
        breaks = _EOL.search(self.text)
        self.eol = breaks.group() if breaks else "\n"
        self.unit = self._indent_unit()
        self.deleted: list[tuple[int, int]] = []
        self.inserted: list[tuple[int, str]] = []

    def edits(self) -> list[Edit]:
        merged: list[tuple[int, int]] = []
        for start, end in sorted(self.deleted):
            if merged and start < merged[-1][1]:
                merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
            else:
                merged.append((start, end))
        edits = [Edit(start, end, "") for start, end in merged]
        edits += [Edit(position, position, text) for position, text in self.inserted]
        result: list[Edit] = []
        # Stable: insertions at one place stay in the order of planning, and come before a deletion that starts there.
        for edit in sorted(edits, key=lambda edit: (edit.start, edit.end)):
            if result and edit.start < result[-1].end:
                # An insertion inside deleted text takes the place of that text.
                result[-1] = Edit(result[-1].start, result[-1].end, result[-1].text + edit.text)
            else:
                result.append(edit)
        return result

    def fill_empty(self, value: Any) -> None:
        """Write the value of a document that has none, behind the comments it may have."""
        end = len(self.text)
        if not self.comments:
            self._delete(self.text.startswith("\ufeff"), end)
        elif not self.text.endswith(("\n", "\r")):
            self._insert(end, self.eol)
        self._insert(end, self._written(value, "", compact=False) + self.eol)

    def change(self, node: Node, value: Any) -> None:
        """Make `node` read as `value`."""
        if same(node.value, value):
            return
        if isinstance(node.value, list) and isinstance(value, list):
            self._container(node, list(_aligned(node.items, value)))
        elif isinstance(node.value, dict) and isinstance(value, dict):
            effective = {item.key: item for item in node.items}
            # An earlier duplicate of a key that stays is text without effect: it is left alone.
            parts = [
                _Part(item, item.key, value[item.key] if effective[item.key] is item else item.node.value)
                for item in node.items
                if item.key in value
            ]
            self._container(node, parts + [_Part(None, key, value[key]) for key in value if key not in effective])
        else:
            self._delete(node.start, node.end)
            self._insert(node.start, self._written(value, self._indentation(node.start), compact=False))

    # ---- containers

    def _container(self, node: Node, parts: list[_Part]) -> None:
        if not node.items:
            self._fill(node, parts)
            return
        trailing = node.items[-1].comma is not None
        kept = {id(part.item) for part in parts if part.item is not None}
        for item in node.items:
            if id(item) not in kept:
                self._remove(item)
        after: Item | None = None
        new: list[tuple[_Part, bool]] = []
        for index, part in enumerate(parts):
            comma = trailing or index < len(parts) - 1
            if part.item is None:
                new.append((part, comma))
                continue
            self._add(node, after, new)
            after, new = part.item, []
            self.change(part.item.node, part.value)
            if comma and part.item.comma is None:
                self._insert(part.item.end, ",")
            elif part.item.comma is not None and not comma:
                self._delete(part.item.comma, part.item.comma + 1)
        self._add(node, after, new)

    def _fill(self, node: Node, parts: list[_Part]) -> None:
        """Put parts into a container that has none."""
        opened, closing = node.start + 1, node.end - 1
        outer = self._indentation(node.start)
        inner = outer + self.unit
        text = ",".join(self.eol + inner + self._part(part, inner, compact=False) for part in parts)
        last = max((end for start, end in self.comments.items() if opened <= start < closing), default=None)
        if last is None:
            self._delete(opened, closing)
            self._insert(opened, text + self.eol + outer)
        else:
            ended = _EOL.search(self.text, last, closing) is not None
            self._insert(last, text if ended else text + self.eol + outer)

    def _add(self, node: Node, after: Item | None, new: list[tuple[_Part, bool]]) -> None:
        """Insert parts (each with whether a comma follows it) behind the item `after`, or in front of all."""
        if not new:
            return
        own_line = [item for item in node.items if self._first_on_line(item.start)]
        behind = node.start + 1
        if after is not None:
            behind = after.end if after.comma is None else after.comma + 1
        place, forced = self._past_comments(behind)
        if own_line or forced:
            indent = self._indentation(own_line[-1].start) if own_line else self._indentation(node.start) + self.unit
            texts = [self.eol + indent + self._part(part, indent, False) + "," * comma for part, comma in new]
        else:
            compact = all(self._on_one_line(item.start, item.end) for item in node.items)
            indent = self._indentation((after or node).start)
            texts = [self._part(part, indent, compact) + "," * comma for part, comma in new]
            texts = [" " + text for text in texts] if after else [text + " " for text in texts[:-1]] + texts[-1:]
            if after is None and new[-1][1] and not self.text.startswith((" ", "\t"), place):
                texts.append(" ")
        self._insert(place, "".join(texts))

    def _remove(self, item: Item) -> None:
        """Delete an item, its comma, and the line or the blanks that only it needed."""
        end = item.end
        if item.comma is not None:
            if self.text[end : item.comma].strip(" \t"):
                self._delete(item.comma, item.comma + 1)
            else:
                end = item.comma + 1
        start = item.start
        before, behind = self._back_over_blanks(start), self._over_blanks(end)
        ends_line = self.text[behind] in "\r\n"
        if self._first_on_line(start) and ends_line:
            start = before - (2 if self.text.endswith("\r\n", 0, before) else 1)
        elif ends_line or self.text[behind] in "]}":
            start = before
        if self.text[behind] not in "]}":
            end = behind
        self._delete(start, end)

    # ---- writing values

    def _part(self, part: _Part, indent: str, compact: bool) -> str:
        value = self._written(part.value, indent, compact)
        return value if part.key is None else f"{_scalar(part.key)}: {value}"

    def _written(self, value: Any, indent: str, compact: bool) -> str:
        """`value` as text whose first line is already indented by `indent`; short containers of scalars on one line."""
        if not isinstance(value, (dict, list)) or not value:
            return _scalar(value)
        inner = indent + self.unit
        if compact or not any(isinstance(part, (dict, list)) and part for part in _values(value)):
            line = json.dumps(value, ensure_ascii=False)
            if compact or len(inner) + len(line) <= _LINE_WIDTH:
                return line
        if isinstance(value, dict):
            lines = [f"{_scalar(key)}: {self._written(part, inner, False)}" for key, part in value.items()]
        else:
            lines = [self._written(part, inner, False) for part in value]
        opening, closing = "{}" if isinstance(value, dict) else "[]"
        body = f",{self.eol}{inner}".join(lines)
        return f"{opening}{self.eol}{inner}{body}{self.eol}{indent}{closing}"

    # ---- looking at the text

    def _indent_unit(self) -> str:
        """What one level of indentation is in this document: the first that a container shows, else four spaces."""
        for node in _containers(self.root):
            outer = self._indentation(node.start)
            for item in node.items:
                inner = self._indentation(item.start)
                if self._first_on_line(item.start) and inner.startswith(outer) and inner != outer:
                    return inner[len(outer) :]
        return _DEFAULT_INDENT

    def _past_comments(self, position: int) -> tuple[int, bool]:
        """Past the comments that end this line, which speak of what stands before; True when // forces a new line."""
        place, forced = position, False
        while (start := self._over_blanks(place)) in self.comments:
            place = self.comments[start]
            forced = self.text.startswith("//", start)
        rest = self._over_blanks(place)
        if rest == len(self.text) or self.text[rest] in "\r\n]}":
            return place, forced
        return position, False

    def _line_start(self, position: int) -> int:
        return max(self.text.rfind("\n", 0, position), self.text.rfind("\r", 0, position)) + 1

    def _indentation(self, position: int) -> str:
        start = self._line_start(position)
        if self.text.startswith("\ufeff", start):
            start += 1
        return self.text[start : self._over_blanks(start)]

    def _first_on_line(self, position: int) -> bool:
        """Whether only blanks stand between a line break and `position`."""
        start = self._line_start(position)
        return start > 0 and self._over_blanks(start) >= position

    def _on_one_line(self, start: int, end: int) -> bool:
        return _EOL.search(self.text, start, end) is None

    def _over_blanks(self, position: int) -> int:
        while self.text.startswith((" ", "\t"), position):
            position += 1
        return position

    def _back_over_blanks(self, position: int) -> int:
        while position and self.text[position - 1] in " \t":
            position -= 1
        return position

    def _delete(self, start: int, end: int) -> None:
        self.deleted.append((start, end))

    def _insert(self, position: int, text: str) -> None:
        self.inserted.append((position, text))


def _scalar(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _values(container: Any) -> Iterable[Any]:
    return container.values() if isinstance(container, dict) else container


def _containers(node: Node | None) -> Iterator[Node]:
    if node is not None and node.items:
        yield node
        for item in node.items:
            yield from _containers(item.node)


def _aligned(items: tuple[Item, ...], values: list[Any]) -> Iterator[_Part]:
    """Which elements of an array stay, change or go, and which are new, by the name that each goes by."""
    matcher = SequenceMatcher(None, _identities(item.node.value for item in items), _identities(values), autojunk=False)
    for _, first, last, new_first, new_last in matcher.get_opcodes():
        old = items[first:last]
        for index, value in enumerate(values[new_first:new_last]):
            yield _Part(old[index] if index < len(old) else None, None, value)


def _identities(values: Iterable[Any]) -> list[tuple[str, int]]:
    """What tells elements apart: the name of a named one or else the whole value, and how often it came before."""
    seen: Counter[str] = Counter()
    identities = []
    for value in values:
        names = [value.get(key) for key in ("name", "label")] if isinstance(value, dict) else []
        name = next((f"name {name}" for name in names if isinstance(name, str)), "") or json.dumps(
            value, sort_keys=True
        )
        identities.append((name, seen[name]))
        seen[name] += 1
    return identities
