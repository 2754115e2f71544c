"""C and C++ frames of ranks, by py-spy where it is installed and permitted, put into the place of the Python ones."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from raytrain_debug.across.stacks import Frame, RankStacks, Sample, Stack

_PATIENCE = 20.0  # seconds: py-spy reads the symbols of every library first
_AT_ONCE = 4
_MAX_NAME = 100  # characters: C++ templates have names of thousands
_PERMISSION = ("permission denied", "operation not permitted", "ptrace")


class _NoNativeFrames(Exception):
    """Why, in words."""


def add(sample: Sample, pids: Mapping[int, int], threads: bool = False) -> tuple[Sample, str | None]:
    """The sample with native frames for the ranks in `pids`; and why some or all have none, in words, or None."""
    program = _program()
    if program is None:
        return sample, "py-spy is not installed (pip install py-spy)"
    ranks = dict(sample.ranks)
    silent = dict(sample.silent)
    reasons: dict[str, None] = {}
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        dumps = {rank: pool.submit(_dump, program, pid) for rank, pid in pids.items()}
    for rank, future in dumps.items():
        try:
            found = _stacks(rank, pids[rank], future.result(), ranks.get(rank), threads)
        except _NoNativeFrames as reason:
            reasons[str(reason)] = None
            continue
        ranks[rank] = found
        silent.pop(rank, None)  # py-spy needs no answer of the rank
    return Sample(dict(sorted(ranks.items())), silent), "; ".join(reasons) or None


def _program() -> str | None:
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.exists() else shutil.which("py-spy")


def _dump(program: str, pid: int) -> Any:
    try:
        done = subprocess.run(
            [program, "dump", "--native", "--json", "--pid", str(pid)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_PATIENCE,
            check=False,
        )
        if done.returncode == 0:
            return json.loads(done.stdout)
        words = done.stderr.decode(errors="replace").strip()
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise _NoNativeFrames(f"py-spy failed: {error}") from None
    if any(each in words.lower() for each in _PERMISSION):
        raise _NoNativeFrames(
            "py-spy may not look into other processes here: run as root, or allow it (kernel.yama.ptrace_scope=0, "
            "or --cap-add SYS_PTRACE for a container)"
        )
    raise _NoNativeFrames(f"py-spy failed: {(words.splitlines() or ['without a word'])[0]}")


def _stacks(rank: int, pid: int, dump: Any, known: RankStacks | None, threads: bool) -> RankStacks:
    """What py-spy saw, with our labels; the training thread is the one whose number is the process's."""
    own = {frame for stack in (known.stacks if known else ()) for frame in stack.frames if not frame.library}
    own_places = {(frame.file, frame.function) for frame in own}
    found: list[Stack] = []
    try:
        for thread in dump:
            training = thread.get("os_thread_id") == pid
            named = [each for each in reversed(thread["frames"]) if not str(each["name"]).startswith("0x")]
            frames = tuple(_frame(each, own_places) for each in named)
            frames = frames[_outer(frames) :]
            if training:
                base = known.training if known else Stack(rank, ())
                found.insert(0, dataclasses.replace(base, frames=frames))
            elif threads and not any("raytrain_debug" in frame.file for frame in frames):
                found.append(Stack(rank, frames, thread=str(thread.get("thread_name") or "?"), training=False))
    except (TypeError, KeyError, ValueError) as error:
        raise _NoNativeFrames(f"py-spy says what we do not understand: {error}") from None
    if not found:
        raise _NoNativeFrames("py-spy saw no training thread")
    base_rank = known or RankStacks(rank, "running", ())
    return dataclasses.replace(base_rank, stacks=tuple(found))


def _frame(frame: dict[str, Any], own: set[tuple[str, str]]) -> Frame:
    file, name = str(frame.get("filename") or frame.get("module") or "?"), str(frame["name"])
    if (file, name.rpartition(".")[2]) in own:
        return Frame(file, int(frame.get("line") or 0), name.rpartition(".")[2])
    name = name if len(name) <= _MAX_NAME else name[: _MAX_NAME - 1] + "…"
    return Frame(file, int(frame.get("line") or 0), name, library=True)


def _outer(frames: tuple[Frame, ...]) -> int:
    """How many of the outermost frames are the interpreter's and ours, before the user's code begins."""
    for at in range(len(frames) - 1, -1, -1):
        if frames[at].file.endswith("raytrain_debug/shim/target.py"):
            return at + 1
    return 0
