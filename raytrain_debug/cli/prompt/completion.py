"""What could be typed next at the prompt: commands, names in the frame, files to stop in."""

from __future__ import annotations

import os
import re

from raytrain_debug.cli.prompt.commands import BY_NAME, COMMANDS
from raytrain_debug.cli.prompt.view import View
from raytrain_debug.errors import RaytrainDebugError

_NAME = re.compile(r"\w*$")
_COMMAND = re.compile(r"\s*(?:(!)|(\w+)\s+)(.*)$", re.DOTALL)


def complete(view: View, text: str) -> tuple[int, list[str]]:
    """How many characters at the end of `text` are being completed, and the words that could stand there."""
    match = _COMMAND.fullmatch(text)
    command = BY_NAME.get(match[1] or match[2]) if match else None
    if match is None or command is None:
        length, words = _names(view, text)
        commands = [name for each in COMMANDS for name in (each.name, *each.aliases) if name.isalpha()]
        typed = text.lstrip()
        return length, sorted(name for name in commands if typed.isalpha() and name.startswith(typed)) + words
    rest = match[3]
    if command.takes == "command":
        return len(rest), sorted(name for name in BY_NAME if name.startswith(rest))
    if command.takes == "ranks":
        return len(rest), [word for word in ("all", "where ") if rest and word.startswith(rest)]
    if command.takes == "place" and "," not in rest:
        length, words = _names(view, rest)
        files = _files(view, rest)
        return (len(rest), files) if files else (length, words)
    if command.takes in ("expression", "place"):
        return _names(view, rest.rpartition(",")[2] if command.takes == "place" else rest)
    return 0, []


def _names(view: View, text: str) -> tuple[int, list[str]]:
    """Names and attributes as the rank knows them in the frame."""
    typed = _NAME.search(text)
    length = len(typed[0]) if typed else 0
    try:
        words = view.session.completions(text, len(text), view.frame)
    except RaytrainDebugError:
        return length, []  # it runs, or it has gone: there is nothing to offer, and this is no time to say so
    prefix = text[len(text) - length :]
    # pydevd does not mind the case; who types `con` means `config` and not `ConnectionError`, if there is one.
    words = [word for word in words if word.startswith(prefix)] or words
    # Dunder names only for who asks for them.
    return length, sorted({word for word in words if prefix.startswith("_") or not word.startswith("__")})


def _files(view: View, typed: str) -> list[str]:
    """Python files and directories that `typed` could be the start of; of files, ready for the line number."""
    directory, name = os.path.split(typed)
    found = []
    for base in dict.fromkeys((view.cwd, os.getcwd())):
        try:
            entries = sorted(os.scandir(os.path.join(base, directory)), key=lambda entry: entry.name)
        except OSError:
            continue
        for entry in entries:
            if entry.name.startswith(name or "") and not (entry.name.startswith(".") and not name):
                if entry.is_dir():
                    found.append(os.path.join(directory, entry.name) + os.sep)
                elif entry.name.endswith(".py"):
                    found.append(os.path.join(directory, entry.name) + ":")
    return list(dict.fromkeys(found)) if typed else []
