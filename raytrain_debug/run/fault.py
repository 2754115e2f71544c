"""Reads what Python's faulthandler wrote at a fatal signal, as the core of the rank that died of it."""

from __future__ import annotations

import re
from pathlib import Path

from raytrain_debug.run.records import CoreRecord, FrameRecord, ThreadRecord

_THREAD = re.compile(
    r"(?P<current>Current thread|Thread) (?P<ident>0x[0-9a-fA-F]+)(?: \[(?P<name>.*)\])? \(most recent"
)
_FRAME = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d+|\?\?\?) in (?P<function>.*)')
_SHIM = "/raytrain_debug/shim/"
_RAY_ENTRY = _SHIM + "ray_internals.py"  # around the training function of a Ray worker
_ENTRY = (*(_SHIM + name for name in ("bootstrap.py", "death.py", "target.py", "__main__.py")), _RAY_ENTRY)
_MAX_TEXT = 1 << 20


def read_fault(path: Path, attempt: int, pid: int) -> CoreRecord | None:
    """The core that the text at `path` stands for, of process `pid` in that attempt.

    None when there is no such file, or nothing was written to it.
    """
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read(_MAX_TEXT)
        time = path.stat().st_mtime
    except OSError:
        return None
    if not text.strip():
        return None
    headline, threads = parse(text)
    return CoreRecord(time, attempt, pid, None, "signal", threads, notes=(headline,) if headline else ())


def parse(text: str) -> tuple[str, tuple[ThreadRecord, ...]]:
    """The first line ("Fatal Python error: Segmentation fault"), and the threads, the one that died first."""
    lines = text.splitlines()
    headline = next((line.strip() for line in lines if line.strip()), "")
    died: list[ThreadRecord] = []
    others: list[ThreadRecord] = []
    match: re.Match[str] | None = None
    frames: list[FrameRecord] = []

    def end() -> None:
        if match is not None and (thread := _thread(match, frames)) is not None:
            (died if match["current"] == "Current thread" else others).append(thread)

    for line in lines:
        if (found := _THREAD.match(line)) is not None:
            end()
            match, frames = found, []
        elif match is not None and (frame := _FRAME.match(line)) is not None:
            number = int(frame["line"]) if frame["line"].isdecimal() else 0
            frames.append(FrameRecord(frame["file"], number, frame["function"], origin=origin(frame["file"])))
    end()
    return headline, (*died, *others)


def _thread(match: re.Match[str], frames: list[FrameRecord]) -> ThreadRecord | None:
    """The thread without frames of ours; None when it is ours. `frames` innermost first, as faulthandler has them."""
    ordered = list(reversed(frames))
    entry = max((at for at, each in enumerate(ordered) if each.file.endswith(_ENTRY)), default=None)
    own = ordered if entry is None else ordered[entry + 1 :]
    if entry is None and any(_SHIM in each.file for each in own):
        return None
    name = match["name"] or f"Thread {match['ident']}"
    if entry is not None:
        name = "TrainingThread" if ordered[entry].file.endswith(_RAY_ENTRY) else "MainThread"
    return ThreadRecord(name, entry is not None, tuple(each for each in own if _SHIM not in each.file))


def origin(file: str) -> str:
    """Whose code a file is, by its path: "package", "framework" (Python's own) or "user"."""
    if "/site-packages/" in file or "/dist-packages/" in file:
        return "package"
    return "framework" if file.startswith("<frozen") or re.search(r"/lib/python3\.\d+/", file) else "user"
