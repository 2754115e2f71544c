"""The table of the prompt's commands, from which dispatch, help, completion and the documentation come."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from raytrain_debug.cli.prompt import breaks, focus, look, motion
from raytrain_debug.cli.prompt.breaks import Table
from raytrain_debug.cli.prompt.focus import Focus
from raytrain_debug.cli.prompt.motion import Go
from raytrain_debug.cli.prompt.view import CommandError, View

Answer = str | Table | Go | Focus | None
"""What a command gives: text or breakpoints to show, a motion, other ranks to look at, or None to leave the prompt."""


@dataclass(frozen=True)
class Command:
    """A row: its name as pdb has it, other names, arguments, what it does, and what its argument completes as.

    `takes` is "expression", "place", "command", "ranks" or "". A command that is `once` is about the prompt, not about
    each rank that it looks at. The first line of the function's docstring is the summary.
    """

    name: str
    aliases: tuple[str, ...]
    arguments: str
    run: Callable[[View, str], Answer]
    takes: str = ""
    once: bool = False

    @property
    def summary(self) -> str:
        return self.help.partition("\n")[0]

    @property
    def help(self) -> str:
        lines = (self.run.__doc__ or "").strip().splitlines()
        return "\n".join(line.strip() for line in lines)


def help_(view: View, argument: str) -> str:
    """List the commands, or explain COMMAND."""
    if argument:
        command = BY_NAME.get(argument)
        if command is None:
            raise CommandError(f"No help for {argument!r}")
        names = "  ".join((command.name, *command.aliases))
        return f"{names}{'  ' if command.arguments else ''}{command.arguments}\n{command.help}"
    rows = [f"{' '.join((each.name, *each.aliases)):<16}{each.arguments:<28}{each.summary}" for each in COMMANDS]
    return "\n".join(rows) + "\nAn empty line repeats the last command; anything else is executed in the frame."


def quit_(view: View, argument: str) -> None:
    """Detach and leave; what was debugged goes on."""
    return


COMMANDS: tuple[Command, ...] = (
    Command("h", ("help", "?"), "[COMMAND]", help_, "command", once=True),
    Command("w", ("where", "bt"), "", look.where),
    Command("u", ("up",), "[COUNT]", look.up),
    Command("d", ("down",), "[COUNT]", look.down),
    Command("l", ("list",), "[FIRST[, LAST] | .]", look.list_),
    Command("ll", ("longlist",), "", look.long_list),
    Command("p", (), "EXPRESSION", look.print_, "expression"),
    Command("pp", (), "EXPRESSION", look.pretty_print, "expression"),
    Command("whatis", (), "EXPRESSION", look.what_is, "expression"),
    Command("a", ("args",), "", look.arguments),
    Command("!", (), "STATEMENT", look.execute, "expression"),
    Command("n", ("next",), "", motion.next_),
    Command("s", ("step",), "", motion.step),
    Command("r", ("return",), "", motion.return_),
    Command("c", ("cont", "continue"), "", motion.continue_),
    Command("unt", ("until",), "[LINE]", motion.until),
    Command("j", ("jump",), "LINE", motion.jump),
    Command("b", ("break",), "[PLACE[, CONDITION]]", breaks.break_, "place"),
    Command("tbreak", (), "[PLACE[, CONDITION]]", breaks.temporary_break, "place"),
    Command("cl", ("clear",), "[NUMBER ... | FILE:LINE]", breaks.clear, "place"),
    Command("threads", (), "", look.threads),
    Command("thread", (), "NUMBER", look.thread),
    Command("info", (), "threads | breakpoints", look.info),
    Command("focus", (), "[RANKS | where PLACE]", focus.focus, "ranks", once=True),
    Command("q", ("quit", "exit"), "", quit_, once=True),
)

BY_NAME = {name: command for command in COMMANDS for name in (command.name, *command.aliases)}

INSTEAD = {
    "commands": "give what follows a stop in a script: attach --rank 1 -c 'b train.py:12' -c c -c 'p loss'",
    "condition": "clear the breakpoint and set it anew: b train.py:12, CONDITION",
    "disable": "clear the breakpoint: cl NUMBER",
    "display": "p EXPRESSION, and an empty line prints it again",
    "enable": "set the breakpoint anew: b train.py:12",
    "ignore": "count in the condition: b train.py:12, step > 100",
    "interact": "every line that is no command is executed in the frame",
    "source": "open the file in the editor, or ask with whatis",
    "undisplay": "p EXPRESSION, and an empty line prints it again",
}
"""pdb's commands that are not here, and what to type in their place."""

_WORD = re.compile(r"(\w+|\?)(?:\s+(.*))?", re.DOTALL)
_OPERATOR = re.compile(r"(==?|!=|[-+*/%&|^@]=|//=|\*\*=|<<=|>>=)")


def parse(line: str) -> tuple[Command, str]:
    """The command that `line` (not empty) names and its argument; what names none is a statement for the frame.

    Unlike pdb's, `n = 3`, `n + 1` and `n.item()` are about the variable n, for nobody means the command.
    """
    line = line.strip()
    if line.startswith("!"):
        return BY_NAME["!"], line[1:].strip()
    match = _WORD.fullmatch(line)
    if match is not None and match[1] in BY_NAME:
        command, argument = BY_NAME[match[1]], (match[2] or "").strip()
        if not argument or (command.arguments and not _OPERATOR.match(argument)):
            return command, argument
    if match is not None and match[1] in INSTEAD and not _OPERATOR.match(match[2] or ""):
        return Command(match[1], (), "", partial(_absent, match[1]), once=True), ""
    return BY_NAME["!"], line


def _absent(name: str, view: View, argument: str) -> None:
    raise CommandError(f"{name!r} is not offered here: {INSTEAD[name]}")
