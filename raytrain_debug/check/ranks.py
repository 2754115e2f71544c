"""Which conditions differ from rank to rank."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import cast

from raytrain_debug.check.source import FUNCTIONS, Module

_NAME = re.compile(
    r"((world|global|local|node|worker|process|dist|ddp|my|cur|current)_?)?rank(_?id)?"
    r"|is_(\w+_)?(main|master|chief)(_\w+)?|(main|master|chief)_(process|rank|worker|node)"
    r"|is_(\w+_)?(zero|rank_?(zero|0))|rank_?(zero|0)",
    re.IGNORECASE,
)
_CALL = re.compile(r"(get_)?(\w+_)?rank|is_\w*(main_process|master|rank_?zero|global_zero)\w*")
_ENVIRONMENT = ("RANK", "LOCAL_RANK", "GROUP_RANK", "NODE_RANK")
_LEAVES = (ast.Return, ast.Continue, ast.Break)
_NOT_RANKS = ("lora_rank", "matrix_rank", "get_matrix_rank")


def differs(module: Module, test: ast.expr, depth: int = 0) -> bool:
    """Whether a condition asks for the rank, so that ranks go different ways there."""
    if isinstance(test, ast.Compare) and all(isinstance(op, (ast.Is, ast.IsNot)) for op in test.ops):
        return False  # `rank is None` asks whether there is one
    if isinstance(test, (ast.BoolOp, ast.Compare, ast.UnaryOp, ast.BinOp, ast.NamedExpr)):
        return any(differs(module, each, depth) for each in ast.iter_child_nodes(test) if isinstance(each, ast.expr))
    if isinstance(test, ast.Name):
        if _NAME.fullmatch(test.id) and test.id not in _NOT_RANKS:
            return True
        value = module.value_of(test)
        return value is not None and value is not test and depth < 5 and differs(module, value, depth + 1)
    if isinstance(test, ast.Attribute):
        return _NAME.fullmatch(test.attr) is not None
    if isinstance(test, ast.Subscript):
        return isinstance(test.slice, ast.Constant) and test.slice.value in _ENVIRONMENT
    if isinstance(test, ast.Call):
        name = test.func.attr if isinstance(test.func, ast.Attribute) else getattr(test.func, "id", "")
        if _CALL.fullmatch(name) and name not in _NOT_RANKS:
            return True
        if name in ("int", "getenv", "get"):
            return any(
                differs(module, each, depth) or (isinstance(each, ast.Constant) and each.value in _ENVIRONMENT)
                for each in test.args
            )
    return False


def only_some(module: Module, node: ast.AST, does: set[int]) -> int | None:
    """The line of the condition by which only some ranks come to `node`, without leaving its function.

    `does` has the ids of nodes that do the same thing: where the other ranks come to one of those, all do it.
    """
    child = node
    for around in module.ancestors(node):
        for condition, others in _choices(module, around, child):
            if differs(module, condition) and not _contains(others, does):
                return condition.lineno
        for before in _before(around, child):
            if (line := _leaves(module, before, does)) is not None:
                return line
        if isinstance(around, FUNCTIONS):
            return None
        child = around
    return None


def _choices(module: Module, around: ast.AST, child: ast.AST) -> Iterator[tuple[ast.expr, Sequence[ast.AST]]]:
    """The conditions by which `around` comes to its part `child`, each with what is done in its stead."""
    if isinstance(around, ast.If) and child is not around.test:
        branch, other = (around.body, around.orelse) if child in around.body else (around.orelse, around.body)
        if isinstance(branch[-1], _LEAVES):  # what follows is for the others
            other = other + _after(module, around)
        yield around.test, other
    elif isinstance(around, ast.IfExp) and child is not around.test:
        yield around.test, [around.orelse if child is around.body else around.body]
    elif isinstance(around, ast.BoolOp):
        for value in around.values[: around.values.index(cast(ast.expr, child))]:
            yield value, []
    elif isinstance(around, ast.While) and child in around.body:
        yield around.test, around.orelse
    elif isinstance(around, ast.match_case) and child in around.body:
        cases = cast(ast.Match, module.parents[around])
        others = [statement for case in cases.cases if case is not around for statement in case.body]
        if isinstance(around.body[-1], _LEAVES):
            others += _after(module, cases)
        if around.guard is not None:
            yield around.guard, others
        if not (around is cases.cases[0] and _takes_all(around.pattern)):
            yield cases.subject, others


def _takes_all(pattern: ast.pattern) -> bool:
    return isinstance(pattern, ast.MatchAs) and pattern.pattern is None


def _block(around: ast.AST, statement: ast.AST) -> list[ast.stmt]:
    """The statements of `around` that `statement` is one of."""
    for name in ("body", "orelse", "finalbody"):
        block = getattr(around, name, None)
        if isinstance(block, list) and statement in block:
            return block
    return []


def _before(around: ast.AST, statement: ast.AST) -> list[ast.stmt]:
    return list(takewhile(lambda each: each is not statement, _block(around, statement)))


def _after(module: Module, statement: ast.stmt) -> list[ast.stmt]:
    parent = module.parents[statement]
    return _block(parent, statement)[len(_before(parent, statement)) + 1 :]


def _leaves(module: Module, statement: ast.stmt, does: set[int]) -> int | None:
    """The line of a condition on the rank, a branch of which leaves what follows without having done the same thing."""
    if isinstance(statement, ast.If):
        condition, branches = statement.test, [statement.body, statement.orelse]
    elif isinstance(statement, ast.Match):
        condition, branches = statement.subject, [case.body for case in statement.cases]
    else:
        return None
    for branch in branches if differs(module, condition) else ():
        end = branch[-1] if branch else None
        leaves = isinstance(end, _LEAVES) or (isinstance(end, ast.Raise) and _is_caught(module, statement, end))
        if leaves and not _contains(branch, does):
            return condition.lineno
    return None


def _is_caught(module: Module, branch: ast.stmt, raised: ast.Raise) -> bool:
    """Whether its function catches what is raised there and goes on; a failure ends the run, and nothing hangs."""
    made = raised.exc.func if isinstance(raised.exc, ast.Call) else raised.exc
    names = {"Exception", "BaseException", ast.unparse(made) if made is not None else ""}
    child: ast.AST = branch
    for around in module.ancestors(branch):
        if isinstance(around, FUNCTIONS):
            return False
        if isinstance(around, ast.Try) and child in around.body:
            for handler in around.handlers:
                kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
                if any(kind is None or ast.unparse(kind) in names for kind in kinds):
                    return not isinstance(handler.body[-1], ast.Raise)
        child = around
    return False


def _contains(block: Sequence[ast.AST], nodes: set[int]) -> bool:
    return any(id(node) in nodes for statement in block for node in ast.walk(statement))
