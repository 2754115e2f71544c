"""Which reported metrics are tensors: in the source, and in the records of a run."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from raytrain_debug.check.finding import Place, Subject
from raytrain_debug.check.program import Program
from raytrain_debug.check.recorded import site
from raytrain_debug.check.source import FUNCTIONS, Module, keyword
from raytrain_debug.check.tensors import holds_tensor

_TAKE_AWAY = ("pop", "popitem", "clear")
_MOST_STEPS = 3

Written = tuple[str, ast.expr] | None
"""A metric's name, as it is spelt, with its value; None where anything may be put in or taken away."""


def tensor_metrics(subject: Subject) -> Iterator[Place]:
    """The metrics that are tensors, or hold one."""
    program = subject.program
    for module, call in program.reports():
        for name, given in _by_name(_written(program, module, keyword(call, "metrics", 0), call)).items():
            certain = [each for each in given[:-1] if _is_conditional(module, each)]
            if all(holds_tensor(module, each) for each in (*certain, given[-1])):
                yield _place(module.shown, given[-1].lineno, name)
    for rank in subject.run.ranks if subject.run is not None else ():
        for report in rank.reports:
            file, line = site(report, subject)
            for metric, kept in report.metrics.items():
                kind = kept.get("$type") if isinstance(kept, dict) else None
                if metric in report.tensors or kind in ("torch.Tensor", "torch.nn.parameter.Parameter"):
                    yield _place(file, line, repr(metric))


def _place(file: str, line: int, name: str) -> Place:
    return Place(file, line, f"the metric {name} is a tensor: local mode takes it, a worker's report raises ValueError")


def _is_conditional(module: Module, node: ast.AST) -> bool:
    for around in module.ancestors(node):
        if isinstance(around, FUNCTIONS):
            return False
        if isinstance(around, ast.If):
            return True
    return False


def _by_name(written: Iterable[Written]) -> dict[str, list[ast.expr]]:
    """The values that each metric is given, as far as nothing unknown may have changed them."""
    values: dict[str, list[ast.expr]] = {}
    for each in written:
        if each is None:
            values.clear()
        else:
            values.setdefault(each[0], []).append(each[1])
    return values


def _written(
    program: Program, module: Module, mapping: ast.expr | None, until: ast.expr, steps: int = 0
) -> Iterator[Written]:
    """What is in a mapping that is made in sight, and put into it before `until`, in the order of the source."""
    made = module.value_of(mapping) if steps <= _MOST_STEPS else None
    if isinstance(made, ast.Dict):
        for key, value in zip(made.keys, made.values, strict=True):
            if key is None:  # unknown ones are taken to be others: {"loss": loss, **timing}
                there = _by_name(_written(program, module, value, until, steps + 1))
                yield from ((name, each) for name, given in there.items() for each in given)
            else:
                yield ast.unparse(key), value
    elif isinstance(made, ast.Call) and module.resolve(made.func) == "builtins.dict":
        yield from _arguments(program, module, made, until, steps)
    elif isinstance(made, ast.Call) and isinstance(made.func, ast.Attribute) and made.func.attr == "copy":
        yield from _written(program, module, made.func.value, until, steps + 1)
    else:
        yield None
        if not isinstance(made, ast.DictComp):
            return  # no dict for sure: it may make numbers of what is put into it
    if isinstance(mapping, ast.Name):
        for change in sorted(_uses(module, mapping, until), key=_position):
            yield from _change(program, module, change, until, steps)


def _arguments(program: Program, module: Module, call: ast.Call, until: ast.expr, steps: int) -> Iterator[Written]:
    """What a call of `dict` or `update` gives."""
    for argument in call.args:
        yield from _written(program, module, argument, until, steps + 1)
    for given in call.keywords:
        if given.arg is None:
            yield from _written(program, module, given.value, until, steps + 1)
        else:
            yield repr(given.arg), given.value


def _uses(module: Module, name: ast.Name, until: ast.expr) -> Iterator[ast.Name]:
    """Where the same object is named before `until`."""
    found = module.lookup(name)
    for node in module.nodes:
        if (
            isinstance(node, ast.Name)
            and node.id == name.id
            and isinstance(node.ctx, ast.Load)
            and _position(node) < _position(until)
            and module.lookup(node) == found
        ):
            yield node


def _position(node: ast.expr) -> tuple[int, int]:
    return node.lineno, node.col_offset


def _change(program: Program, module: Module, name: ast.Name, until: ast.expr, steps: int) -> Iterator[Written]:
    """What a use of a dict changes in it."""
    parent = module.parents[name]
    around = module.parents[parent]
    if isinstance(parent, ast.Subscript) and name is parent.value and not isinstance(parent.ctx, ast.Load):
        if isinstance(around, ast.AugAssign):
            if holds_tensor(module, around.value):
                yield ast.unparse(parent.slice), around.value
            return
        if not isinstance(parent.slice, (ast.Constant, ast.JoinedStr)):
            yield None  # any of them
        if isinstance(around, ast.Assign):
            yield ast.unparse(parent.slice), around.value
        else:
            yield None
    elif isinstance(parent, ast.Attribute) and isinstance(around, ast.Call) and around.func is parent:
        if parent.attr == "update":
            yield from _arguments(program, module, around, around, steps)
        elif parent.attr in _TAKE_AWAY:
            yield None
    elif isinstance(parent, ast.Call) and program.definition(module, parent.func) is not None:
        yield None  # which may make numbers of them
