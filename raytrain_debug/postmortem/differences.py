"""Two tensors held against each other, piece by piece; and a digest that tells whether that is needed."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import torch

from raytrain_debug.errors import CheckpointError
from raytrain_debug.postmortem.pieces import as_stored, cut, first_index
from raytrain_debug.postmortem.tensors import PIECE, Release

_MOST_DENSE = 1 << 28  # elements of a sparse tensor that is written out


@dataclass(frozen=True)
class Tolerance:
    """Numbers a and b count as equal when |b - a| <= absolute + relative * |a|; by default only when they are."""

    relative: float = 0.0
    absolute: float = 0.0


EXACT = Tolerance()


@dataclass(frozen=True)
class Difference:
    """How a tensor differs from a reference of the same shape, element by element; NaN equals NaN.

    `differing` elements are not equal, `beyond` of them by more than the tolerance. `max_abs` is the largest distance
    of two finite elements, at index `at`, `mean_abs` the mean one; `relative` is the norm of the distances over that of
    the reference (None where that is zero). `newly_bad` elements are finite in the reference only, `no_longer_bad` in
    the other only.
    """

    differing: int
    beyond: int
    max_abs: float | None
    at: tuple[int, ...] | None
    mean_abs: float | None
    relative: float | None
    newly_bad: int
    no_longer_bad: int


def digest(tensor: torch.Tensor, release: Release | None = None) -> bytes:
    """16 bytes that are equal for tensors of equal dtype, shape and bits, however they lie in memory."""
    tensor = _dense(tensor)
    found = hashlib.blake2b(f"{tensor.dtype} {tuple(tensor.shape)}".encode(), digest_size=16)
    stored, _, repeats = as_stored(tensor)
    if repeats > 1:
        found.update(b"expanded")  # a vast one may stand for a few numbers
        tensor = stored
    for _, piece in cut(tensor, PIECE):
        found.update(memoryview(piece.contiguous().reshape(-1).view(torch.uint8).numpy()))
        if release is not None:
            release(piece)
    return found.digest()


def difference(
    reference: torch.Tensor,
    other: torch.Tensor,
    tolerance: Tolerance = EXACT,
    releases: tuple[Release | None, Release | None] = (None, None),
) -> Difference:
    """How `other` differs from `reference`, of the same shape. Raises CheckpointError for what has no numbers."""
    reference, other = _dense(reference), _dense(other)
    shape = tuple(reference.shape)
    sums = _Sums()
    for (start, first), (_, second) in zip(cut(reference, PIECE), cut(other, PIECE), strict=True):
        found = sums.add(first, second, tolerance)
        if found is not None:
            sums.at = first_index(found.reshape(first.shape), start, list(range(len(shape))), shape)
        for release, piece in zip(releases, (first, second), strict=True):
            if release is not None:
                release(piece)
    return sums.difference()


class _Sums:
    """What is counted over pieces."""

    def __init__(self) -> None:
        self.differing = self.beyond = self.newly_bad = self.no_longer_bad = self.finite = 0
        self.highest = -1.0
        self.at: tuple[int, ...] | None = None
        self.total = self.squares = self.energy = 0.0

    def add(self, first: torch.Tensor, second: torch.Tensor, tolerance: Tolerance) -> torch.Tensor | None:
        """Count a piece of each; the marks of the elements furthest apart when none before were further."""
        a, b = _wide(first), _wide(second)
        unlike = (a != b) & ~(a.isnan() & b.isnan()) if _inexact(first, second) else (first != second).reshape(a.shape)
        fine_a, fine_b = a.isfinite(), b.isfinite()
        fine = fine_a & fine_b
        apart = torch.where(fine, b - a, 0.0).abs_()
        within = fine & (apart <= tolerance.absolute + tolerance.relative * a.abs())
        self.differing += int(_any_part(unlike).sum())
        self.beyond += int(_any_part(unlike & ~within).sum())
        self.newly_bad += int(_any_part(fine_a & ~fine_b).sum())
        self.no_longer_bad += int(_any_part(fine_b & ~fine_a).sum())
        self.finite += int(fine.sum())
        self.total += float(apart.sum())
        self.squares += float((apart * apart).sum())
        self.energy += float(torch.where(fine, a, 0.0).square_().sum())
        highest = float(apart.max()) if bool(fine.any()) else -1.0
        if highest <= self.highest:
            return None
        self.highest = highest
        return _any_part((apart == highest) & fine)

    def difference(self) -> Difference:
        """All that was counted."""
        return Difference(
            self.differing,
            self.beyond,
            self.highest if self.finite else None,
            self.at,
            self.total / self.finite if self.finite else None,
            math.sqrt(self.squares / self.energy) if self.energy else None,
            self.newly_bad,
            self.no_longer_bad,
        )


def _wide(piece: torch.Tensor) -> torch.Tensor:
    """The piece as rows of float64 numbers: one column, or two for complex ones."""
    piece = piece.cpu()
    if piece.is_complex():
        return torch.view_as_real(piece.resolve_conj().to(torch.complex128)).reshape(-1, 2)
    return piece.resolve_neg().to(torch.float64).reshape(-1, 1)


def _any_part(marks: torch.Tensor) -> torch.Tensor:
    return marks.any(dim=1)


def _inexact(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether to compare as float64: that cannot hold all integers, and nothing else compares small floats."""
    return bool(first.dtype != second.dtype or first.is_floating_point() or first.is_complex())


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    """`tensor` with all its numbers in memory as numbers."""
    tensor = tensor.detach()
    if tensor.is_nested or tensor.is_meta:
        raise CheckpointError("has no numbers to compare")
    if tensor.is_quantized:
        return tensor.dequantize()
    if tensor.layout != torch.strided:
        if tensor.numel() > _MOST_DENSE:
            raise CheckpointError("is sparse, and too large to be written out")
        return tensor.to_dense()
    return tensor.resolve_conj().resolve_neg()
