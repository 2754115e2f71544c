"""docs/commands.md, made from the table of commands: `python -m raytrain_debug.cli.reference > docs/commands.md`."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from raytrain_debug.cli import COMMANDS, Command
from raytrain_debug.cli.prompt import commands as prompt


def format_reference() -> Iterator[str]:
    """The page's lines."""
    yield "# Commands"
    yield ""
    yield "`python -m raytrain_debug COMMAND`, or `raytrain-debug COMMAND`. RANKS are written `0,2-3` or `all`."
    yield "Exit codes: 0 done, 1 the tool failed, 2 wrong usage, also the name of a rank or report that is not there,"
    yield "3 `compare` found a difference or `check` something; `launch` passes on the job's own."
    for command in COMMANDS:
        yield from _format_command(command)
    yield ""
    yield "## The prompt of attach"
    yield ""
    yield "| command | does |"
    yield "|---|---|"
    for row in prompt.COMMANDS:
        names = ", ".join(f"`{name}`" for name in (row.name, *row.aliases))
        arguments = f" `{row.arguments}`" if row.arguments else ""
        yield f"| {names}{_cell(arguments) and ' ' + _cell(arguments)} | {_cell(row.summary)} |"


def _format_command(command: Command) -> Iterator[str]:
    parser = argparse.ArgumentParser(prog=f"python -m raytrain_debug {command.name}", add_help=False)
    # With --no-torchrun, launch leaves torchrun's own options out: torchrun documents those.
    module = command.load()
    module.configure(parser, ["--no-torchrun"]) if command.name == "launch" else module.configure(parser)
    yield ""
    yield f"## {command.name}"
    yield ""
    yield command.summary[0].upper() + command.summary[1:] + "."
    usage = " ".join((parser.usage or parser.format_usage().partition(":")[2]).split())
    yield ""
    yield f"    {usage}"
    actions = [action for action in parser._actions if action.help != argparse.SUPPRESS]
    if actions:
        yield ""
        yield "| | |"
        yield "|---|---|"
    for action in actions:
        help_text = (action.help or "") % {**vars(action), "prog": parser.prog} if action.help else ""
        yield f"| {_cell(_format_option(action))} | {_cell(help_text)} |"


def _format_option(action: argparse.Action) -> str:
    name = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
    if not action.option_strings:
        return f"`{name}`"
    value = "" if action.nargs == 0 else f" {name}"
    return ", ".join(f"`{option}{value}`" for option in action.option_strings)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    print("\n".join(format_reference()))
