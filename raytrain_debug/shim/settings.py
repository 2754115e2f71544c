"""What the launcher tells a rank's shim: one JSON object in one environment variable, which children never see."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from raytrain_debug.run import codec
from raytrain_debug.run.records import from_dict

VARIABLE = "RAYTRAIN_DEBUG_SHIM"


@dataclass(frozen=True)
class Settings:
    """`run` is the run directory, `launcher` the launcher's socket, `wait` the ranks that wait before line 1.

    `core_budget` are bytes of tensors in a core; `hold_on_crash` the minutes that a rank which raises is kept alive for
    a debugger, 0 for no limit, None for not at all. `attempt` counts the starts of the worker group; None leaves it to
    torchrun, whose count leaves out those due to a node that came or went. `faithful` gives local mode a cluster's
    rules; `secret` is what the ranks of the run sign with what they leave for each other.
    """

    run: str
    launcher: str
    launcher_pid: int
    wait: tuple[int, ...] = ()
    keep_checkpoints: int = 2
    mode: str = "torchrun"
    core_budget: int = 64 << 20
    hold_on_crash: float | None = None
    attempt: int | None = None
    faithful: bool = False
    secret: str = ""

    def to_environment(self) -> dict[str, str]:
        return {VARIABLE: codec.dumps(asdict(self))}


@dataclass(frozen=True)
class Identity:
    """Which rank this process is, from torchrun's environment (docs of torchrun, "Environment Variables")."""

    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    attempt: int = 0

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ, attempt: int | None = None) -> Identity:
        def number(name: str, default: int) -> int:
            text = environ.get(name, "")
            return int(text) if text.isdecimal() else default

        return cls(
            rank=number("RANK", 0),
            local_rank=number("LOCAL_RANK", 0),
            world_size=number("WORLD_SIZE", 1),
            attempt=number("TORCHELASTIC_RESTART_COUNT", 0) if attempt is None else attempt,
        )


def take_settings() -> Settings | None:
    """The settings the launcher left, removed from the environment; None when there are none or they make no sense."""
    text = os.environ.pop(VARIABLE, None)
    if text is None:
        return None
    try:
        return from_dict(Settings, codec.loads(text))
    except (ValueError, TypeError, KeyError):
        return None
