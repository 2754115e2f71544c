"""Values of a script as a core describes them: what they are, within bounds, whatever their own code does."""

from __future__ import annotations

import argparse
import collections
import dataclasses
import enum
import math
import time

import numpy
import pytest
import torch

from raytrain_debug.run import codec
from raytrain_debug.run.records import Described, from_dict, to_sparse_dict
from raytrain_debug.shim.values import FULL, SHALLOW, Describer


def described(value, detail=FULL, **bounds) -> Described:
    with Describer(bounds.pop("seconds", 5.0), **bounds) as describer:
        return describer.value(value, detail)


class Point:
    def __init__(self, x: float, y: float) -> None:
        self.x, self._y = x, y


class Slotted:
    __slots__ = ("full", "unset")

    def __init__(self) -> None:
        self.full = 1


@dataclasses.dataclass
class Batch:
    images: torch.Tensor
    size: int


class Colour(enum.Enum):
    RED = 1


@pytest.mark.parametrize(
    ("value", "kind", "text", "plain"),
    [
        (None, "number", "None", None),
        (True, "number", "True", True),
        (3, "number", "3", 3),
        (math.inf, "number", "inf", math.inf),
        (1 + 2j, "number", "(1+2j)", None),
        (numpy.float64(0.5), "number", "0.5", 0.5),
        ("a\nb", "text", r"'a\nb'", "a\nb"),
        (b"ab", "bytes", "b'ab'", None),
        ([1, "a"], "sequence", "[1, 'a']", None),
        ((1,), "sequence", "(1,)", None),
        ({1}, "set", "{1}", None),
        ({"lr": 0.1, 2: []}, "mapping", "{'lr': 0.1, 2: []}", None),
        (collections.OrderedDict(a=1), "mapping", "OrderedDict({'a': 1})", None),
        (collections.deque([1]), "sequence", "deque([1])", None),
        (Colour.RED, "other", "<Colour.RED: 1>", None),
        (argparse.Namespace(lr=1), "object", "Namespace(lr=1)", None),
        (slice(1, 2), "other", "slice(1, 2, None)", None),
        (torch.float32, "other", "torch.float32", None),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_a_plain_value_is_told_as_python_writes_it(value, kind, text, plain):
    found = described(value)
    assert (found.kind, found.text, found.value) == (kind, text, plain)


def test_a_long_text_keeps_its_beginning_and_its_length():
    found = described("x" * 10_000)
    assert found.length == 10_000
    assert found.value == "x" * FULL.characters
    assert len(found.text) <= 200


def test_an_integer_that_python_refuses_to_print_is_told_by_its_size():
    assert described(10**5000).text == "<integer of 16,610 bits>"


def test_items_of_a_mapping_are_named_by_the_reprs_of_their_keys():
    found = described({"lr": 0.1, 1: "a", "1": "b", (1, 2): "c"})
    assert {name: item.value for name, item in found.items.items()} == {
        "'lr'": 0.1,
        "1": "a",
        "'1'": "b",
        "(1, 2)": "c",
    }
    assert found.length == 4


def test_an_object_shows_its_attributes_public_ones_first_and_its_slots():
    assert list(described(Point(1.0, 2.0)).items) == ["x", "_y"]
    assert {name: item.value for name, item in described(Slotted()).items.items()} == {"full": 1}


def test_a_dataclass_and_a_namedtuple_are_told_by_their_fields_without_printing_tensors():
    batch = described(Batch(torch.zeros(1000, 1000), 3))
    assert batch.kind == "object"
    assert batch.text == "Batch(images=float32 [1000 × 1000]: 0 … 0, mean 0, size=3)"
    pair = collections.namedtuple("Pair", "a b")(1, 2)
    assert (described(pair).kind, described(pair).text, list(described(pair).items)) == (
        "object",
        "Pair(a=1, b=2)",
        ["a", "b"],
    )


def test_a_subclass_does_not_run_its_own_container_methods():
    class Loud(dict):
        def items(self):
            raise AssertionError("its own items() was called")

        __iter__ = __len__ = __getitem__ = items

    found = described(Loud(a=1))
    assert (found.length, found.items["'a'"].value) == (1, 1)


def test_a_value_that_contains_itself_ends():
    loop: list[object] = [1]
    loop.append(loop)
    assert described(loop).text == "[1, <itself>]"


def test_a_big_container_keeps_some_parts_of_each_branch():
    found = described({outer: {inner: list(range(50)) for inner in range(100)} for outer in range(1000)})

    def count(value: Described) -> int:
        return 1 + sum(map(count, value.items.values()))

    assert found.length == 1000
    assert len(found.items) == 100
    assert count(found) <= FULL.room + 1
    assert all(item.items for item in found.items.values())
    assert described([[1, [2, [3, [4]]]]], SHALLOW).items["0"].items["1"].items == {}


def test_all_values_together_are_bounded_and_it_says_so():
    with Describer(5.0, values=50) as describer:
        found = describer.variables({f"v{number}": [number] * 20 for number in range(20)})
        assert describer.exhausted
    assert found["v0"].length == 20
    assert found["v19"].text == "<left out>"


def test_a_repr_that_raises_is_told():
    class Bad:
        def __repr__(self) -> str:
            raise ValueError("no")

    assert described(Bad()).text.endswith("Bad object, whose repr raised ValueError>")


@pytest.mark.parametrize("stubborn", [False, True])
def test_a_repr_that_never_returns_costs_a_moment_once_and_the_rest_is_told(stubborn):
    class Stuck:
        def __init__(self, number: int) -> None:
            self.number = number

        def __repr__(self) -> str:
            while True:
                try:
                    while not released:
                        time.sleep(0.001)
                    return ""
                except BaseException:
                    if not stubborn:
                        raise

    released: list[bool] = []
    began = time.monotonic()
    try:
        with Describer(5.0) as describer:
            found = describer.variables({"before": 1, **{f"s{n}": Stuck(n) for n in range(10)}, "after": 2})
        took = time.monotonic() - began
    finally:
        released.append(True)
    assert (found["before"].value, found["after"].value) == (1, 2)
    assert found["s9"].text.endswith("whose repr takes too long>")
    assert found["s9"].items["number"].value == 9
    assert took < 5


def test_a_repr_says_the_same_in_two_processes_on_one_line():
    class Where:
        def __repr__(self) -> str:
            return f"<thing\n  at {hex(id(self))}>"

    assert described(Where()).text == "<thing>"


def test_a_tensor_is_told_by_shape_dtype_statistics_and_its_first_bad_element():
    tensor = torch.arange(64 * 3, dtype=torch.float32).reshape(64, 3).requires_grad_()
    with torch.no_grad():
        tensor[3, 1] = math.nan
        tensor[5, 0] = math.inf
    found = described(tensor)
    facts = found.tensor
    assert facts is not None
    assert (found.kind, facts.shape, facts.dtype, facts.device) == ("tensor", (64, 3), "float32", "cpu")
    assert (facts.min, facts.max, facts.nan, facts.inf, facts.first_bad) == (0.0, 191.0, 1, 1, (3, 1))
    assert facts.requires_grad
    assert "1 NaN" in found.text


def test_statistics_in_a_core_are_those_that_torch_gives():
    values = torch.cat([torch.randn(100, generator=torch.Generator().manual_seed(0)).double(), torch.tensor([1e8])])
    facts = described(values).tensor
    assert facts is not None
    assert facts.std == pytest.approx(values.std().item(), rel=1e-9)
    whole = described(torch.tensor([2**60 + 1, 2**60 + 3] * 20)).tensor
    assert whole is not None
    assert (whole.min, whole.max) == (2**60 + 1, 2**60 + 3)


def test_a_complex_or_sparse_tensor_in_a_core_is_told_as_one():
    found = described(torch.tensor([1 + 2j, 3j] * 20)).tensor
    assert found is not None
    assert (found.min, found.max, found.mean) == (None, None, None)
    assert found.std == pytest.approx(torch.tensor([1 + 2j, 3j] * 20).std().item(), rel=1e-6)
    sparse = described(torch.diag(torch.tensor([1.0, 2.0, math.nan, 4.0])).to_sparse())
    assert sparse.tensor is not None
    assert (sparse.tensor.min, sparse.tensor.first_bad) == (0.0, (2, 2))
    assert sparse.tensor.mean == pytest.approx(7 / 15)
    assert sparse.tensor.note == "sparse: 4 of 16 values stored"


def test_one_bad_element_of_a_tensor_too_big_to_count_is_found():
    tensor = torch.zeros(6000, 1001)
    tensor[5999, 17] = math.nan
    facts = described(tensor, seconds=300.0).tensor
    assert facts is not None
    assert facts.looked_at is not None
    assert facts.looked_at < tensor.numel()
    assert facts.first_bad == (5999, 17)


def test_a_tensor_of_one_element_is_a_number_too():
    assert described(torch.tensor(0.5)).value == 0.5
    assert described(torch.tensor([[2]])).value == 2
    assert math.isnan(described(torch.tensor(math.nan)).value)


@pytest.mark.filterwarnings("ignore")  # torch's remarks on what is a prototype or deprecated
@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.empty(3, device="meta"),
        lambda: torch.eye(3).to_sparse(),
        lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
        lambda: torch.ones(3).to(torch.float8_e4m3fn),
        lambda: torch.ones(300, dtype=torch.bfloat16),
        lambda: torch.empty(0, 3),
        lambda: torch.ones(2, dtype=torch.complex64).conj(),
        lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        lambda: torch.nn.parameter.UninitializedParameter(),
    ],
)
def test_an_odd_tensor_is_described_all_the_same(make):
    tensor = make()
    found = described(tensor)
    assert found.kind in ("tensor", "other")
    assert found.text.startswith(str(tensor.dtype).removeprefix("torch.")) or found.kind == "other"


def test_a_numpy_array_is_told_like_a_tensor():
    found = described(numpy.array([[1.0, math.nan]]))
    assert found.tensor is not None
    assert (found.kind, found.tensor.shape, found.tensor.nan, found.tensor.first_bad) == ("array", (1, 2), 1, (0, 1))


def test_a_module_is_told_by_its_parameters_and_shows_its_parts():
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU())
    found = described(model)
    assert (found.kind, found.parameters, found.text) == ("module", 16, "Sequential of 2 modules, 16 parameters")
    assert found.items["0"].text == "Linear(in_features=3, out_features=4, bias=True), 16 parameters"
    assert found.items["0"].items["weight"].tensor.shape == (4, 3)
    assert found.items["training"].value is True


def test_what_is_described_survives_the_file():
    value = {"a": [1, math.nan, {"b": torch.ones(2)}], "p": Point(1, 2)}
    found = described(value)
    assert repr(from_dict(Described, codec.loads(codec.dumps(to_sparse_dict(found))))) == repr(found)
