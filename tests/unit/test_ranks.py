"""RANKS as people type them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raytrain_debug.errors import UsageError
from raytrain_debug.run.ranks import format_ranks, name_ranks, parse_ranks


@given(st.sets(st.integers(0, 5000)))
def test_what_is_written_is_read_back(ranks):
    text = format_ranks(ranks)
    assert (set(parse_ranks(text)) if ranks else text) == (ranks or "")


@pytest.mark.parametrize(
    ("text", "expected"), [("0", (0,)), ("0,2-3", (0, 2, 3)), (" 3, 1 ,1", (1, 3)), ("7-7", (7,)), ("2,0-2", (0, 1, 2))]
)
def test_numbers_and_spans(text, expected):
    assert parse_ranks(text) == expected


def test_all_needs_the_world_size_to_become_numbers():
    assert parse_ranks("all", 3) == (0, 1, 2)
    assert parse_ranks("all") is None


@pytest.mark.parametrize("text", ["", "a", "-1", "1-", "3-1", "1,,2", "0-9999999", "1.5", "all,1"])
def test_what_names_no_ranks_is_refused_with_a_remedy(text):
    with pytest.raises(UsageError) as caught:
        parse_ranks(text)
    assert caught.value.remedy


def test_a_rank_beyond_the_world_is_named():
    with pytest.raises(UsageError, match="rank 4 is not in this job of 4") as caught:
        parse_ranks("0-4", 4)
    assert "0 to 3" in caught.value.remedy


def test_ranks_are_named():
    assert [name_ranks(ranks) for ranks in ([1], [3, 0, 2], {5, 4})] == ["rank 1", "ranks 0,2-3", "ranks 4-5"]
