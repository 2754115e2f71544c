"""Resources of this process at one moment, cheap enough for every report; imports neither torch nor psutil early."""

from __future__ import annotations

import os
import sys
import time

from raytrain_debug.run.records import ProcessUsage

_PAGE = os.sysconf("SC_PAGE_SIZE")


def sample() -> ProcessUsage:
    """Resident set in bytes, CPU time (user and system) in seconds, and bytes of CUDA memory allocated by tensors."""
    return ProcessUsage(rss=_rss(), cpu_time=time.process_time(), gpu_memory=_gpu_memory())


def _rss() -> int | None:
    try:
        with open("/proc/self/statm", "rb", buffering=0) as file:
            return int(file.read(200).split()[1]) * _PAGE
    except (OSError, ValueError, IndexError):
        pass
    try:
        import psutil

        return int(psutil.Process().memory_info().rss)
    except Exception:
        return None


def _gpu_memory() -> int | None:
    """Bytes on the current device; None unless the script itself has imported torch and used CUDA already."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    try:
        if cuda is None or not cuda.is_initialized():
            return None
        # The nested form is a tenth of the cost of memory_allocated(), which flattens every statistic to read one.
        return int(cuda.memory_stats_as_nested_dict()["allocated_bytes"]["all"]["current"])
    except Exception:
        return None
