"""Contexts of many ranks, told once."""

import math

from raytrain_debug.postmortem.contexts import shared


def test_what_all_have_in_common_comes_first_then_the_rest_of_each_equal_ones_together():
    contexts = {
        0: {"world_size": 4, "node": 0, "odd": math.nan},
        2: {"world_size": 4, "node": 1, "odd": math.nan},
        3: {"world_size": 4, "node": 1, "odd": math.nan},
        5: {"world_size": 4, "node": 0, "odd": math.nan},
    }
    (everybody, common), *own = shared(contexts)
    assert (everybody, list(common)) == ([0, 2, 3, 5], ["world_size", "odd"])
    assert own == [([0, 5], {"node": 0}), ([2, 3], {"node": 1})]


def test_what_holds_nothing_is_left_out():
    assert shared({}) == []
    assert shared({0: {"a": 1}, 1: {"a": 1}}) == [([0, 1], {"a": 1})]
    assert shared({0: {"a": 1}, 1: {}}) == [([0], {"a": 1})]
