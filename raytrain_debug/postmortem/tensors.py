"""What the numbers of a tensor tell: its range, mean and spread, zeros, NaN and infinities, how its values spread.

A tensor is read piece by piece in the order in which it lies in memory, so that a mapped file is read once and never
held whole. Sums are kept in float64 and merged so that neither a large mean nor a huge value spoils them.

Pieces are spread over threads of ours, not torch's: its threads meet after every operation, and on a machine that is
busy with something else each meeting waits for a time slice (measured: 20 times slower).
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch

from raytrain_debug.postmortem.histogram import Counter, Histogram
from raytrain_debug.postmortem.pieces import Piece, as_stored, batches, cut, first_index

PIECE = 1 << 18
"""Elements looked at in one go: few enough for the processor's cache, many enough beside the cost of each call."""

_BATCH = 8
"""Pieces that one thread counts before it asks for more."""

_EXACT = 1 << 20
"""Of tensors with more elements than this only every `_EVERY`-th goes into the histogram, or it would take longest."""

_EVERY = 61
"""A prime, so that the rows of a matrix do not keep step with it."""

_SPREAD = 1e-3
"""Above this share of the sum of squares the sum of squared deviations is their difference, right to 13 digits."""

Release = Callable[[torch.Tensor], None]
"""Told about each piece that was counted; a reader of mapped files gives its pages back then."""


@dataclass(frozen=True)
class TensorStatistics:
    """A tensor in numbers, over its finite elements; what cannot be told is None, and `note` says why.

    `std` is the sample's (n - 1), as `torch.std`; `norm` is the Euclidean one. Complex tensors have no min, max and
    mean. `nan` counts elements that are NaN (in a complex number: either part), `inf` the other ones that are not
    finite; `first_bad` is the index of the first of both. Complex tensors have no histogram either.
    """

    shape: tuple[int, ...]
    dtype: str
    min: float | int | None = None
    max: float | int | None = None
    mean: float | None = None
    std: float | None = None
    norm: float | None = None
    zeros: int | None = None
    nan: int | None = None
    inf: int | None = None
    first_bad: tuple[int, ...] | None = None
    note: str = ""
    histogram: Histogram | None = None


@contextmanager
def counting_threads() -> Iterator[Executor]:
    """Threads for `statistics`; torch's own are off meanwhile, in this process."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(min(os.cpu_count() or 1, 4), "statistics") as threads:
            yield threads
    finally:
        torch.set_num_threads(before)


def statistics(
    tensor: torch.Tensor, release: Release | None = None, threads: Executor | None = None
) -> TensorStatistics:
    """The statistics of `tensor`, of any shape, dtype, layout and device.

    Needs memory for one piece a thread, unless the tensor is sparse or quantized. `release` is called with each piece
    that was counted (a view of `tensor`). Never raises for an odd tensor: `note` then says what could not be done.
    """
    dtype = str(tensor.dtype).removeprefix("torch.")
    if tensor.is_nested:
        return TensorStatistics((), dtype, note="a nested tensor: no statistics")
    blank = TensorStatistics(tuple(tensor.shape), dtype)
    if tensor.is_meta:
        return replace(blank, note="a meta tensor: it has no data")
    try:
        totals, note = _count(tensor.detach(), release, threads)
    except (RuntimeError, TypeError, ValueError) as error:
        return replace(blank, note=f"no statistics: {(str(error).strip().splitlines() or [''])[0][:200]}")
    return totals.into(blank, note)


def statistics_of_parts(
    shape: tuple[int, ...],
    dtype: torch.dtype,
    parts: Iterable[tuple[tuple[int, ...], torch.Tensor]],
    threads: Executor | None = None,
) -> TensorStatistics:
    """The statistics of a tensor of that shape whose parts come one after the other, each with the index it begins at.

    Elements that no part has count as nothing, and `note` tells of them. Raises what `parts` raises.
    """
    whole = _Totals(dtype.is_complex, math.prod(shape))
    seen = 0
    for begin, part in parts:
        totals = _count_strided(part.detach(), None, threads, math.prod(shape))
        if totals.first_bad is not None:
            totals.first_bad = tuple(at + offset for at, offset in zip(totals.first_bad, begin, strict=True))
        whole.merge(totals)
        seen += part.numel()
    note = "" if seen == math.prod(shape) else f"only {seen} of {math.prod(shape)} elements are stored"
    return whole.into(TensorStatistics(tuple(shape), str(dtype).removeprefix("torch.")), note)


def _count(tensor: torch.Tensor, release: Release | None, threads: Executor | None) -> tuple[_Totals, str]:
    """The totals of a tensor that has data, and what is to be said about them."""
    if tensor.layout != torch.strided:
        tensor = tensor.to_sparse_coo().coalesce()
        values = tensor.values()
        totals = _count_strided(values, None, threads)
        totals.add_zeros(tensor.numel() - values.numel())
        if totals.first_bad is not None:
            at, *inside = totals.first_bad
            totals.first_bad = (*tensor.indices()[:, at].tolist(), *inside)
        return totals, f"sparse: {values.numel()} of {tensor.numel()} values stored"
    if tensor.is_quantized:
        return _count_strided(tensor.dequantize(), None, threads), "quantized: statistics of the values it stands for"
    return _count_strided(tensor, release, threads), ""


def _count_strided(
    tensor: torch.Tensor, release: Release | None, threads: Executor | None, elements: int | None = None
) -> _Totals:
    """The totals of a dense tensor, which may be a part of one with `elements` elements."""
    view, dims, repeats = as_stored(tensor)
    in_order = dims == sorted(dims)
    elements = view.numel() if elements is None else elements

    def count(batch: list[Piece]) -> _Totals:
        totals = _Totals(tensor.is_complex(), elements)
        for start, piece in batch:
            bad = totals.add(piece)
            if bad is not None and (totals.first_bad is None or not in_order):
                totals.found_bad(first_index(bad, start, dims, tuple(tensor.shape)))
            if release is not None:
                release(piece)
        totals.settle()
        return totals

    pieces = batches(cut(view, PIECE), _BATCH)
    several = threads is not None and view.numel() > _BATCH * PIECE
    whole = _Totals(tensor.is_complex(), elements)
    for totals in threads.map(count, pieces) if several and threads else map(count, pieces):
        whole.merge(totals)
    whole.repeat(repeats)
    return whole


class _Totals:
    """Running sums over pieces of a tensor of `elements`; complex numbers count as two real parts."""

    def __init__(self, is_complex: bool, elements: int) -> None:
        self.parts = (_Moments(), _Moments()) if is_complex else (_Moments(),)
        self.low: float | int | None = None
        self.high: float | int | None = None
        self.zeros = self.nan = self.inf = 0
        self.first_bad: tuple[int, ...] | None = None
        self.counter = Counter()
        self.samples: list[torch.Tensor] = []
        self.every = 1 if elements <= _EXACT else _EVERY

    def add(self, piece: torch.Tensor) -> torch.Tensor | None:
        """Count a piece; the mask of its NaN and infinite elements, in the piece's shape, or None without any."""
        values = _computable(piece.cpu().reshape(-1))
        low, high = _extremes(values)
        bad = None
        # A NaN or an infinity shows in the extremes: the masks, which cost more than all else, are made only then.
        if not (math.isfinite(low) and math.isfinite(high)):
            fine = torch.isfinite(values)
            nan = int(torch.isnan(values).sum())
            self.nan += nan
            self.inf += values.numel() - int(fine.sum()) - nan
            bad = ~fine.reshape(piece.shape)
            values = values[fine]
            if values.numel() == 0:
                return bad
            low, high = _extremes(values)
        wide = _widened(values)
        if low <= 0 <= high:
            self.zeros += _zeros(values, wide)
        if not values.is_complex():
            self._limits(low, high)
            self.samples.append(wide[0][:: self.every].clone())
        for moments, part in zip(self.parts, wide, strict=True):
            moments.add(part)
        return bad

    def settle(self) -> None:
        """Count what goes into the histogram: all at once, as many small counts would cost more."""
        if self.samples and self.low is not None and self.high is not None:
            self.counter.add(torch.cat(self.samples), float(self.low), float(self.high))
            self.samples.clear()

    def found_bad(self, index: tuple[int, ...]) -> None:
        """An element at `index` is NaN or infinite."""
        self.first_bad = index if self.first_bad is None else min(index, self.first_bad)

    def merge(self, other: _Totals) -> None:
        """Count what `other` counted."""
        self.zeros, self.nan, self.inf = self.zeros + other.zeros, self.nan + other.nan, self.inf + other.inf
        if other.low is not None and other.high is not None:
            self._limits(other.low, other.high)
        if other.first_bad is not None:
            self.found_bad(other.first_bad)
        self.counter.merge(other.counter)
        for mine, its in zip(self.parts, other.parts, strict=True):
            mine.merge(its.count, its.mean, its.squares)

    def add_zeros(self, count: int) -> None:
        """Count zeros that a sparse tensor does not store."""
        if count:
            self.zeros += count
            if len(self.parts) == 1:
                self._limits(0, 0)
                self.counter.add_equal(0.0, count)
            for moments in self.parts:
                moments.merge(count, 0.0, 0.0)

    def repeat(self, times: int) -> None:
        """Count everything so far as often as an expanded tensor shows it."""
        self.zeros, self.nan, self.inf = self.zeros * times, self.nan * times, self.inf * times
        self.counter.repeat(times)
        for moments in self.parts:
            moments.count, moments.squares = moments.count * times, moments.squares * times

    def into(self, blank: TensorStatistics, note: str) -> TensorStatistics:
        """`blank` with these totals filled in."""
        count = self.parts[0].count
        squares = sum(moments.squares for moments in self.parts)
        energy = squares + sum(moments.count * moments.mean * moments.mean for moments in self.parts)
        return replace(
            blank,
            min=self.low,
            max=self.high,
            mean=_finite(self.parts[0].mean) if count and len(self.parts) == 1 else None,
            std=_finite(math.sqrt(squares / (count - 1))) if count > 1 else None,
            norm=_finite(math.sqrt(energy)),
            zeros=self.zeros,
            nan=self.nan,
            inf=self.inf,
            first_bad=self.first_bad,
            note=note,
            histogram=self.counter.histogram(self.every),
        )

    def _limits(self, low: float | int, high: float | int) -> None:
        self.low = low if self.low is None else min(self.low, low)
        self.high = high if self.high is None else max(self.high, high)


class _Moments:
    """Count, mean and sum of squared deviations of real numbers; those of parts merge into those of the whole."""

    def __init__(self) -> None:
        self.count = 0
        self.mean = 0.0
        self.squares = 0.0

    def add(self, values: torch.Tensor) -> None:
        """Count float64 `values`; may overwrite them."""
        count, total = values.numel(), float(values.sum())
        mean = total / count if math.isfinite(total) else float((values / count).sum())
        whole = float(torch.dot(values, values))
        squares = whole - mean * total
        if not squares > _SPREAD * whole:
            # Their spread is small beside their size: the difference of two large sums would have lost it.
            values.sub_(mean)
            squares = float(torch.dot(values, values))
        self.merge(count, mean, squares)

    def merge(self, count: int, mean: float, squares: float) -> None:
        """Count `count` numbers of this mean and sum of squared deviations."""
        if count == 0:
            return
        total = self.count + count
        apart = mean - self.mean
        self.mean += apart * (count / total)
        self.squares += squares + apart * apart * (self.count * (count / total))
        self.count = total


class _Scratch(threading.local):
    """Memory of this thread that every piece uses again: fresh memory costs as much as the arithmetic in it."""

    def __init__(self) -> None:
        self.buffers: dict[str, torch.Tensor] = {}

    def take(self, use: str, count: int, dtype: torch.dtype) -> torch.Tensor:
        """`count` elements for `use`, which always has the same dtype; good until the next `take` for it."""
        buffer = self.buffers.get(use)
        if buffer is None or buffer.numel() < count:
            buffer = self.buffers[use] = torch.empty(count, dtype=dtype)
        return buffer[:count]


_scratch = _Scratch()


def _computable(values: torch.Tensor) -> torch.Tensor:
    """`values` in a dtype that torch can do arithmetic in; no copy where it can already."""
    dtype = values.dtype
    if dtype is torch.complex32:
        return values.to(torch.complex64)
    if dtype.is_floating_point and dtype.itemsize < 4:
        return _scratch.take("values", values.numel(), torch.float32).copy_(values)
    return values.resolve_conj().resolve_neg()


def _widened(values: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Copies in float64, ours to overwrite; of complex values the real and the imaginary parts apart."""
    if values.is_complex():
        return tuple(part.to(torch.float64, copy=True) for part in torch.view_as_real(values).unbind(-1))
    return (_scratch.take("wide", values.numel(), torch.float64).copy_(values),)


def _zeros(values: torch.Tensor, wide: tuple[torch.Tensor, ...]) -> int:
    """How many numbers are zero in all their parts."""
    # Not `count_nonzero`: it branches on every float and is 10 times slower where zeros come at random.
    if values.dtype is torch.float32:
        return int(torch.eq(values, 0, out=_scratch.take("marks", values.numel(), torch.float32)).sum())
    marks = [torch.eq(part, 0, out=torch.empty_like(part)) for part in wide]
    return int(marks[0].sum() if len(marks) == 1 else torch.dot(*marks))


def _extremes(values: torch.Tensor) -> tuple[float | int, float | int]:
    """The smallest and the largest number, exact also for integers that float64 cannot hold; NaN when there is one.

    Of complex values: of all their parts.
    """
    if values.dtype is torch.uint64:
        # Compared as signed integers, shifted down by 2**63 so that their order stays: there is no larger type.
        low, high = (values.view(torch.int64) ^ torch.iinfo(torch.int64).min).aminmax()
        return int(low) + (1 << 63), int(high) + (1 << 63)
    if values.is_complex():
        values = torch.view_as_real(values)
    elif values.dtype in (torch.bool, torch.uint16, torch.uint32):
        values = values.to(torch.int64)
    if values.is_floating_point():
        return float(values.amin()), float(values.amax())  # each alone: twice as fast as `aminmax`
    low, high = values.aminmax()
    return int(low), int(high)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
