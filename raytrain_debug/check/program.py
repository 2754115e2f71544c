"""The script with the modules beside it: who defines what, what is the training function, and what runs in workers."""

from __future__ import annotations

import ast
import os
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from raytrain_debug.check.source import DEFINITIONS, FUNCTIONS, Definition, Function, Module, keyword, own_nodes
from raytrain_debug.errors import UnreadableScript, UsageError

_NOTEBOOK = "make a script of it with: jupyter nbconvert --to script NOTEBOOK"
_MOST_MODULES = 300
_MOST_STEPS = 10
_V1_CHOSEN = re.compile(r"""RAY_TRAIN_V2_ENABLED["']\s*\]?\s*[=:,]\s*["']?(0|false)\b""", re.IGNORECASE)
_WORKER_API = re.compile(
    r"ray\.train\.(report|get_context|get_checkpoint|get_dataset_shard|torch\.(prepare_\w+|get_devices?))"
)


@dataclass(frozen=True, eq=False)
class Trainer:
    """A trainer that the program makes; `functions` are the training functions that it is given."""

    module: Module
    call: ast.Call
    kind: str
    functions: tuple[tuple[Module, Function], ...]

    @property
    def is_of_torch(self) -> bool:
        """Whether it is a TorchTrainer."""
        return self.kind.endswith(".TorchTrainer")

    @property
    def num_workers(self) -> object:
        """The number, the two numbers of an elastic job, or `...` when the source alone does not tell."""
        scaling = self.module.value_of(keyword(self.call, "scaling_config"))
        if scaling is None:
            return 1
        if not isinstance(scaling, ast.Call):
            return ...
        value = self.module.value_of(keyword(scaling, "num_workers", 1))
        if value is None:
            return ... if any(each.arg is None for each in scaling.keywords) else 1
        if isinstance(value, ast.Tuple):
            return tuple(self.module.constant(each) for each in value.elts)
        return self.module.constant(value)


class Program:
    """The script at `path` and what it imports from its own directory, as deep as that goes. Nothing is run.

    Raises UsageError when there is no such file, UnreadableScript when it is no Python.
    """

    def __init__(self, path: Path) -> None:
        self.root = path.resolve().parent
        self.modules: dict[str, Module] = {}
        self.unread: list[str] = []
        self.script = self._read(path, "__main__")
        todo = [self.script]
        while todo and len(self.modules) < _MOST_MODULES:
            module = todo.pop()
            for name in sorted(module.imports):
                for part, file in self._files(name):
                    if part not in self.modules and file.resolve() != self.script.path.resolve():
                        try:
                            todo.append(self._read(file, part))
                        except (UnreadableScript, OSError) as error:
                            self.unread.append(str(error))

    def _read(self, path: Path, name: str) -> Module:
        shown = show(path)
        if path.suffix == ".ipynb":  # whose text can be Python: a dict
            raise UnreadableScript(f"{shown} is a notebook, no script", _NOTEBOOK)
        try:
            with tokenize.open(path) as file:
                text = file.read()
        except OSError as error:
            if name != "__main__":
                raise
            raise UsageError(f"{shown} cannot be read: {error.strerror}", "name the training script") from None
        except (SyntaxError, UnicodeDecodeError) as error:
            raise UnreadableScript(f"{shown} is not Python source: {error}", "name the training script") from None
        try:
            module = Module(path, shown, name, text, ast.parse(text), is_package=path.name == "__init__.py")
        except (SyntaxError, ValueError, RecursionError) as error:
            line = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
            what = error.msg if isinstance(error, SyntaxError) else str(error)
            raise UnreadableScript(
                f"{shown}{line} is no Python that can be read: {what}",
                "put that right first",
            ) from None
        self.modules[name] = module
        return module

    def _files(self, dotted: str) -> Iterator[tuple[str, Path]]:
        """The modules beside the script that importing `dotted` runs."""
        parts = dotted.split(".")
        if parts[0] in ("", "ray", "torch", "raytrain_debug"):
            return
        for count in range(1, len(parts) + 1):
            place = self.root.joinpath(*parts[:count])
            for file in (place.with_suffix(".py"), place / "__init__.py"):
                if file.is_file():
                    yield ".".join(parts[:count]), file
                    break

    def is_for_v1(self, file: str, line: int) -> bool:
        """Whether the program switches Ray Train V2 off itself, or asks there whether it is off."""
        return self._chooses_v1 or line in self._v1_lines.get(file, ())

    @cached_property
    def _chooses_v1(self) -> bool:
        return any(_V1_CHOSEN.search(module.text) for module in self.modules.values())

    @cached_property
    def _v1_lines(self) -> dict[str, set[int]]:
        """The lines of each file that run only where `is_v2_enabled()` is not true."""
        found: dict[str, set[int]] = {}
        for module in self.modules.values():
            for node in module.nodes:
                if isinstance(node, ast.If) and "is_v2_enabled()" in (test := ast.unparse(node.test)):
                    for each in node.body if test.startswith("not ") else node.orelse:
                        lines = range(each.lineno, (each.end_lineno or each.lineno) + 1)
                        found.setdefault(module.shown, set()).update(lines)
        return found

    def find(self, dotted: str, steps: int = 0) -> tuple[Module, Definition] | None:
        """The function or class of that dotted name in a module of the program."""
        found = self.find_value(dotted, steps)
        return (found[0], found[1]) if found is not None and isinstance(found[1], DEFINITIONS) else None

    def find_value(self, dotted: str, steps: int = 0) -> tuple[Module, ast.AST] | None:
        """The definition, or the expression assigned to, a dotted name of a module of the program."""
        owner, _, name = dotted.rpartition(".")
        module = self.modules.get(owner)
        if module is None or steps > _MOST_STEPS:
            return None
        bindings = module.bindings[module.tree].get(name)
        if not bindings:
            for star in module.stars:
                if (found := self.find_value(f"{star}.{name}", steps + 1)) is not None:
                    return found
            return None
        binding = bindings[-1]
        if binding.origin is not None:
            return self.find_value(binding.origin, steps + 1)
        what = binding.definition or binding.value
        return (module, what) if what is not None else None

    def definition(self, module: Module, expression: ast.expr) -> tuple[Module, Definition] | None:
        """The function or class of the program that a name or attribute stands for."""
        if isinstance(expression, ast.Name):
            found = module.lookup(expression)
            if found is not None and found[1].definition is not None:
                return module, found[1].definition
            if found is None:
                for star in module.stars:
                    if (there := self.find(f"{star}.{expression.id}")) is not None:
                        return there
                return None
        elif isinstance(expression, ast.Attribute):
            if (owner := self.owner(module, expression)) is not None:
                found_there = owner[0].bindings[owner[1]].get(expression.attr, [])
                return next(((owner[0], each.definition) for each in found_there if each.definition is not None), None)
        else:
            return None
        dotted = module.resolve(expression)
        return self.find(dotted) if dotted is not None else None

    def owner(self, module: Module, expression: ast.Attribute) -> tuple[Module, ast.ClassDef] | None:
        """The class of the program that the object is of: of `self`, or of a name that an object of it is assigned."""
        if not isinstance(expression.value, ast.Name):
            return None
        if expression.value.id == "self":
            around = next((each for each in module.ancestors(expression) if isinstance(each, ast.ClassDef)), None)
            return (module, around) if around is not None else None
        made = module.value_of(expression.value)
        found = self.definition(module, made.func) if isinstance(made, ast.Call) else None
        return (found[0], found[1]) if found is not None and isinstance(found[1], ast.ClassDef) else None

    def functions(
        self, module: Module, expression: ast.expr | None, steps: int = 0
    ) -> Iterator[tuple[Module, Function]]:
        """The functions of the program that an expression may give: a name, a lambda, a partial, a factory's result."""
        if expression is None or steps > _MOST_STEPS:
            return
        if isinstance(expression, ast.Lambda):
            yield module, expression
        elif isinstance(expression, ast.IfExp):
            for each in (expression.body, expression.orelse):
                yield from self.functions(module, each, steps + 1)
        elif isinstance(expression, ast.Call):
            if module.resolve(expression.func) == "functools.partial" and expression.args:
                yield from self.functions(module, expression.args[0], steps + 1)
            elif (factory := self.definition(module, expression.func)) is not None:
                for node in own_nodes(factory[1]):
                    if isinstance(node, ast.Return):
                        yield from self.functions(factory[0], node.value, steps + 1)
        elif (found := self.definition(module, expression)) is not None:
            if isinstance(found[1], FUNCTIONS):
                yield found[0], found[1]
        elif (value := module.value_of(expression)) is not expression:
            yield from self.functions(module, value, steps + 1)

    def calls(self) -> Iterator[tuple[Module, ast.Call, str]]:
        """All calls of something imported or built in, with its dotted name."""
        return iter(self._calls)

    @cached_property
    def _calls(self) -> list[tuple[Module, ast.Call, str]]:
        return [
            (module, node, dotted)
            for module in self.modules.values()
            for node in module.nodes
            if isinstance(node, ast.Call) and (dotted := module.resolve(node.func)) is not None
        ]

    @cached_property
    def uses(self) -> list[tuple[Module, int, str]]:
        """Where imported things are named, at the import and after it: module, line and dotted name."""
        found = []
        for module in self.modules.values():
            for node in module.nodes:
                if isinstance(node, ast.ImportFrom) and not node.level:
                    found += [(module, node.lineno, f"{node.module}.{alias.name}") for alias in node.names]
                elif isinstance(node, ast.Attribute) and (dotted := module.resolve(node)) is not None:
                    found.append((module, node.end_lineno or node.lineno, dotted))
        return found

    @cached_property
    def trainers(self) -> list[Trainer]:
        """The Ray Train trainers that are made."""
        found = []
        for module, call, dotted in self._calls:
            if dotted.startswith("ray.train.") and dotted.endswith("Trainer"):
                given = keyword(call, "train_loop_per_worker", 0)
                found.append(Trainer(module, call, dotted, tuple(self.functions(module, given))))
        return found

    @cached_property
    def training_functions(self) -> list[tuple[Module, Function]]:
        """Those given to trainers; without one in sight, the outermost functions that call Ray Train's worker API."""
        given = [each for trainer in self.trainers for each in trainer.functions]
        if given:
            return list({id(node): (module, node) for module, node in given}.values())
        found: dict[int, tuple[Module, Function]] = {}
        for module, call, dotted in self._calls:
            if _WORKER_API.fullmatch(dotted) and (around := module.functions_around(call)):
                found[id(around[-1])] = (module, around[-1])
        return list(found.values())

    @cached_property
    def worker_code(self) -> list[tuple[Module, Definition]]:
        """The functions and classes that run in workers: the training functions and, in turn, what they name."""
        reached: dict[int, tuple[Module, Definition]] = {}
        todo: list[tuple[Module, Definition]] = list(self.training_functions)
        while todo:
            module, definition = todo.pop()
            if id(definition) in reached:
                continue
            reached[id(definition)] = (module, definition)
            for node in ast.walk(definition):
                if isinstance(node, (ast.Name, ast.Attribute)):
                    found = self.definition(module, node)
                    if found is not None:
                        todo.append(found)
        return list(reached.values())

    @cached_property
    def _worker_nodes(self) -> set[int]:
        return {id(node) for _, definition in self.worker_code for node in ast.walk(definition)}

    def in_worker(self, node: ast.AST) -> bool:
        """Whether it runs in workers."""
        return id(node) in self._worker_nodes

    def worker_calls(self) -> Iterator[tuple[Module, ast.Call, str]]:
        """The calls of `calls()` that run in workers."""
        return (each for each in self._calls if id(each[1]) in self._worker_nodes)

    def reports(self) -> Iterator[tuple[Module, ast.Call]]:
        """The calls of `ray.train.report`."""
        return ((module, call) for module, call, dotted in self._calls if dotted == "ray.train.report")


def show(path: Path) -> str:
    """The path as a person would type it here."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative
