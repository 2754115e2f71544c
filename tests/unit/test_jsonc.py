"""The JSONC scanner reads what VS Code reads, knows where every value stands, and tells where a text is at fault."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raytrain_debug.editor import jsonc
from raytrain_debug.errors import LaunchJsonError
from tests.unit.jsonc_documents import documents, unhurried


def nodes(node: jsonc.Node | None) -> Iterator[jsonc.Node]:
    if node is not None:
        yield node
        for item in node.items:
            yield from nodes(item.node)


def exact(value: Any) -> str:
    """A text in which 1, 1.0 and true differ."""
    return json.dumps(value, sort_keys=True)


@unhurried
@given(documents())
def test_any_value_in_any_layout_is_read_with_the_span_it_came_from(case: tuple[str, Any]) -> None:
    text, value = case
    document = jsonc.parse(text)
    assert exact(document.value) == exact(value)
    for node in nodes(document.root):
        assert exact(jsonc.parse(text[node.start : node.end]).value) == exact(node.value)
        for item in node.items:
            assert item.key is None or text[item.start] == '"'
            assert item.comma is None or text[item.comma] == ","
    for start, end in document.comments:
        assert re.fullmatch(r"//[^\r\n]*#\d+|/\*.*#\d+.*\*/", text[start:end])


@unhurried
@given(st.text(alphabet='{}[]:,"\\/*truefalsn0123.-eE \n\t\ufeff', max_size=30))
def test_no_text_makes_it_fail_in_another_way_than_told(text: str) -> None:
    with suppress(LaunchJsonError):
        jsonc.parse(text)


def test_of_duplicate_keys_the_last_one_counts_and_all_are_known() -> None:
    document = jsonc.parse('{"a": 1, "a": 2}')
    assert document.value == {"a": 2}
    assert document.root is not None
    assert [item.node.value for item in document.root.items] == [1, 2]


@pytest.mark.parametrize("text", ["", "\ufeff", " \r\n\t", "// only a comment", "/* a */ // b\n"])
def test_a_text_without_value_has_no_root(text: str) -> None:
    assert jsonc.parse(text).root is None


@pytest.mark.parametrize(
    ("text", "line", "column", "what"),
    [
        ('{"a": 1\n "b": 2}', 2, 2, "comma or }"),
        ("[1\r\n,\r\n2 3]", 3, 3, "comma or ]"),
        ("[1,\r2 3]", 2, 3, "comma or ]"),
        ('{"a" 1}', 1, 6, "colon"),
        ("{a: 1}", 1, 2, "double quotes"),
        ("{'a': 1}", 1, 2, "double quotes"),
        ('{"a": }', 1, 7, "a value is missing"),
        ("[,]", 1, 2, "a value is missing"),
        ("[1,,]", 1, 4, "a value is missing"),
        ('{"a": 1,, }', 1, 9, "double quotes"),
        ('{\n  "a": [1\n', 2, 8, "never closed by a ]"),
        ("\ufeff{", 1, 1, "never closed by a }"),
        ('["abc\n"]', 1, 2, "string"),
        (r'["\x"]', 1, 2, "string"),
        ('["a\tb"]', 1, 2, "string"),
        ("/* x", 1, 1, "comment"),
        ("[1] 2", 1, 5, "follows"),
        ("[01]", 1, 2, "'01' is not"),
        ("[1.]", 1, 2, "'1.' is not"),
        ("[NaN]", 1, 2, "'NaN' is not"),
        ("[True]", 1, 2, "'True' is not"),
        ("[" + "9" * 5000 + "]", 1, 2, "digits"),
        ("[1\u00a0]", 1, 3, "comma or ]"),
        ("[" * 200 + "]" * 200, 1, 102, "nested"),
    ],
)
def test_a_fault_is_told_by_name_line_and_column(text: str, line: int, column: int, what: str) -> None:
    with pytest.raises(LaunchJsonError, match=re.escape(f"launch.json, line {line}, column {column}: ")) as caught:
        jsonc.parse(text, "launch.json")
    assert what in str(caught.value)
    assert "untouched" in caught.value.remedy
