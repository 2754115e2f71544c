"""Gives back the memory of mapped files page by page, so that a file of any size is read in little memory."""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
from pathlib import Path

import torch

_WINDOW = 64 * 1024  # bytes that Linux maps around a page that is touched


class MappedFile:
    """The private mappings that this process has of `path` right now.

    The mappings must not have been written to: pages given back are read from the file again at the next touch.
    """

    def __init__(self, path: Path) -> None:
        self._ranges = _private_ranges(os.path.realpath(path))

    def release(self, tensor: torch.Tensor) -> None:
        """Let go of the pages that `tensor` lies on; nothing when it is not of this file.

        Pages around it go too: a touch maps a whole window of the file, and what it mapped beyond would pile up.
        """
        if not self._ranges or tensor.numel() == 0:
            return
        start = tensor.data_ptr()
        reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
        end = start + (reach + 1) * tensor.element_size()
        for low, high in self._ranges:
            if low <= start and end <= high:
                first = max(start // _WINDOW * _WINDOW, low)
                last = min(-(-end // _WINDOW) * _WINDOW, high)
                _madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), mmap.MADV_DONTNEED)
                return


def _private_ranges(path: str) -> list[tuple[int, int]]:
    """Address ranges of the private mappings of `path`; none where the system does not tell (other than Linux)."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as file:
            lines = file.read().split("\n")
    except OSError:
        return []
    ranges = []
    for line in lines:
        # address perms offset dev inode path
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and fields[1].endswith("p") and fields[5] == path.replace("\n", "\\012"):
            low, _, high = fields[0].partition("-")
            ranges.append((int(low, 16), int(high, 16)))
    return ranges


def _madvise(address: ctypes.c_void_p, length: ctypes.c_size_t, advice: int) -> None:
    # Advice that is refused costs memory and nothing else, so the answer is not looked at.
    _libc().madvise(address, length, ctypes.c_int(advice))


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)
