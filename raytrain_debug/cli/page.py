"""`postmortem --html FILE`: gathers all that the page shows and writes it."""

from __future__ import annotations

import os
import sys
import time

from raytrain_debug.cli import console
from raytrain_debug.errors import RaytrainDebugError, RunNotFound, UsageError
from raytrain_debug.postmortem.compare import Comparison, Options, compare_ranks
from raytrain_debug.postmortem.findings import Findings
from raytrain_debug.postmortem.series import read_series
from raytrain_debug.render.html.page import Report, page


def write(findings: Findings, path: str, tensors: bool, unsafe: bool) -> None:
    """Write the page of `findings` to `path` ("-": stdout).

    `tensors` False compares no checkpoints; `unsafe` runs code from pickles that safe loading refuses. Raises
    RaytrainDebugError when the file cannot be written.
    """
    comparison, not_compared = _comparison(findings, Options(tensors=tensors, unsafe=unsafe))
    series = tuple(read_series(each.rank) for each in findings.ranks)
    data = page(Report(findings, series, time.time(), comparison, not_compared)).encode("utf-8", "replace")
    if path == "-":
        sys.stdout.buffer.write(data)
        return
    try:
        with open(path, "wb", opener=_private) as file:
            file.write(data)
    except OSError as error:
        raise RaytrainDebugError(f"cannot write {path}: {error.strerror}", "name another file with --html") from None
    console.note(f"wrote {path}")


def _comparison(findings: Findings, options: Options) -> tuple[Comparison | None, str]:
    """The ranks of the page compared; or None, and why not."""
    try:
        ranks = [each.rank.rank for each in findings.ranks]
        return compare_ranks(findings.run, findings.index, ranks, options), ""
    except (UsageError, RunNotFound) as error:
        return None, f"Not compared: {error}."


def _private(path: str, flags: int) -> int:
    """What a run left is its user's alone, and so is the page made of it."""
    return os.open(path, flags, 0o600)
