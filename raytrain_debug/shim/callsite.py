"""Finds the user's own frame among those of Ray and of the frameworks that call Ray for them."""

from __future__ import annotations

import os
import sysconfig
from types import CodeType, FrameType

from raytrain_debug.run.records import CallSite

_OURS = ("raytrain_debug", "ray", "wrapt")
_FRAMEWORKS = ("torch", "lightning", "pytorch_lightning", "transformers", "accelerate", "keras", "xgboost", "lightgbm")
_PACKAGES, _STDLIB = (
    tuple({os.path.join(os.path.realpath(sysconfig.get_path(name)), "") for name in names})
    for names in (("purelib", "platlib"), ("stdlib", "platstdlib"))
)
USER, PACKAGE, FRAMEWORK, PLUMBING = 3, 2, 1, 0
"""Whose code a frame runs: the user's; an installed package's; a framework's or the stdlib's; Ray's or ours."""

_MAX_CODES = 10_000  # scripts that make code at every step must not grow us
_rank_of_code: dict[CodeType, int] = {}


def user_call(frame: FrameType | None) -> CallSite | None:
    """Where user code, going outward from `frame`, called into Ray; None when there is no frame at all.

    User code is the first frame in no installed library, else the first one outside the known frameworks (a training
    script may itself be installed), else the first one outside Ray.
    """
    best: FrameType | None = None
    best_rank = 0
    while frame is not None:
        rank = origin(frame)
        if rank > best_rank:
            best, best_rank = frame, rank
            if rank == USER:
                break
        frame = frame.f_back
    if best is None:
        return None
    return CallSite(os.path.abspath(best.f_code.co_filename), best.f_lineno, best.f_code.co_name)


def origin(frame: FrameType) -> int:
    """USER, PACKAGE, FRAMEWORK or PLUMBING: whose code `frame` runs."""
    code = frame.f_code
    rank = _rank_of_code.get(code)
    if rank is None:
        if len(_rank_of_code) >= _MAX_CODES:
            _rank_of_code.clear()
        rank = _rank_of_code[code] = _classify(code, str(frame.f_globals.get("__name__", "")))
    return rank


def _classify(code: CodeType, module: str) -> int:
    package = module.partition(".")[0]
    if package in _OURS or code.co_filename.startswith("<frozen "):
        return PLUMBING
    if package in _FRAMEWORKS:
        return FRAMEWORK
    file = os.path.realpath(code.co_filename)
    if file.startswith(_PACKAGES) or f"{os.sep}dist-packages{os.sep}" in file:
        return PACKAGE
    return FRAMEWORK if file.startswith(_STDLIB) else USER
