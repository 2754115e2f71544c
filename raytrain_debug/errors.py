"""Every error this toolkit raises on purpose; each carries the remedy and the exit code of the command it ends."""

from __future__ import annotations


class RaytrainDebugError(Exception):
    """A command cannot do what was asked; `remedy` says what to type instead."""

    exit_code = 1

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.remedy = remedy


class UsageError(RaytrainDebugError):
    """The command line, or an argument of the public API, does not make sense."""

    exit_code = 2


class UnreadableScript(RaytrainDebugError):
    """A script is not Python source that can be parsed."""


class RunNotFound(RaytrainDebugError):
    """No run, or no such rank of it, is recorded where we looked."""


class NotInRun(RunNotFound):
    """The run is there, but not the rank or report that was asked for."""

    exit_code = UsageError.exit_code


class RunNotLive(RaytrainDebugError):
    """The run or rank has ended, so nothing can attach to it."""


class UnsafeDirectory(RaytrainDebugError):
    """A directory that must be ours alone is a symlink or belongs to another user."""


class PortTaken(RaytrainDebugError):
    """Another process listens on a port that the gateway needs."""


class ControlError(RaytrainDebugError):
    """A rank or launcher did not answer on its control channel."""


class DapError(RaytrainDebugError):
    """The debug adapter broke the protocol, refused a request or went away."""


class RankEnded(DapError):
    """The rank ended, or the connection to it did, under a debugger that was attached; the message says why."""


class RanksDiffer(RaytrainDebugError):
    """Ranks of a faithful local run do not make the same calls of Ray Train: raised in a rank that waits in one."""


class ForgedValue(RaytrainDebugError):
    """What should come from another rank is not signed as this job's ranks sign."""


class LaunchJsonError(RaytrainDebugError):
    """A VS Code configuration file cannot be read or edited; it is left untouched."""


class CheckpointError(RaytrainDebugError):
    """A checkpoint cannot be read as asked."""


class UnsafeCheckpoint(CheckpointError):
    """Safe loading refuses a checkpoint; `globals` are the classes and functions that it names."""

    def __init__(self, message: str, remedy: str = "", globals: tuple[str, ...] = ()) -> None:
        super().__init__(message, remedy)
        self.globals = globals
