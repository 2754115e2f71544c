"""A live tensor or array in a few numbers, with a bound on the work and without ever moving or copying it whole.

Works on torch tensors of any device and on numpy arrays, through what their interfaces have in common.
"""

from __future__ import annotations

import hashlib
import math
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from raytrain_debug.shim import elements

LIMIT = 1 << 22
"""Elements that are looked at; of a larger tensor, evenly spread pieces are."""

_MAX_VALUES = 16  # elements of a tensor that is shown in full
_MAX_BYTES = 4_000  # of texts that are


def is_tensor(value: Any) -> bool:
    """Whether `value` is a torch tensor."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, getattr(torch, "Tensor", ()))


def is_array(value: Any) -> bool:
    """Whether `value` is a numpy array."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, getattr(numpy, "ndarray", ()))


def is_array_scalar(value: Any) -> bool:
    """Whether `value` is a number, text or date of numpy's."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, getattr(numpy, "generic", ()))


def local_part(tensor: Any) -> Any:
    """This rank's part of a tensor that is spread over ranks, for whose whole the ranks would have to communicate."""
    while True:
        part = getattr(tensor, "_local_tensor", None)
        if part is None or part is tensor:
            return tensor
        tensor = part


def describe(value: Any) -> dict[str, Any]:
    """Shape, dtype, device and statistics of a tensor or array that is local to this process; never raises.

    Statistics are over the elements that are finite: `min`, `max`, `mean`, `std` (of a sample, as torch's; None where
    there is none; complex numbers have but a `std`), with `nan` and `inf` counted. `checksum` depends on every element
    looked at and its place, with all NaN alike; `looked_at` says how many that were, when not all. `note` says why
    there are none, or what they are of.
    """
    kind = type(value)
    result: dict[str, Any] = {"$type": f"{kind.__module__}.{kind.__qualname__}"}
    try:
        result["shape"] = [int(size) for size in value.shape]
        result["dtype"] = str(value.dtype).removeprefix("torch.")
        device = str(value.device) if is_tensor(value) else "cpu"
        if device != "cpu":
            result["device"] = device
        count = math.prod(result["shape"])
        if count:
            looked_at = _add_bytes(result, value) if _is_of_bytes(value) else _add_statistics(result, value, count)
            if looked_at < count:
                result["looked_at"] = looked_at
    except Exception as error:
        result["note"] = f"no statistics: {type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"
        if not getattr(value, "is_meta", False):
            result["looked_at"] = 0
    return result


def checksum(tensors: Sequence[tuple[str, Any]], budget: int) -> tuple[str, int, int]:
    """One checksum of named tensors and arrays, how many of their elements it is of, and how many there are.

    About `budget` elements are looked at, of each tensor its share; none of a tensor that cannot be read. Never raises.
    """
    readable: list[elements.Stored] = []
    count = looked_at = 0
    whole = hashlib.blake2b(digest_size=8)
    for name, tensor in tensors:
        words = [name]
        try:
            words += [str(tensor.dtype), str(tuple(tensor.shape))]
            size = math.prod(tensor.shape)
            if not getattr(tensor, "is_meta", False):
                count += size
                if _is_of_bytes(tensor):
                    text, seen = elements.digest_of_bytes(tensor, 8 * budget)
                    words.append(text)
                    looked_at += seen
                elif size:
                    readable.append(elements.stored(tensor))
        except Exception as error:
            words.append(type(error).__name__)
            count += 1  # so that it is seen that something was left out
        whole.update("\0".join(words).encode("utf-8", "backslashreplace"))
    try:
        sums, seen_in_each = elements.checksums(readable, budget)
        whole.update(repr(sums).encode())
        looked_at += sum(seen_in_each)
    except Exception:
        pass
    return whole.hexdigest(), looked_at, count


def first_bad(value: Any, seconds: float) -> tuple[int, ...] | None:
    """The index of the first NaN or infinity of a local, strided tensor or array; None when none is found in time.

    Unlike `describe` it looks at everything, or at what comes first when there is more than `seconds` are enough for.
    """
    end = time.monotonic() + seconds
    if _is_of_bytes(value):
        return None
    found = elements.stored(value)
    tensor = found.values
    if not _can_be_bad(tensor):
        return None
    size = elements.piece_size(tensor)
    for prefix, start, piece in _in_order(tensor, size, ()):
        bad = _bad_elements(piece)
        if bool(bad.any()):
            if bad.ndim == 0:
                index = prefix
            else:
                axes = bad.nonzero(as_tuple=True) if is_tensor(bad) else bad.nonzero()
                row, *inside = (int(axis[0]) for axis in axes)
                index = (*prefix, start + row, *inside)
            if found.indices is None:
                return index
            return (*(int(axis[index[0]]) for axis in found.indices), *index[1:])
        if time.monotonic() > end:
            return None
    return None


def _bad_elements(piece: Any) -> Any:
    """A mask of the elements that are NaN or infinite."""
    if not is_tensor(piece):
        import numpy

        return ~numpy.isfinite(piece)
    import torch

    return ~torch.isfinite(piece if piece.dtype.itemsize > 1 else piece.to(torch.float32))


_reasons: dict[str, tuple[float, str]] = {}  # when and what a device answered


def why_unreadable(value: Any) -> str:
    """Why reading a tensor could take without end, or fail: its CUDA device has work left or an error; "" otherwise.

    A rank that waits for others in a collective may have a kernel under way that never ends. A device has half a
    second to answer, and its answer holds for some seconds.
    """
    device = value.device if is_tensor(value) else None
    if device is None or device.type != "cuda":
        return ""
    asked, reason = _reasons.get(str(device), (-math.inf, ""))
    if time.monotonic() - asked > 5:
        _reasons[str(device)] = time.monotonic(), "its device does not answer"  # should the next line not come back
        reason = _why_unreadable(device)
        _reasons[str(device)] = time.monotonic(), reason
    return reason


def _why_unreadable(device: Any) -> str:
    import torch

    try:
        with torch.cuda.device(device):
            event = torch.cuda.Event()
            event.record()
            end = time.monotonic() + 0.5
            while not event.query():
                if time.monotonic() > end:
                    return "its device is still at work"
                time.sleep(0.005)
        return ""
    except Exception as error:
        return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:100]}"


def _can_be_bad(tensor: Any) -> bool:
    if is_tensor(tensor):
        return bool(tensor.is_floating_point() or tensor.is_complex())
    return tensor.dtype.kind in "fc"


def _in_order(tensor: Any, size: int, prefix: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], int, Any]]:
    """Views of `tensor` that follow each other: where they lie in it, at which row they start there, the view."""
    count = math.prod(tensor.shape)
    if count <= size:
        yield prefix, 0, tensor
        return
    rows = int(tensor.shape[0])
    group = size // (count // rows)
    for row in range(0, rows, max(group, 1)):
        if group:
            yield prefix, row, tensor[row : row + group]
        else:
            yield from _in_order(tensor[row], size, (*prefix, row))


def _is_of_bytes(value: Any) -> bool:
    """Whether it is an array of texts, dates or records, which have no statistics but bytes."""
    return not is_tensor(value) and value.dtype.kind in "USMmV" and not value.dtype.hasobject


def _add_bytes(result: dict[str, Any], array: Any) -> int:
    result["checksum"], looked_at = elements.digest_of_bytes(array, 8 * LIMIT)
    if array.size <= _MAX_VALUES and array.nbytes <= _MAX_BYTES:
        result["values"] = array.tolist()
    return looked_at


def _add_statistics(result: dict[str, Any], value: Any, count: int) -> int:
    if getattr(value.dtype, "hasobject", False):
        result["note"] = "an array of objects: not compared"
        return 0
    found = elements.stored(value)
    numbers, looked_at = elements.statistics(found, LIMIT)
    result.update(numbers)
    if found.note:
        result["note"] = found.note
    if count <= _MAX_VALUES:
        result["values"] = (found.values if found.indices is None else value.detach().to_dense()).tolist()
    return looked_at
