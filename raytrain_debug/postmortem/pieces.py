"""Cuts a tensor into pieces in the order in which it lies in memory, and tells an element's index from its piece."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import TypeVar

import torch

T = TypeVar("T")

Piece = tuple[tuple[int, ...], torch.Tensor]
"""Where a piece starts, in the dimensions that were cut, and the piece itself, a view."""


def as_stored(tensor: torch.Tensor) -> tuple[torch.Tensor, list[int], int]:
    """`tensor` with its dimensions in the order of memory, which those are, and how often each element is shown.

    Dimensions that `expand` made (stride 0) are left out: their elements are the same number over and over.
    """
    kept = [dim for dim in range(tensor.dim()) if tensor.stride(dim) or tensor.size(dim) == 1]
    repeats = math.prod(tensor.size(dim) for dim in range(tensor.dim()) if dim not in kept)
    if repeats == 0:
        return tensor.new_empty(0), [], 1
    view = tensor[tuple(slice(None) if dim in kept else 0 for dim in range(tensor.dim()))]
    order = sorted(range(len(kept)), key=lambda at: (-view.stride(at), at))
    return view.permute(order), [kept[at] for at in order], repeats


def cut(view: torch.Tensor, most: int, start: tuple[int, ...] = ()) -> Iterator[Piece]:
    """Cut `view` along its first dimensions into pieces of at most `most` elements."""
    if view.numel() == 0:
        return
    if view.numel() <= most:
        yield start, view
        return
    rows = most // (view.numel() // view.size(0))
    for row in range(0, view.size(0), max(rows, 1)):
        if rows:
            yield (*start, row), view[row : row + rows]
        else:
            yield from cut(view[row], most, (*start, row))


def batches(items: Iterator[T], size: int) -> Iterator[list[T]]:
    """`items` in lists of at most `size`."""
    while batch := list(itertools.islice(items, size)):
        yield batch


def first_index(
    marked: torch.Tensor, start: tuple[int, ...], dims: list[int], shape: tuple[int, ...]
) -> tuple[int, ...]:
    """The first index, in the tensor's own order, of the elements marked in a piece that begins at `start`.

    `dims` are the tensor's dimensions in the order in which the piece has them, `shape` is the tensor's.
    """
    found = marked.nonzero()
    # The last entry of `start` counts rows of the piece's own first dimension when the piece kept that dimension.
    ahead = len(dims) - marked.dim()
    columns: list[torch.Tensor | int] = [0] * len(shape)
    for at, dim in enumerate(dims):
        columns[dim] = start[at] if at < ahead else found[:, at - ahead] + (start[at] if at < len(start) else 0)
    flat = torch.zeros(len(found), dtype=torch.int64)
    for size, column in zip(shape, columns, strict=True):
        flat = flat * size + column
    return unravelled(int(flat.min()), shape)


def unravelled(flat: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The index in `shape` of the element that is number `flat` in row-major order."""
    index = []
    for size in reversed(shape):
        flat, position = divmod(flat, size)
        index.append(position)
    return tuple(reversed(index))
