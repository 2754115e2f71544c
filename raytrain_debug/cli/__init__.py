"""The command line: one table of commands, from which parsing, help and docs/commands.md come.

A command is a module with `configure(parser)` and `run(args) -> exit code`. Exit codes: 0 done, 1 the tool failed,
2 wrong usage, also the name of a rank or report that is not there, 3 what was compared differs or `check` found
something; `launch` passes on the job's own.
"""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType

from raytrain_debug.cli import console
from raytrain_debug.errors import RaytrainDebugError, UsageError


@dataclass(frozen=True)
class Command:
    """A row of the table: its name, one line of help, and the module that does it."""

    name: str
    summary: str

    def load(self) -> ModuleType:
        return importlib.import_module(f"raytrain_debug.cli.{self.name}")


COMMANDS = (
    Command("launch", "run a training script under torchrun, ready to be debugged"),
    Command("attach", "open a debugger prompt on a rank of a running job"),
    Command("configure", "write the VS Code configurations for a script"),
    Command("status", "show a line for each rank of a run"),
    Command("stacks", "show where all ranks are, merged, without stopping them"),
    Command("print", "show an expression's value on all ranks, the odd ones first"),
    Command("postmortem", "show how a run ended, its last reports and checkpoints"),
    Command("compare", "compare metrics and checkpoints between ranks, reports or runs (exit code 3: they differ)"),
    Command("check", "tell what in a script will break with real workers, or is old API (exit code 3: found)"),
    Command("runs", "list the recorded runs"),
    Command("adapter", "serve an editor over stdin and stdout (Debug Adapter Protocol)"),
)


def parser(loaded: str | None = None, arguments: Sequence[str] = ()) -> argparse.ArgumentParser:
    """The whole command line's parser; only the module of the command `loaded` is imported (all when None).

    `arguments` are what will be parsed: `launch` takes another set of options with --no-torchrun.
    """
    top = argparse.ArgumentParser(
        prog="python -m raytrain_debug", description="A debugger for Ray Train local mode and torchrun jobs."
    )
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command in COMMANDS:
        sub = commands.add_parser(command.name, help=command.summary, description=command.summary, allow_abbrev=False)
        if loaded in (None, command.name):
            module = command.load()
            if command.name == "launch":
                module.configure(sub, arguments)
            else:
                module.configure(sub)
            sub.set_defaults(run=module.run, refuse=sub.error)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; a mistake of the user is told in words, never as a traceback."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    name = next((argument for argument in arguments if not argument.startswith("-")), "")
    try:
        _check_directory()
        args, unknown = parser(name, arguments).parse_known_args(arguments)
        if unknown:
            args.refuse(f"unrecognized arguments: {' '.join(unknown)}")
        code: int = args.run(args)
        sys.stdout.flush()
        return code
    except RaytrainDebugError as error:
        console.print_error(error)
        return error.exit_code
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:
        # The reader of our output (head, less) left: that is no fault, and the interpreter must not say so at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _check_directory() -> None:
    try:
        os.getcwd()
    except FileNotFoundError:
        raise UsageError("the working directory has been removed", "go to one that is there: cd DIRECTORY") from None
