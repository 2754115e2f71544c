"""Statistics of tensors against plain arithmetic on the same numbers."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from raytrain_debug.postmortem import tensors
from raytrain_debug.postmortem.tensors import counting_threads, statistics

FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2]
SIGNED = [torch.int8, torch.int16, torch.int32, torch.int64]
UNSIGNED = [torch.uint8, torch.uint16, torch.uint32, torch.uint64]


@pytest.fixture
def small_pieces(monkeypatch):
    """Pieces of 8 elements, so that small tensors are cut like large ones."""
    monkeypatch.setattr(tensors, "PIECE", 8)


def told_plainly(values):
    """(min, max, mean, std, norm) of a list of finite numbers, by the book."""
    if not values:
        return None, None, None, None, 0.0
    mean = math.fsum(values) / len(values)
    squares = math.fsum((value - mean) ** 2 for value in values)
    std = math.sqrt(squares / (len(values) - 1)) if len(values) > 1 else None
    return min(values), max(values), mean, std, math.sqrt(math.fsum(value * value for value in values))


def assert_told(found, values):
    low, high, mean, std, norm = told_plainly(values)
    assert (found.min, found.max) == (low, high)
    assert found.mean == (None if mean is None else pytest.approx(mean, rel=1e-12, abs=1e-12))
    assert found.std == (None if std is None else pytest.approx(std, rel=1e-12, abs=1e-12))
    assert found.norm == pytest.approx(norm, rel=1e-12)
    assert found.zeros == sum(value == 0 for value in values)


@pytest.mark.parametrize("dtype", FLOATS + SIGNED, ids=str)
def test_every_signed_dtype_is_told_by_its_own_values(small_pieces, dtype):
    tensor = torch.tensor([[1, -3, 0, 7], [2, 2, -8, 5], [0, 1, 1, 6]]).to(dtype)
    found = statistics(tensor)
    assert (found.shape, found.dtype, found.nan, found.inf) == ((3, 4), str(dtype).removeprefix("torch."), 0, 0)
    assert_told(found, tensor.to(torch.float64).flatten().tolist())
    assert isinstance(found.min, float if dtype in FLOATS else int)


@pytest.mark.parametrize("dtype", UNSIGNED, ids=str)
def test_unsigned_integers_keep_their_largest_value(small_pieces, dtype):
    top = 2 ** (8 * dtype.itemsize) - 1
    tensor = torch.tensor([0, 3, 0, -1, *range(10)]).to(dtype)  # -1 wraps to the largest
    found = statistics(tensor)
    assert (found.min, found.max, found.zeros) == (0, top, 3)
    assert found.mean == pytest.approx((top + 3 + 45) / 14)


def test_integers_that_float64_cannot_hold_are_exact():
    found = statistics(torch.tensor([2**63 - 1, -(2**63) + 1]))
    assert (found.min, found.max) == (-(2**63) + 1, 2**63 - 1)


def test_bool_counts_as_zero_and_one():
    found = statistics(torch.tensor([True, False, True, True]))
    assert (found.min, found.max, found.mean, found.zeros) == (0, 1, 0.75, 1)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(width=32) | st.sampled_from([0.0, math.nan, math.inf, -math.inf]), max_size=40))
def test_any_floats_are_told_by_their_finite_values(values):
    before, tensors.PIECE = tensors.PIECE, 8
    try:
        found = statistics(torch.tensor(values, dtype=torch.float32))
    finally:
        tensors.PIECE = before
    assert found.nan == sum(map(math.isnan, values))
    assert found.inf == sum(map(math.isinf, values))
    bad = [at for at, value in enumerate(values) if not math.isfinite(value)]
    assert found.first_bad == ((bad[0],) if bad else None)
    assert_told(found, [value for value in values if math.isfinite(value)])


def test_a_small_spread_around_a_large_mean_is_not_lost():
    tensor = torch.randn(1_000_000, dtype=torch.float64) + 1e8
    found = statistics(tensor)
    assert found.std == pytest.approx(float(tensor.std()), rel=1e-9)
    assert found.mean == pytest.approx(float(tensor.mean()), rel=1e-14)


def test_values_whose_sum_overflows_have_a_mean():
    found = statistics(torch.full((100,), 1.7e308, dtype=torch.float64))
    assert found.mean == pytest.approx(1.7e308)
    assert (found.nan, found.inf, found.first_bad) == (0, 0, None)


@pytest.mark.parametrize("tensor", [torch.empty(0), torch.empty(3, 0, 2), torch.empty(0, 5).expand(0, 5)])
def test_an_empty_tensor_has_no_values(tensor):
    found = statistics(tensor)
    assert (found.min, found.max, found.mean, found.std, found.norm) == (None, None, None, None, 0.0)
    assert (found.zeros, found.nan, found.inf, found.note) == (0, 0, 0, "")


def test_a_scalar_has_a_mean_and_no_spread():
    found = statistics(torch.tensor(2.5))
    assert (found.shape, found.min, found.mean, found.std) == ((), 2.5, 2.5, None)
    assert statistics(torch.tensor(math.nan)).first_bad == ()


def test_all_bad_leaves_nothing_to_average():
    found = statistics(torch.full((4,), math.inf))
    assert (found.min, found.mean, found.std, found.inf) == (None, None, None, 4)


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x,
        lambda x: x.permute(2, 0, 1),
        lambda x: x.transpose(0, 1),
        lambda x: x[:, 1:, ::2],
        lambda x: x[1],
        lambda x: x[:, :, 3],
        lambda x: x.flip(0),
        lambda x: x.unsqueeze(1).expand(5, 7, 6, 4),
    ],
    ids=["whole", "permuted", "transposed", "sliced", "row", "column", "flipped", "expanded"],
)
def test_first_bad_index_is_the_views_own(small_pieces, view):
    base = torch.arange(5 * 6 * 4, dtype=torch.float32).reshape(5, 6, 4)
    for at in (17, 18, 31, 45, 46, 47, 90, 119):
        base.view(-1)[at] = math.nan if at % 2 else math.inf
    tensor = view(base)
    bad = (~torch.isfinite(tensor)).nonzero().tolist()
    found = statistics(tensor)
    assert found.first_bad == tuple(bad[0])
    assert found.nan + found.inf == len(bad)
    finite = tensor[torch.isfinite(tensor)].to(torch.float64)
    assert_told(found, finite.tolist())


def test_a_vast_expanded_tensor_costs_only_what_it_stores():
    found = statistics(torch.tensor([[1.0], [3.0]]).expand(2, 10**12))
    assert (found.mean, found.min, found.max, found.zeros) == (2.0, 1.0, 3.0, 0)
    assert found.std == pytest.approx(1.0)


def test_complex_numbers_have_a_norm_and_no_order(small_pieces):
    tensor = torch.complex(torch.randn(5, 7), torch.randn(5, 7))
    tensor[1, 2] = complex(math.nan, 1)
    tensor[3, 3] = complex(0, -math.inf)
    tensor[4, 0] = 0
    found = statistics(tensor.conj())
    assert (found.min, found.max, found.mean) == (None, None, None)
    assert (found.nan, found.inf, found.first_bad, found.zeros) == (1, 1, (1, 2), 1)
    finite = tensor[torch.isfinite(tensor)].to(torch.complex128)
    assert found.norm == pytest.approx(float(torch.linalg.vector_norm(finite)))
    assert found.std == pytest.approx(float(finite.std()))


@pytest.mark.parametrize("layout", ["to_sparse_coo", "to_sparse_csr", "to_sparse_csc"])
def test_zeros_that_a_sparse_tensor_does_not_store_count(layout):
    dense = torch.zeros(4, 6)
    dense[1, 5], dense[2, 0], dense[3, 3] = -2.0, 4.0, math.nan
    found = statistics(getattr(dense, layout)())
    assert (found.shape, found.min, found.max, found.zeros) == ((4, 6), -2.0, 4.0, 21)
    assert (found.nan, found.first_bad) == (1, (3, 3))
    assert found.mean == pytest.approx(2.0 / 23)
    assert "sparse: 3 of 24" in found.note


def test_quantized_values_are_those_they_stand_for():
    found = statistics(torch.quantize_per_tensor(torch.tensor([-1.0, 0.0, 0.5]), 0.5, 0, torch.qint8))
    assert (found.dtype, found.min, found.max, found.zeros) == ("qint8", -1.0, 0.5, 1)
    assert "quantized" in found.note


@pytest.mark.parametrize(
    ("tensor", "note"),
    [
        (torch.empty(3, device="meta"), "meta"),
        (torch.empty(4, dtype=torch.float4_e2m1fn_x2), "no statistics"),
        (torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "nested"),
    ],
    ids=["meta", "float4", "nested"],
)
def test_what_has_no_numbers_says_so(tensor, note):
    found = statistics(tensor)
    assert note in found.note
    assert (found.min, found.nan, found.zeros) == (None, None, None)


def test_threads_count_the_same_and_torchs_own_come_back():
    torch.manual_seed(0)
    tensor = torch.randn(1500, 2003).T
    tensor[1990, 3] = math.nan
    before = torch.get_num_threads()
    with counting_threads() as threads:
        found = statistics(tensor, None, threads)
    assert torch.get_num_threads() == before
    alone = statistics(tensor)
    assert (found.first_bad, found.zeros, found.min, found.max) == ((1990, 3), alone.zeros, alone.min, alone.max)
    assert found.std == pytest.approx(alone.std, rel=1e-12)


def test_each_element_is_released_once_and_left_as_it_was(small_pieces):
    tensor = torch.arange(100.0, dtype=torch.float64).reshape(4, 25).T.requires_grad_()
    before = tensor.detach().clone()
    released = []
    statistics(tensor, released.append)
    assert sorted(value for piece in released for value in piece.flatten().tolist()) == [float(at) for at in range(100)]
    assert torch.equal(tensor.detach(), before)
