"""Edits of a JSONC text give exactly the wanted value and touch nothing else."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raytrain_debug.editor import edits, jsonc
from tests.unit.jsonc_documents import KEYS, VALUES, documents, unhurried


def exact(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def containers(value: Any) -> Iterator[Any]:
    if isinstance(value, (dict, list)):
        yield value
        for part in value.values() if isinstance(value, dict) else value:
            yield from containers(part)


@st.composite
def changes(draw: st.DrawFn) -> tuple[str, Any, Any]:
    """A text, its value, and another value made of it by a few insertions, replacements and removals."""
    text, value = draw(documents())
    wanted = copy.deepcopy(value)
    for _ in range(draw(st.integers(0, 4))):
        places = list(containers(wanted))
        if not places:
            return text, value, draw(VALUES)
        place = draw(st.sampled_from(places))
        new = copy.deepcopy(draw(VALUES))
        keys: Any = list(place) if isinstance(place, dict) else range(len(place))
        action = draw(st.sampled_from(["add", "replace", "remove", "remove"]))
        if action == "add" and isinstance(place, dict):
            place[draw(KEYS)] = new
        elif action == "add":
            place.insert(draw(st.integers(0, len(place))), new)
        elif keys and action == "replace":
            place[draw(st.sampled_from(keys))] = new
        elif keys:
            del place[draw(st.sampled_from(keys))]
    return text, value, wanted


@unhurried
@given(changes())
def test_the_edited_text_has_the_wanted_value_and_needs_no_second_edit(case: tuple[str, Any, Any]) -> None:
    text, value, wanted = case
    edited = edits.update(jsonc.parse(text), wanted)
    document = jsonc.parse(edited)
    assert exact(document.value) == exact(wanted)
    assert edits.plan(document, wanted) == []
    if exact(value) == exact(wanted):
        assert edited == text


@unhurried
@given(changes())
def test_edits_are_in_order_and_apart_and_the_text_between_them_stays(case: tuple[str, Any, Any]) -> None:
    text, _, wanted = case
    planned = edits.plan(jsonc.parse(text), wanted)
    ends = [0, *(edit.end for edit in planned)]
    assert all(end <= edit.start <= edit.end <= len(text) for end, edit in zip(ends, planned, strict=False))
    edited, position = edits.update(jsonc.parse(text), wanted), 0
    for end, edit in zip(ends, [*planned, edits.Edit(len(text), len(text), "")], strict=True):
        kept = text[end : edit.start] + edit.text
        assert edited.startswith(kept, position)
        position += len(kept)
    assert position == len(edited)


ENTRIES = st.lists(VALUES, max_size=6).map(lambda values: [{"name": f"n{i}", "v": v} for i, v in enumerate(values)])


@unhurried
@given(documents(ENTRIES), st.sets(st.integers(0, 5)), st.lists(VALUES, max_size=3))
def test_entries_that_stay_keep_their_text_and_so_does_every_comment_outside_the_removed_ones(
    case: tuple[str, list[Any]], removed: set[int], new: list[Any]
) -> None:
    text, entries = case
    before = jsonc.parse(text)
    wanted = [entry for index, entry in enumerate(entries) if index not in removed]
    kept = len(wanted)
    wanted += [{"name": f"new {index}", "v": value} for index, value in enumerate(new)]
    after = jsonc.parse(edits.update(before, wanted))
    assert exact(after.value) == exact(wanted)
    assert before.root is not None
    assert after.root is not None
    staying = [item for index, item in enumerate(before.root.items) if index not in removed]
    assert [after.text[item.start : item.end] for item in after.root.items[:kept]] == [
        text[item.start : item.end] for item in staying
    ]
    gone = [item for index, item in enumerate(before.root.items) if index in removed]
    old, new_comments = ([of.text[start:end] for start, end in of.comments] for of in (before, after))
    inside = {text[start:end] for start, end in before.comments if any(item.start <= start < item.end for item in gone)}
    assert [comment for comment in new_comments if comment not in inside] == [
        comment for comment in old if comment not in inside
    ]


@pytest.mark.parametrize("eol", ["\n", "\r\n"])
@pytest.mark.parametrize("comma", ["", ","])
@pytest.mark.parametrize("indent", ["  ", "    ", "\t"])
def test_what_is_added_looks_like_its_surroundings_and_goes_without_a_trace(eol: str, comma: str, indent: str) -> None:
    def written(*entries: str) -> str:
        lines = ["// head", "{", f'{indent}"version": "0.2.0", // why']
        body = [f"{indent * 2}{entry}{',' if comma or entry != entries[-1] else ''}" for entry in entries]
        lines += [f'{indent}"configurations": [', *body, f"{indent}]{comma}", "}", ""]
        return eol.join(lines)

    before = written('{"name": "mine"}')
    after = written('{"name": "mine"}', '{"name": "a", "port": 1}', '{"name": "b", "port": 2}')
    value = {"version": "0.2.0", "configurations": [{"name": "mine"}]}
    more = copy.deepcopy(value)
    more["configurations"] += [{"name": "a", "port": 1}, {"name": "b", "port": 2}]  # type: ignore[operator]
    assert edits.update(jsonc.parse(before), more) == after
    assert edits.update(jsonc.parse(after), value) == before


@pytest.mark.parametrize(
    ("before", "value", "after"),
    [
        ("", {"a": [{}]}, '{\n    "a": [{}]\n}\n'),
        ("\ufeff \r\n", {"a": 1}, '\ufeff{"a": 1}\r\n'),
        ("// mine", [1], "// mine\n[1]\n"),
        ("[1, 2, 3]", [1, 3], "[1, 3]"),
        ("[1, 2, 3]", [1, 2], "[1, 2]"),
        ("[ 1, 2 ]", [1], "[ 1 ]"),
        ("[1, 2]", [1, 2, 3], "[1, 2, 3]"),
        ("[1, // one\n]", [1, 2], "[1, // one\n    2,\n]"),
        ("[\n 1, // one\n 2 // two\n]", [1], "[\n 1 // one\n // two\n]"),
        ("[\n 1, // one\n 2 // two\n]", [1, 2, 3], "[\n 1, // one\n 2, // two\n 3\n]"),
        ("[ // none yet\n]", [1], "[ // none yet\n    1\n]"),
        ('{"a": 1, "a": 2}', {"a": 3}, '{"a": 1, "a": 3}'),
        ('{"a": 1, "b": 0, "a": 2}', {"b": 0}, '{"b": 0}'),
        ("[1]", [True], "[true]"),
        ("[1]", [1.0], "[1.0]"),
        ('["--n", /* ranks */ "4", "train.py"]', ["--n", "2", "train.py"], '["--n", /* ranks */ "2", "train.py"]'),
        ('["x"]', ['"\\\n\u2028ü'], '["\\"\\\\\\n\u2028ü"]'),
    ],
)
def test_edits_by_example(before: str, value: Any, after: str) -> None:
    assert edits.update(jsonc.parse(before), value) == after


def test_an_element_that_goes_by_the_same_name_is_changed_in_place_with_its_comments() -> None:
    before = '[\n  {"name": "a", /* port */ "port": 1}, // keep\n  {"name": "b"}\n]'
    after = '[\n  {"name": "a", /* port */ "port": 2}, // keep\n  {"name": "b"}\n]'
    assert edits.update(jsonc.parse(before), [{"name": "a", "port": 2}, {"name": "b"}]) == after


def test_namesakes_that_stay_are_not_mixed_up() -> None:
    before = '[{"name": "x", "v": 1}, {"name": "gone"}, {"name": "x", "v": 2}, {"name": "x", /* 3 */ "v": 3}]'
    wanted = [{"name": "x", "v": 1}, {"name": "x", "v": 2}, {"name": "x", "v": 3}]
    after = '[{"name": "x", "v": 1}, {"name": "x", "v": 2}, {"name": "x", /* 3 */ "v": 3}]'
    assert edits.update(jsonc.parse(before), wanted) == after
