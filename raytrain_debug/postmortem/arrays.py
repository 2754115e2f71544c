"""Arrays that a reader gets as numpy has them, as tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from raytrain_debug.errors import CheckpointError


def to_tensor(array: Any, name: str, dtype: str = "") -> torch.Tensor:
    """The array as a tensor, sharing its memory where it can; `dtype` is its type where that is none of numpy's.

    Raises CheckpointError for a type that torch does not have.
    """
    array = np.asarray(array, order="C")
    kind = dtype or array.dtype.name
    own = getattr(torch, kind, None)
    try:
        if array.dtype.kind in "biufc" and not dtype:
            return torch.from_numpy(array.astype(array.dtype.newbyteorder("="), copy=False))
        if isinstance(own, torch.dtype) and own.is_floating_point and own.itemsize == array.dtype.itemsize:
            return torch.from_numpy(array.view(f"u{own.itemsize}")).view(own)
    except TypeError:
        pass
    raise CheckpointError(f"{name} holds {kind}, of which torch makes no tensor")
