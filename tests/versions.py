"""The Ray and the debugpy that are under test: those that are installed, or those that tests/oldest lays over them."""

from __future__ import annotations

import os
import re
from importlib import metadata

from tests.conftest import REPOSITORY

NAMES = ("ray", "debugpy")


def oldest() -> dict[str, str]:
    """The oldest versions that this project's dependencies allow."""
    wanted = (REPOSITORY / "pyproject.toml").read_text()
    return dict(re.findall(r'"(ray|debugpy)(?:\[train\])?>=([\d.]+)"', wanted))


def under_test() -> dict[str, str]:
    """What a rank has to have, by name."""
    return oldest() if os.environ.get("RAYTRAIN_DEBUG_OLDEST") else {name: metadata.version(name) for name in NAMES}


if __name__ == "__main__":
    print(*(f"{name}=={version}" for name, version in oldest().items()))
