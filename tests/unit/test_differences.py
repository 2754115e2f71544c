"""Differences of tensors against plain arithmetic on the same numbers, and digests that tell when there are none."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from raytrain_debug.errors import CheckpointError
from raytrain_debug.postmortem import differences
from raytrain_debug.postmortem.differences import Tolerance, difference, digest

FLOATS = st.floats(width=32) | st.sampled_from([0.0, -0.0, 1.0, math.nan, math.inf, -math.inf])


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    """Pieces of 8 elements, so that small tensors are cut like large ones."""
    monkeypatch.setattr(differences, "PIECE", 8)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(FLOATS, FLOATS), max_size=30))
def test_any_floats_differ_as_their_elements_do(pairs):
    first, second = (torch.tensor([pair[at] for pair in pairs], dtype=torch.float32) for at in (0, 1))
    found = difference(first, second)
    unlike = [(a, b) for a, b in pairs if a != b and not (math.isnan(a) and math.isnan(b))]
    apart = {at: abs(b - a) for at, (a, b) in enumerate(pairs) if math.isfinite(a) and math.isfinite(b)}
    assert found.differing == found.beyond == len(unlike)
    assert found.newly_bad == sum(math.isfinite(a) and not math.isfinite(b) for a, b in pairs)
    assert found.no_longer_bad == sum(math.isfinite(b) and not math.isfinite(a) for a, b in pairs)
    assert found.max_abs == max(apart.values(), default=None)
    if apart:
        assert apart[found.at[0]] == found.max_abs
        assert found.mean_abs == pytest.approx(math.fsum(apart.values()) / len(apart))


@settings(max_examples=100, deadline=None)
@given(st.lists(FLOATS, max_size=30), st.lists(FLOATS, max_size=30))
def test_equal_digests_mean_equal_bits_and_other_bits_other_digests(first, second):
    a, b = (torch.tensor(values, dtype=torch.float32) for values in (first, second))
    same = a.shape == b.shape and torch.equal(a.view(torch.int32), b.view(torch.int32))
    assert (digest(a) == digest(b)) == same


def test_how_a_tensor_lies_in_memory_makes_no_difference():
    tensor = torch.arange(24.0).reshape(4, 6)
    assert digest(tensor.T.contiguous().T) == digest(tensor)
    assert digest(torch.stack([tensor, tensor])[1]) == digest(tensor)
    assert digest(tensor.reshape(6, 4)) != digest(tensor)
    assert digest(tensor.double()) != digest(tensor)
    assert digest(torch.tensor(1.0).expand(10**12)) != digest(torch.tensor(2.0).expand(10**12))


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.int64, torch.uint8, torch.bool, torch.complex64], ids=str
)
def test_every_dtype_has_digests_and_differences(dtype):
    first = torch.tensor([[1, 0, 1], [0, 1, 1]]).to(dtype)
    second = first.clone()
    second[1, 0] = 1
    found = difference(first, second)
    assert digest(first) != digest(second)
    assert (found.differing, found.max_abs, found.at) == (1, 1.0, (1, 0))
    assert difference(first, first.clone()).differing == 0


def test_integers_that_float64_cannot_tell_apart_differ():
    assert difference(torch.tensor([2**62]), torch.tensor([2**62 + 1])).differing == 1


def test_the_relative_change_is_that_of_the_norms():
    first, second = torch.tensor([3.0, 4.0, math.nan]), torch.tensor([3.0, 4.5, 1.0])
    assert difference(first, second).relative == pytest.approx(0.1)
    assert difference(torch.zeros(2), torch.ones(2)).relative is None


def test_the_index_is_the_tensors_own():
    first = torch.zeros(5, 7)
    second = first.clone()
    second[3, 6], second[4, 1] = -2.0, 1.5
    assert difference(first.T, second.T).at == (6, 3)


def test_a_tolerance_counts_what_is_beyond_it():
    first, second = torch.tensor([100.0, 0.0, 1.0, math.inf]), torch.tensor([101.0, 0.005, 2.0, 1.0])
    found = difference(first, second, Tolerance(relative=0.02, absolute=0.01))
    assert (found.differing, found.beyond) == (4, 2)


def test_sparse_tensors_differ_by_their_values():
    dense = torch.zeros(3, 3)
    dense[1, 2] = 4.0
    other = dense.clone()
    other[0, 0] = 1.0
    assert digest(dense.to_sparse()) == digest(dense)
    assert difference(dense.to_sparse(), other.to_sparse_csr()).at == (0, 0)


def test_what_has_no_numbers_says_so():
    with pytest.raises(CheckpointError, match="no numbers"):
        digest(torch.empty(3, device="meta"))
