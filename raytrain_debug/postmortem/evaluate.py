"""Expressions over what a dead rank left, evaluated in this process; code of the user's is not there to be run.

An expression sees the recorded values of a frame, harmless builtins, and a few libraries of numbers and text. This
keeps accidents away (a watch expression that saves a file), not attackers: who types here may run Python anyway.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import importlib.util
import io
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from raytrain_debug.errors import RaytrainDebugError

_NO_BUILTINS = {"breakpoint", "compile", "eval", "exec", "exit", "help", "input", "open", "quit", "__import__", "print"}
# fmt: off
_MODULES = (
    "collections", "datetime", "functools", "inspect", "itertools", "json", "math", "numpy", "operator", "pprint", "re",
    "statistics", "string", "textwrap", "torch",
)
# fmt: on
_AT_HAND = ("math", "numpy", "torch")
"""Modules that need no import, for frames do not record what the script imported."""
_ALIASES = {"np": "numpy"}

Names = Mapping[str, Callable[[], Any]]
"""What an expression may name, each made when it is."""


class EvaluationError(RaytrainDebugError):
    """An expression cannot be evaluated; the message is as Python's: "NameError: ..."."""


@dataclass(frozen=True)
class Result:
    """What came of an expression, or of statements (`value` is None then), and what was printed meanwhile."""

    value: Any
    printed: str
    statement: bool = False


class Evaluator:
    """Evaluates for one person; the names that their statements make are kept, beside what was recorded."""

    def __init__(self) -> None:
        self._scratch: dict[str, Any] = {}

    def evaluate(self, text: str, names: Names, statements: bool = True) -> Result:
        """The value of the expression `text`; or, if it is none and `statements`, what executing it prints.

        Raises EvaluationError.
        """
        printed = io.StringIO()
        try:
            tree, mode = _parsed(text, statements)
            namespace = self._namespace(tree, names, printed)
            if mode == "eval":
                return Result(eval(compile(tree, "<expression>", "eval"), namespace), printed.getvalue())
            taken = sorted(_assigned(tree) & set(names))
            if taken:
                raise EvaluationError(f"{taken[0]} is as the rank left it and stays so: choose another name")
            before = dict(namespace)
            exec(compile(tree, "<statements>", "exec"), namespace)
            made = {name: value for name, value in namespace.items() if before.get(name, _ABSENT) is not value}
            made.pop("__builtins__", None)
            self._scratch.update(made)
            return Result(None, printed.getvalue(), statement=True)
        except RaytrainDebugError:
            raise
        except (Exception, KeyboardInterrupt, SystemExit, GeneratorExit) as error:
            raise EvaluationError(_told(error)) from None

    def complete(self, text: str, names: Names) -> list[str]:
        """What could stand at the end of `text`: names, or attributes of a name before a dot."""
        base, dot, prefix = _word(text).rpartition(".")
        if not dot:
            known = {*names, *self._scratch, *dir(builtins), *filter(_exists, _AT_HAND)} - _NO_BUILTINS
            return sorted(name for name in known if name.startswith(prefix) and (prefix or not name.startswith("_")))
        try:
            value = self.evaluate(base, names, statements=False).value
            found = dir(value)
        except Exception:
            return []
        return sorted(name for name in found if name.startswith(prefix) and (prefix or not name.startswith("_")))

    def _namespace(self, tree: ast.AST, names: Names, printed: io.StringIO) -> dict[str, Any]:
        """Real values for the names in `tree`: a plain dict, which comprehensions and functions look into as well."""
        wanted = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        namespace: dict[str, Any] = {"__builtins__": _builtins(printed), "__name__": "__dead__"}
        for name in _AT_HAND:
            if name in wanted and name not in names and _exists(name):
                namespace[name] = importlib.import_module(name)
        for alias, name in _ALIASES.items():
            if alias in wanted and alias not in names and _exists(name):
                namespace[alias] = importlib.import_module(name)
        namespace.update(self._scratch)
        namespace.update({name: names[name]() for name in wanted if name in names})
        return namespace


_ABSENT = object()


def _parsed(text: str, statements: bool) -> tuple[Any, str]:
    source = text.strip()
    try:
        return ast.parse(source, "<expression>", "eval"), "eval"
    except (SyntaxError, ValueError):
        if not statements:
            raise
        return ast.parse(source, "<statements>", "exec"), "exec"


def _assigned(tree: ast.AST) -> set[str]:
    """Names that statements make, at their top or below."""
    found = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
    found |= {
        node.name for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef))
    }
    return found | {
        (node.asname or node.name).partition(".")[0] for node in ast.walk(tree) if isinstance(node, ast.alias)
    }


def _builtins(printed: io.StringIO) -> dict[str, Any]:
    allowed = {name: value for name, value in vars(builtins).items() if name not in _NO_BUILTINS}

    def print_(*values: Any, **how: Any) -> None:
        how.pop("file", None)
        how.pop("flush", None)
        print(*values, **how, file=printed)

    def import_(name: str, *details: Any, **more: Any) -> Any:
        if name == "builtins":
            return types.SimpleNamespace(**allowed)
        if name.partition(".")[0] in _MODULES:
            return __import__(name, *details, **more)
        raise ImportError(
            f"{name} is not imported here: a dead job is looked at without running its code (there are "
            f"{', '.join(each for each in _MODULES if _exists(each))})"
        )

    allowed["print"] = print_
    allowed["__import__"] = import_
    return allowed


def _told(error: BaseException) -> str:
    if isinstance(error, NameError) and not isinstance(error, UnboundLocalError):
        name = getattr(error, "name", None)
        if name:
            return f"NameError: {name} is not among what the rank left here (imports and functions are not recorded)"
    if isinstance(error, SyntaxError):
        return f"SyntaxError: {error.msg}"
    message = error.args[0] if isinstance(error, KeyError) and len(error.args) == 1 else error
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ in ("builtins", __name__) else f"{kind.__module__}.{kind.__qualname__}"
    return f"{name}: {message}" if str(message) else name


def _exists(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def _word(text: str) -> str:
    """The name, with dots and subscripts, at the end of `text`."""
    at, depth = len(text), 0
    while at:
        char = text[at - 1]
        if char in "])":
            depth += 1
        elif char in "[(":
            depth -= 1
            if depth < 0:
                break
        elif depth == 0 and not (char.isalnum() or char in "_."):
            break
        at -= 1
    return text[at:]
