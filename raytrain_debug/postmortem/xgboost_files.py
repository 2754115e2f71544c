"""Summaries of XGBoost models, from the JSON or UBJSON that XGBoost itself saves; the library is not needed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from raytrain_debug.errors import CheckpointError
from raytrain_debug.postmortem import ubjson
from raytrain_debug.postmortem.contents import Contents

_JSON = re.compile(rb'\s*\{\s*"learner"\s*:\s*\{')
_UBJSON = b"{L\0\0\0\0\0\0\0\x07learner"
_MAX_JSON = 64 << 20  # as text it has to be in memory whole, several times over


def accepts(path: Path, head: bytes) -> bool:
    """Whether this is an XGBoost model: its first member is the learner."""
    return head.startswith(_UBJSON) or _JSON.match(head) is not None


@contextmanager
def opened(path: Path, unsafe: bool = False) -> Iterator[Contents]:
    """What the model tells of itself, as scalars; it has no tensors. Raises CheckpointError."""
    try:
        with open(path, "rb") as file:
            is_json = file.read(len(_UBJSON)) != _UBJSON
            file.seek(0)
            if is_json and path.stat().st_size > _MAX_JSON:
                raise CheckpointError("is an XGBoost model too large to be read as JSON", "save models as .ubj")
            model = json.load(file) if is_json else ubjson.load(file)
        scalars = _summary(model)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"is no whole XGBoost model: {type(error).__name__}: {error}") from None
    yield Contents("XGBoost model", values=len(scalars), scalars=scalars, leaves=scalars)


def _summary(model: dict[str, Any]) -> dict[str, Any]:
    learner = model["learner"]
    booster, parameters = learner["gradient_booster"], learner["learner_model_param"]
    trees = booster.get("gbtree", booster).get("model", {})
    found: dict[str, Any] = {
        "objective": str(learner["objective"]["name"]),
        "booster": str(booster["name"]),
        "features": int(parameters["num_feature"]),
    }
    if "gbtree_model_param" in trees:
        found["trees"] = int(trees["gbtree_model_param"]["num_trees"])
        rounds = trees.get("iteration_indptr")
        if rounds is not None:
            found["rounds"] = (rounds if isinstance(rounds, ubjson.Skipped) else len(rounds)) - 1
    if int(parameters.get("num_class", 0)):
        found["classes"] = int(parameters["num_class"])
    found["version"] = ".".join(str(part) for part in _list(model.get("version"))) or "unknown"
    found |= {f"attributes.{key}": str(value) for key, value in learner.get("attributes", {}).items()}
    return found


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
