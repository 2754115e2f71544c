"""Source text for the prompt: a file's lines from wherever they are, and which function a line belongs to."""

from __future__ import annotations

import ast
import os
import tokenize
from dataclasses import dataclass

from raytrain_debug.dap.model import Frame
from raytrain_debug.dap.session import Session
from raytrain_debug.errors import DapError, RankEnded


@dataclass(frozen=True)
class Function:
    """A function in a source text: lines `first` (of its decorators) to `last`, and its arguments' names in order."""

    first: int
    last: int
    arguments: tuple[str, ...]


class Sources:
    """The lines of source files: read here where the file is here, asked of the rank where it is not."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._files: dict[str, tuple[float, list[str]]] = {}
        self._asked: dict[str, list[str]] = {}

    def lines(self, frame: Frame) -> list[str]:
        """All lines of the frame's source without their ends; empty when nobody has it."""
        # An adapter that has a text of its own for a file knows that the file on disk is not what ran.
        local = self.file(frame.path) if not frame.source_reference else None
        if local is not None:
            return local
        if frame.path not in self._asked:
            self._asked[frame.path] = self._ask(frame).splitlines()
        return self._asked[frame.path]

    def file(self, path: str) -> list[str] | None:
        """The lines of a file of this machine, read again when it has changed; None when it cannot be read."""
        try:
            changed = os.stat(path).st_mtime
            if path not in self._files or self._files[path][0] != changed:
                with tokenize.open(path) as file:
                    self._files[path] = changed, file.read().splitlines()
        except (OSError, SyntaxError, ValueError):
            return None
        return self._files[path][1]

    def _ask(self, frame: Frame) -> str:
        if frame.source_reference:
            try:
                return self._session.source(frame)
            except RankEnded:
                raise
            except DapError:
                pass
        # A rank on another machine: its adapter gives no text for a path, but the rank itself can read it.
        try:
            expression = f"''.join(__import__('linecache').getlines({frame.path!r}))"
            return self._session.evaluate(expression, frame, "watch", timeout=5.0).value
        except RankEnded:
            raise
        except DapError:
            return ""


def function_at(lines: list[str], line: int) -> Function | None:
    """The innermost function around `line` (1-based); None outside any, and in text that is not Python."""
    found: Function | None = None
    for node in _functions(lines):
        first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
        last = node.end_lineno or first
        if first <= line <= last and (found is None or first >= found.first):
            found = Function(first, last, _argument_names(node.args))
    return found


def first_line_of(lines: list[str], name: str) -> int | None:
    """The first line to run in the function called `name`; None when the text defines none."""
    for node in _functions(lines):
        if node.name == name:
            body = node.body
            has_docstring = ast.get_docstring(node, clean=False) is not None and len(body) > 1
            return body[1 if has_docstring else 0].lineno
    return None


def _functions(lines: list[str]) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    try:
        tree = ast.parse("\n".join(lines))
    except (SyntaxError, ValueError, RecursionError):
        return []
    return [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]


def _argument_names(arguments: ast.arguments) -> tuple[str, ...]:
    named = [*arguments.posonlyargs, *arguments.args]
    if arguments.vararg:
        named.append(arguments.vararg)
    named += arguments.kwonlyargs
    if arguments.kwarg:
        named.append(arguments.kwarg)
    return tuple(argument.arg for argument in named)
