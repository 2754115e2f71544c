"""What the elements of a tensor or array come to: how many are finite, their moments and extremes, and a checksum.

It is worked out piece by piece on the device where the elements lie, and fetched in one transfer at the end. The same
arithmetic serves torch and numpy, so that equal elements have an equal checksum in both, on any device.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

# A piece that torch handles in the calling thread: more would start a pool of threads that belongs to ours alone.
_CPU_PIECE = 1 << 15
_DEVICE_PIECE = 1 << 20  # a dozen copies of it, 8 bytes an element, are memory that training may want
_REGIONS = 8  # of a tensor that has but a share of the budget
_MASK = (1 << 64) - 1
_SIGN = -(1 << 63)
# Odd numbers without a pattern (of splitmix64 and MurmurHash3), as int64.
_PLACE = 0x9E3779B97F4A7C15 - (1 << 64)
_FIRST = 0xBF58476D1CE4E5B9 - (1 << 64)
_SECOND = 0x94D049BB133111EB - (1 << 64)


@dataclass(frozen=True)
class Stored:
    """The elements of a tensor or array that lie in memory, as something strided.

    Of a sparse tensor `indices` say where in the whole each row of `values` belongs, and `starts` the same as a number;
    `zeros` counts the elements that are not stored.
    """

    values: Any
    indices: Any = None
    starts: Any = None
    zeros: int = 0
    note: str = ""


def stored(value: Any) -> Stored:
    """The elements of `value`; raises ValueError where there are none that are numbers."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor):
        if value.dtype.hasobject or value.dtype.kind not in "biufc":
            raise ValueError(f"an array of {value.dtype}")
        return Stored(value)
    tensor = value.detach()
    if tensor.is_meta:
        raise ValueError("a meta tensor has no data")
    if tensor.is_nested:
        raise ValueError("a nested tensor")
    if tensor.layout != torch.strided:
        return _sparse(tensor.to_sparse_coo().coalesce())
    if tensor.is_quantized:
        return Stored(tensor.dequantize(), note="quantized: statistics of the values it stands for")
    return Stored(tensor.resolve_conj().resolve_neg())


def _sparse(tensor: Any) -> Stored:
    indices, values = tensor.indices(), tensor.values()
    starts = indices.new_zeros(indices.shape[1])
    for size, index in zip(tensor.shape, indices, strict=False):
        starts = starts * int(size) + index
    zeros = tensor.numel() - values.numel()
    return Stored(values, indices, starts, zeros, f"sparse: {values.numel()} of {tensor.numel()} values stored")


def statistics(found: Stored, budget: int) -> tuple[dict[str, Any], int]:
    """`min`, `max`, `mean`, `std`, `nan`, `inf` and `checksum` of about `budget` elements, and how many these were."""
    rows, seen = [], 0
    with _quietly(found.values):
        for offset, piece in _pieces(found.values, budget, piece_size(found.values)):
            flat = piece.reshape(-1)
            seen += math.prod(flat.shape)
            rows.append(_row(flat, _places(found, offset, flat)))
    totals = _Totals(found.values.dtype)
    for floats, integers in zip(*_fetch(rows, found.values), strict=True):
        totals.add(floats, integers)
    # As many for each value looked at as there are for each that is stored.
    zeros = found.zeros * seen // max(math.prod(found.values.shape), 1) if seen else found.zeros
    totals.add_zeros(zeros)
    return totals.result(), seen + zeros


def checksums(tensors: Sequence[Stored], budget: int) -> tuple[list[int], list[int]]:
    """A checksum of the elements of each tensor, and how many of them it is of: about `budget` in all, shared out."""
    total = sum(math.prod(each.values.shape) for each in tensors)
    sums, looked_at = [], []
    for each in tensors:
        count = math.prod(each.values.shape)
        share = count if total <= budget else budget * count // total
        size = piece_size(each.values) if share == count else min(piece_size(each.values), share // _REGIONS)
        mixed, seen = 0, 0
        with _quietly(each.values):
            for offset, piece in _pieces(each.values, share, max(size, 1)) if share else ():
                flat = piece.reshape(-1)
                seen += math.prod(flat.shape)
                wide = _wide(flat)
                mixed = mixed + _mixed(_bits(flat, wide), _places(each, offset, flat))
        sums.append(mixed)
        looked_at.append(seen + (each.zeros if seen == count else 0))
    return [_avalanche(number) for number in _numbers(sums)], looked_at


def digest_of_bytes(array: Any, budget: int) -> tuple[str, int]:
    """A checksum of a numpy array of texts, dates or records by its bytes, and how many of its elements it is of."""
    found = hashlib.blake2b(digest_size=8)
    looked_at = int(array.size)
    # Field by field: what lies between fields is whatever the memory held before.
    for part in [array[name] for name in array.dtype.names] if array.dtype.names else [array]:
        if part.dtype.names:
            inside, seen = digest_of_bytes(part, budget)
            found.update(inside.encode())
        else:
            width, seen = max(part.dtype.itemsize, 1), 0
            for _, piece in _pieces(part, max(budget // width, 1), max(_DEVICE_PIECE // width, 1)):
                found.update(piece.tobytes())
                seen += int(piece.size)
            seen = seen if seen < part.size else int(array.size)
        looked_at = min(looked_at, seen)
    return found.hexdigest(), looked_at


def piece_size(values: Any) -> int:
    """How many elements are looked at in one go."""
    device = getattr(values, "device", None)
    return _CPU_PIECE if getattr(device, "type", "cpu") == "cpu" else _DEVICE_PIECE


def _pieces(values: Any, budget: int, size: int, offset: int = 0) -> Iterator[tuple[int, Any]]:
    """Views with at most `size` elements each and about `budget` together, evenly spread; at which element each begins.

    `offset` is where `values` itself begins.
    """
    count = math.prod(values.shape)
    if count <= size:
        if count:
            yield offset, values
        return
    rows = int(values.shape[0])
    each = count // rows
    group = max(1, size // each)
    groups = math.ceil(rows / group)
    taken = min(groups, max(1, budget // (group * each)))
    for number in range(taken):
        start = (number * groups // taken) * group
        piece = values[start : start + group]
        if group == 1:
            yield from _pieces(piece[0], budget // taken, size, offset + start * each)
        else:
            yield offset + start * each, piece


def _namespace(values: Any) -> Any:
    """torch or numpy, whichever `values` is of: they have the same names for what is used here."""
    return sys.modules["torch" if hasattr(values, "is_meta") else "numpy"]


def _quietly(values: Any) -> contextlib.AbstractContextManager[Any]:
    """Without numpy's warnings of overflows."""
    library = _namespace(values)
    return library.errstate(all="ignore") if library.__name__ == "numpy" else contextlib.nullcontext()


def _cast(values: Any, dtype: Any) -> Any:
    return values.to(dtype) if hasattr(values, "is_meta") else values.astype(dtype)


def _is_complex(dtype: Any) -> bool:
    return bool(dtype.is_complex) if hasattr(dtype, "is_complex") else dtype.kind == "c"


def _is_integer(dtype: Any) -> bool:
    if hasattr(dtype, "is_complex"):
        return not dtype.is_complex and not dtype.is_floating_point
    return dtype.kind in "biu"


def _places(found: Stored, offset: int, flat: Any) -> Any:
    """The number of each element of a piece that begins at `offset`, counted through the whole tensor."""
    library = _namespace(flat)
    on = {"device": flat.device} if library.__name__ == "torch" else {}
    places = library.arange(offset, offset + math.prod(flat.shape), dtype=library.int64, **on)
    if found.starts is None:
        return places
    each = math.prod(found.values.shape[1:])
    return found.starts[places // each] * each + places % each


def _wide(flat: Any) -> list[Any]:
    """Its numbers as float64; of complex ones the real and the imaginary parts."""
    library = _namespace(flat)
    parts = [flat]
    if _is_complex(flat.dtype):
        is_torch = library.__name__ == "torch"
        parts = library.view_as_real(flat).unbind(-1) if is_torch else [flat.real, flat.imag]
    return [_cast(part, library.float64) for part in parts]


def _bits(flat: Any, wide: list[Any], finite: bool = False) -> list[Any]:
    """What the checksum is of, as int64: alike for equal numbers of any floating dtype, all NaN and both zeros."""
    library = _namespace(flat)
    if _is_integer(flat.dtype):
        return [_cast(flat, library.int64)]
    alike = wide if finite else [library.where(library.isnan(part), math.nan, part) for part in wide]
    return [(part + 0.0).view(library.int64) for part in alike]  # adding zero turns -0.0 into 0.0


def _mixed(bits: list[Any], places: Any) -> Any:
    """The sum of a hash of each element and its place.

    The hash must not be linear in either, or tensors of few values (masks, one-hot labels, another order of the same)
    would come to the same sum.
    """
    total = None
    for part in bits:
        mixed = (part ^ (places * _PLACE)) * _FIRST
        mixed ^= mixed >> 32
        mixed *= _SECOND
        mixed ^= mixed >> 29
        total = mixed.sum() if total is None else total + mixed.sum()
        places = ~places
    return total


def _avalanche(total: int) -> int:
    """A sum whose every bit depends on all of its bits: the first digits alone are shown."""
    total &= _MASK
    for factor in (_FIRST, _SECOND):
        total = ((total ^ (total >> 31)) * factor) & _MASK
    return total ^ (total >> 31)


def _row(flat: Any, places: Any) -> tuple[Any, Any]:
    """What a piece comes to, on its device.

    ([mean, sum of squared deviations] of each part and [min, max] of real floats, [finite, nan, inf, checksum] and
    [min, max] of integers).
    """
    library = _namespace(flat)
    wide = _wide(flat)
    finite, nan = library.isfinite(wide[0]), library.isnan(wide[0])
    for part in wide[1:]:
        finite, nan = finite & library.isfinite(part), nan | library.isnan(part)
    # To ask a device would be to wait for it.
    clean = getattr(getattr(flat, "device", None), "type", "cpu") == "cpu" and bool(finite.all())

    def but_for_bad(part: Any, other: float) -> Any:
        return part if clean else library.where(finite, part, other)

    bits = _bits(flat, wide, clean)
    count = finite.sum()
    divisor = count + (count == 0)
    floats = []
    for part in wide:
        safe = but_for_bad(part, 0.0)
        total = safe.sum()
        mean = total / divisor
        if flat.dtype.itemsize >= 8 and not _is_integer(flat.dtype):
            mean = library.where(library.isfinite(total), mean, (safe / divisor).sum())  # their sum can overflow
        apart = but_for_bad(part - mean, 0.0)
        # What rounding has made of their sum, 0 by itself, is taken out of both.
        shift = apart.sum() / divisor
        shift = library.where(library.isfinite(shift), shift, 0.0)
        floats += [mean + shift, (apart * apart).sum() - shift * shift * count]
    integers = [count, nan.sum(), (~finite & ~nan).sum(), _mixed(bits, places)]
    if _is_integer(flat.dtype):
        # Exact, which float64 is not beyond 2**53; the largest unsigned ones keep their order without their top bit.
        ordered = bits[0] ^ _SIGN if _is_wide_unsigned(flat.dtype) else bits[0]
        integers += [ordered.min(), ordered.max()]
    elif len(wide) == 1:
        floats += [but_for_bad(wide[0], math.inf).min(), but_for_bad(wide[0], -math.inf).max()]
    if library.__name__ == "numpy":
        return [float(number) for number in floats], [int(number) for number in integers]
    return library.stack(floats), library.stack(integers)


def _is_wide_unsigned(dtype: Any) -> bool:
    return str(dtype).removeprefix("torch.") == "uint64"


def _fetch(rows: list[tuple[Any, Any]], values: Any) -> tuple[list[list[float]], list[list[int]]]:
    """The rows as Python numbers: in one transfer each when they lie on a device."""
    floats, integers = [row[0] for row in rows], [row[1] for row in rows]
    library = _namespace(values)
    if library.__name__ == "numpy" or not rows:
        return floats, integers
    return library.stack(floats).tolist(), library.stack(integers).tolist()


def _numbers(sums: list[Any]) -> list[int]:
    """Sums that may lie on devices as Python's, with one transfer a device."""
    found = [0 if hasattr(each, "is_meta") else int(each) for each in sums]
    by_device: dict[Any, list[int]] = {}
    for at, each in enumerate(sums):
        if hasattr(each, "is_meta"):
            by_device.setdefault(each.device, []).append(at)
    for places in by_device.values():
        fetched = sys.modules["torch"].stack([sums[at] for at in places]).tolist()
        for at, number in zip(places, fetched, strict=True):
            found[at] = number
    return found


class _Totals:
    """What the pieces come to together."""

    def __init__(self, dtype: Any) -> None:
        self.integer = _is_integer(dtype)
        self.lift = -_SIGN if _is_wide_unsigned(dtype) else 0
        self.parts = [[0.0, 0.0] for _ in range(2 if _is_complex(dtype) else 1)]  # mean, sum of squared deviations
        self.low: float | int = math.inf
        self.high: float | int = -math.inf
        self.count = self.nan = self.inf = self.checksum = 0

    def add(self, floats: list[float], integers: list[int]) -> None:
        count, nan, inf, mixed, *limits = integers
        self.nan += nan
        self.inf += inf
        self.checksum += mixed
        if count:
            ends = [limit + self.lift for limit in limits] if self.integer else floats[2 * len(self.parts) :]
            self._merge(count, floats, ends)

    def add_zeros(self, count: int) -> None:
        """Count zeros that a sparse tensor does not store."""
        if count:
            self._merge(count, [0.0] * (2 * len(self.parts)), [0, 0] if self.integer else [0.0, 0.0])

    def result(self) -> dict[str, Any]:
        is_complex = len(self.parts) > 1
        ordered = self.count > 0 and not is_complex
        squares = sum(part[1] for part in self.parts)
        return {
            "min": self.low + 0 if ordered else None,  # 0 for -0.0
            "max": self.high + 0 if ordered else None,
            "mean": _finite(self.parts[0][0]) if ordered else None,
            "std": _finite(math.sqrt(squares / (self.count - 1))) if self.count > 1 else None,
            "nan": self.nan,
            "inf": self.inf,
            "checksum": f"{_avalanche(self.checksum):016x}",
        }

    def _merge(self, count: int, moments: Sequence[float], ends: Sequence[float | int]) -> None:
        total = self.count + count
        for part, mean, squares in zip(self.parts, moments[0::2], moments[1::2], strict=False):
            apart = mean - part[0]
            part[0] += apart * (count / total)
            part[1] += max(squares, 0.0) + apart * apart * (self.count * (count / total))
        self.count = total
        for end in ends:
            self.low, self.high = min(self.low, end), max(self.high, end)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
