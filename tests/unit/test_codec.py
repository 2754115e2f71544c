"""Strict JSON of any value: what survives exactly, what is described, and that nothing raises."""

import enum
import json
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from raytrain_debug.run import codec


class Level(enum.IntEnum):
    HIGH = 3


class Name(str, enum.Enum):
    TRAIN = "train"


class Colour(enum.Enum):
    RED = 1


class Count(int):
    pass


class Unprintable:
    def __repr__(self):
        raise RuntimeError("no")


def strict(text):
    """What a strict parser makes of `text`; fails on NaN literals."""

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda children: st.lists(children, max_size=4) | st.dictionaries(st.text(), children, max_size=4),
    max_leaves=20,
)


def same(one, other):
    if isinstance(one, float) and math.isnan(one):
        return isinstance(other, float) and math.isnan(other)
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    if isinstance(one, list):
        return isinstance(other, list) and len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and one == other


@given(json_values)
def test_json_values_survive_a_round_trip_with_nan_and_infinities(value):
    text = codec.dumps(value)
    strict(text)
    assert "\n" not in text
    assert same(codec.loads(text), value)
    assert same(codec.loads(codec.dumps(codec.plain(value))), value)


@given(st.text(st.characters(categories=["Cs", "L"])))
def test_lone_surrogates_survive_and_encode_as_utf8(name):
    text = codec.dumps({"file": name})
    assert codec.loads(text.encode("utf-8")) == {"file": name}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (torch.tensor(1.5), 1.5),
        (torch.ones(1, 1, requires_grad=True), 1.0),
        (torch.tensor(True), True),
        (torch.tensor(2.5, dtype=torch.bfloat16), 2.5),
        (torch.nn.Parameter(torch.tensor(4.0)), 4.0),
        (np.float32(0.5), 0.5),
        (np.int64(2**60 + 1), 2**60 + 1),
        (np.bool_(False), False),
        (np.array([[7]]), 7),
        (2**80 + 1, 2**80 + 1),
        (Level.HIGH, 3),
        (Name.TRAIN, "train"),
        (Count(4), 4),
        ((1, 2), [1, 2]),
        ({1: "a", None: "b", False: "c", 2.5: "d"}, {"1": "a", "null": "b", "false": "c", "2.5": "d"}),
        ({1: "a", "1": "b"}, {"1": "a", "1 (str)": "b"}),
    ],
)
def test_what_is_a_number_or_text_at_heart_is_written_as_one(value, expected):
    written = codec.loads(codec.dumps(codec.plain(value)))
    assert written == expected
    assert type(written) is type(expected)


def test_numpy_and_tensor_nan_are_nan_again():
    written = codec.loads(codec.dumps({"a": np.float32("nan"), "b": torch.tensor(-math.inf), "c": np.float64("inf")}))
    assert math.isnan(written["a"])
    assert (written["b"], written["c"]) == (-math.inf, math.inf)


def test_a_tensor_of_several_elements_is_described_by_shape_and_dtype():
    described = codec.plain({"grad": torch.zeros(2, 3), "scores": np.zeros(100_000, dtype=np.int16)})
    assert described["grad"]["shape"] == [2, 3]
    assert described["grad"]["dtype"] == "torch.float32"
    assert described["scores"]["$type"] == "numpy.ndarray"
    assert described["scores"]["shape"] == [100_000]
    assert len(codec.dumps(described)) < 1000


@pytest.mark.parametrize(
    "value",
    [
        Unprintable(),
        Fraction(1, 3),
        Colour.RED,
        {1, 2},
        b"bytes",
        object,
        pytest.param(10**6000, id="integer of 6000 digits"),
        torch.tensor(1j),
        torch.zeros(1, device="meta"),
        np.datetime64("2020-01-01"),
        {Unprintable(): 1},
        [Unprintable()],
        {"loop": None},
    ],
)
def test_what_json_cannot_hold_is_described_and_never_raises(value):
    if isinstance(value, dict) and "loop" in value:
        value["loop"] = [value, value]
    for text in (codec.dumps(value), codec.dumps({"key": [value]}), codec.dumps(codec.plain(value))):
        strict(text)


def test_a_failing_repr_names_its_error():
    assert codec.described(Unprintable())["repr"] == "<repr failed: RuntimeError>"


def test_containers_that_hold_themselves_many_times_stay_small():
    knot = []
    knot.extend([knot] * 50)
    assert len(codec.dumps(knot)) < 100_000


def test_bounds_keep_a_line_small_whatever_is_reported():
    value = {"loss": 0.5, "history": list(range(1_000_000)), "log": "x" * 1_000_000, "set": set(range(1_000_000))}
    written = codec.plain(value, max_items=10_000, max_text=10_000)
    assert written["loss"] == 0.5
    assert written["history"]["length"] == 1_000_000
    assert written["log"]["length"] == 1_000_000
    assert len(codec.dumps(written)) < 2_000


def test_bounds_count_all_containers_together():
    value = [list(range(600)) for _ in range(100)]
    assert len(codec.dumps(codec.plain(value, max_items=1_000))) < 30_000


def test_a_users_own_float_mark_is_left_alone():
    value = {"$float": "a lot"}
    assert codec.loads(codec.dumps(value)) == value


@pytest.mark.parametrize("text", ["NaN", "[1,", '{"a": Infinity}', b"\xff", ""])
def test_text_that_is_not_strict_json_is_refused(text):
    with pytest.raises(ValueError):  # noqa: PT011
        codec.loads(text)


def test_an_error_is_named_by_its_type():
    assert codec.error(DeprecationWarning("old")) == {"$error": "DeprecationWarning"}
    assert codec.error(json.JSONDecodeError("x", "", 0)) == {"$error": "json.decoder.JSONDecodeError"}
