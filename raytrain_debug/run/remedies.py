"""What to do about an exception of Ray Train's whose own words do not say it."""

from __future__ import annotations

import re

_REMEDIES = (
    (
        re.compile(r"Ray Data is not supported in local mode with multiple workers"),
        "Ray Train's local mode hands datasets to one process only, and torchrun has started several: run one process "
        "(launch --no-torchrun SCRIPT) or real workers (num_workers of 1 or more, launch --ray SCRIPT), or leave "
        "datasets= out and have each rank read its part of the data in the training function",
    ),
)


def remedy_of(exception: str) -> str | None:
    """What to do about an exception told as "Type: message", in words; None when its own words must do."""
    return next((remedy for pattern, remedy in _REMEDIES if pattern.search(exception)), None)
