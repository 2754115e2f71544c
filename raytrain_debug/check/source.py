"""One module's source: what each name in it is bound to, found without running any of it."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
Definition = Function | ast.ClassDef
Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
Scope = ast.Module | Definition | Comprehension

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
DEFINITIONS = (*FUNCTIONS, ast.ClassDef)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_MOST_ALIASES = 10


@dataclass(frozen=True)
class Binding:
    """One place that gives a name its value.

    `origin` is the dotted name of what is imported, `definition` a function or class, `value` the expression assigned;
    `entered` when a `with` binds what that expression gives. All None: a parameter, a loop's variable, and the like.
    """

    line: int
    origin: str | None = None
    definition: Definition | None = None
    value: ast.expr | None = None
    entered: bool = False
    augmented: bool = False


@dataclass(frozen=True, eq=False)
class Module:
    """A parsed file. `name` is dotted, relative to the script's directory, and `__main__` for the script itself."""

    path: Path
    shown: str
    name: str
    text: str
    tree: ast.Module
    is_package: bool = False
    imports: set[str] = field(default_factory=set)
    stars: list[str] = field(default_factory=list)
    parents: dict[ast.AST, ast.AST] = field(default_factory=dict)
    scopes: dict[ast.AST, Scope] = field(default_factory=dict)
    bindings: dict[Scope, dict[str, list[Binding]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _Indexer(self).scope(self.tree)

    @property
    def is_main(self) -> bool:
        """Whether this is the script itself: what it defines travels by value."""
        return self.name == "__main__"

    @property
    def nodes(self) -> Collection[ast.AST]:
        """All nodes of the source."""
        return self.parents.keys()

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        """The nodes around `node`, innermost first."""
        while (parent := self.parents.get(node)) is not None:
            yield parent
            node = parent

    def functions_around(self, node: ast.AST) -> list[Function]:
        """The functions that `node` lies in, innermost first."""
        return [each for each in self.ancestors(node) if isinstance(each, FUNCTIONS)]

    def lookup(self, name: ast.Name) -> tuple[Scope, Binding] | None:
        """What `name` is bound to there: the nearest binding before it in its scope, else the first one after it."""
        scope: Scope | None = self.scopes.get(name, self.tree)
        first = True
        while scope is not None:
            if (first or not isinstance(scope, ast.ClassDef)) and (found := self.bindings[scope].get(name.id)):
                # In `x = f(x)` the second x is not yet the first one.
                others = [each for each in found if each.augmented or not _holds(each.value, name)]
                if others:
                    return scope, nearest(others, name.lineno)
            first = False
            scope = self.scopes.get(scope)
        return None

    def resolve(self, expression: ast.expr | None, depth: int = 0) -> str | None:
        """The dotted name of what an imported or built-in name stands for ("ray.train.report"); None for all else."""
        if isinstance(expression, ast.Attribute):
            base = self.resolve(expression.value, depth)
            return f"{base}.{expression.attr}" if base else None
        if not isinstance(expression, ast.Name) or depth > _MOST_ALIASES:
            return None
        found = self.lookup(expression)
        if found is None:
            return f"builtins.{expression.id}" if hasattr(builtins, expression.id) else None
        binding = found[1]
        if binding.origin is not None:
            return binding.origin
        if isinstance(binding.value, (ast.Name, ast.Attribute)) and not binding.augmented and not binding.entered:
            return self.resolve(binding.value, depth + 1)
        return None

    def value_of(self, expression: ast.expr | None) -> ast.expr | None:
        """The expression behind a name that is assigned one; any other expression as it is."""
        for _ in range(_MOST_ALIASES):
            if not isinstance(expression, ast.Name):
                break
            found = self.lookup(expression)
            if found is None or found[1].value is None or found[1].augmented or found[1].value is expression:
                break
            expression = found[1].value
        return expression

    def constant(self, expression: ast.expr | None) -> object:
        """The number or text that an expression is for sure; `...` when it is not known."""
        value = self.value_of(expression)
        return value.value if isinstance(value, ast.Constant) else ...


def _holds(expression: ast.expr | None, name: ast.Name) -> bool:
    """Whether `name` is a part of the expression."""
    if expression is None or expression.end_lineno is None or expression.end_col_offset is None:
        return False
    start, end = (expression.lineno, expression.col_offset), (expression.end_lineno, expression.end_col_offset)
    return start <= (name.lineno, name.col_offset) < end


def nearest(bindings: list[Binding], line: int) -> Binding:
    """The last of them before `line`, else the first."""
    before = [each for each in bindings if each.line <= line]
    return before[-1] if before else bindings[0]


def keyword(call: ast.Call, name: str, position: int | None = None) -> ast.expr | None:
    """The argument of that name, or at that position, as far as nothing of unknown length comes before."""
    for each in call.keywords:
        if each.arg == name:
            return each.value
    if position is None or any(isinstance(each, ast.Starred) for each in call.args[: position + 1]):
        return None
    return call.args[position] if len(call.args) > position else None


def own_nodes(scope: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function's body, without those of functions and classes inside it."""
    body = getattr(scope, "body", [])
    todo: list[ast.AST] = list(body) if isinstance(body, list) else [body]
    while todo:
        node = todo.pop()
        yield node
        if not isinstance(node, DEFINITIONS):
            todo.extend(ast.iter_child_nodes(node))


class _Indexer:
    """Fills a module's tables."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.given: dict[ast.Name, Binding] = {}  # what statements give to names that are still to be visited
        self.outer: dict[tuple[Scope, str], Scope] = {}  # where `global` and `nonlocal` names live

    def scope(self, scope: ast.Module | Definition) -> None:
        self.module.bindings[scope] = {}
        for parameter in getattr(scope, "type_params", ()):
            self.bind(scope, parameter.name, Binding(parameter.lineno))
        if isinstance(scope, FUNCTIONS):
            arguments = scope.args
            for each in (
                *arguments.posonlyargs,
                *arguments.args,
                *arguments.kwonlyargs,
                arguments.vararg,
                arguments.kwarg,
            ):
                if each is not None:
                    self.bind(scope, each.arg, Binding(scope.lineno))
        body = [scope.body] if isinstance(scope, ast.Lambda) else scope.body
        for node in body:
            self.visit(node, scope, scope)

    def bind(self, scope: Scope, name: str, binding: Binding) -> None:
        self.module.bindings[scope].setdefault(name, []).append(binding)
        if (outer := self.outer.get((scope, name))) is not None:
            # Others see that it changes, but not when: the value stays with the function that gives it.
            self.bind(outer, name, replace(binding, value=None, entered=False, augmented=False))

    def visit(self, node: ast.AST, parent: ast.AST, scope: Scope) -> None:
        self.module.parents[node] = parent
        self.module.scopes[node] = scope
        if isinstance(node, DEFINITIONS):
            self.definition(node, scope)
            return
        self.bindings_of(node, scope)
        inner = scope
        if isinstance(node, COMPREHENSIONS):
            self.module.bindings[node] = {}
            inner = node
        for child in ast.iter_child_nodes(node):
            self.visit(child, node, self.module.scopes[parent] if _is_first_iterable(child, node, parent) else inner)

    def definition(self, node: Definition, scope: Scope) -> None:
        if not isinstance(node, ast.Lambda):
            self.bind(scope, node.name, Binding(node.lineno, definition=node))
        # What stands in a definition's head is evaluated outside of it.
        body = {id(each) for each in ([node.body] if isinstance(node, ast.Lambda) else node.body)}
        for child in ast.iter_child_nodes(node):
            if id(child) not in body:
                self.visit(child, node, scope)
        self.scope(node)

    def bindings_of(self, node: ast.AST, scope: Scope) -> None:
        if isinstance(node, ast.Name):
            if not isinstance(node.ctx, ast.Load):
                self.bind(self.scope_of(node, scope), node.id, self.given.get(node) or Binding(node.lineno))
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            self.imports(node, scope)
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                self.give(target, node.value)
        elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)):
            self.give(node.target, node.value)
        elif isinstance(node, ast.AugAssign):
            if isinstance(node.target, ast.Name):
                self.given[node.target] = Binding(node.lineno, value=node.value, augmented=True)
        elif isinstance(node, ast.withitem):
            if isinstance(name := node.optional_vars, ast.Name):
                self.given[name] = Binding(name.lineno, value=node.context_expr, entered=True)
        elif isinstance(node, (ast.Global, ast.Nonlocal)):
            for each in node.names:
                if (outer := self.declared(node, each, scope)) is not None:
                    self.outer[scope, each] = outer
        elif isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)):
            if node.name:
                self.bind(scope, node.name, Binding(node.lineno))
        elif isinstance(node, ast.MatchMapping) and node.rest:
            self.bind(scope, node.rest, Binding(node.lineno))

    def imports(self, node: ast.Import | ast.ImportFrom, scope: Scope) -> None:
        base = self.base(node) if isinstance(node, ast.ImportFrom) else None
        if base is not None:
            self.module.imports.add(base)
        for alias in node.names:
            if alias.name == "*":
                self.module.stars.append(base or "")
                continue
            origin = f"{base}.{alias.name}" if base else alias.name
            self.module.imports.add(origin)
            name = alias.asname or alias.name
            if base is None and not alias.asname:  # `import a.b` gives the name of the package
                name = origin = alias.name.partition(".")[0]
            self.bind(scope, name, Binding(node.lineno, origin=origin))

    def give(self, target: ast.expr, value: ast.expr | None) -> None:
        """Note what the names of a target are assigned; names without a note are bound to what nobody knows."""
        if isinstance(target, ast.Name) and value is not None:
            self.given[target] = Binding(target.lineno, value=value)
        elif (
            isinstance(target, (ast.Tuple, ast.List))
            and isinstance(value, (ast.Tuple, ast.List))
            and len(value.elts) == len(target.elts)
        ):
            for each, part in zip(target.elts, value.elts, strict=True):
                self.give(each, part)

    def scope_of(self, name: ast.Name, scope: Scope) -> Scope:
        """Where a name is bound: `:=` gives it to what is around the comprehension."""
        if isinstance(self.module.parents[name], ast.NamedExpr):
            while isinstance(scope, COMPREHENSIONS):
                scope = self.module.scopes[scope]
        return scope

    def declared(self, node: ast.Global | ast.Nonlocal, name: str, scope: Scope) -> Scope | None:
        """The scope, other than `scope`, that a declared name belongs to; None when it is not bound there yet."""
        if isinstance(node, ast.Global):
            return self.module.tree if scope is not self.module.tree else None
        around = self.module.scopes.get(scope)
        while around is not None and not (isinstance(around, FUNCTIONS) and name in self.module.bindings[around]):
            around = self.module.scopes.get(around)
        return around

    def base(self, node: ast.ImportFrom) -> str:
        """The module that names are imported from, relative to the script's directory."""
        if not node.level:
            return node.module or ""
        package = [] if self.module.is_main else self.module.name.split(".")
        up = node.level - 1 if self.module.is_package or self.module.is_main else node.level
        package = package[: len(package) - up] if up else package
        return ".".join([*package, *([node.module] if node.module else [])])


def _is_first_iterable(node: ast.AST, clause: ast.AST, comprehension: ast.AST) -> bool:
    """Whether it is what a comprehension runs over first, which is evaluated outside of it."""
    return (
        isinstance(clause, ast.comprehension)
        and isinstance(comprehension, COMPREHENSIONS)
        and comprehension.generators[0] is clause
        and node is clause.iter
    )
