"""What the training function saves where Ray keeps nothing of it, when the program reports no checkpoint."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from raytrain_debug.check.finding import Place, Subject
from raytrain_debug.check.program import Program
from raytrain_debug.check.ranks import only_some
from raytrain_debug.check.source import FUNCTIONS, Function, Module, Scope, keyword

_MAYBE_MODEL = re.compile(r"state_dict|model|net\b|optimizer|checkpoint|ckpt")
_MODEL = re.compile(
    r"^(self\.)?((best|final|trained)_)?(model|net|network|classifier|booster)(\.module)?$"
    r"|\.(state_dict|get_weights)\(\)(?!\.keys)"
)
# The name and position of the path, those of what is saved, and how that reads when it is a model.
_SAVERS = {
    "torch.save": ("f", 1, "obj", 0, _MAYBE_MODEL),
    "torch.jit.save": ("f", 1, "m", 0, None),
    "joblib.dump": ("filename", 1, "value", 0, None),
    "pickle.dump": ("file", 1, "obj", 0, _MODEL),
    "cloudpickle.dump": ("file", 1, "obj", 0, _MODEL),
    "numpy.save": ("file", 0, "arr", 1, _MODEL),
}
_SAVING_METHODS = {"save_pretrained", "save_checkpoint", "save_model", "save_weights"}
_SHARED = re.compile(r"\w+://|/(mnt|nfs|efs|fsx|gcs|gfs|shared|lustre|dbfs)\b", re.IGNORECASE)
_REPORTERS = ("RayTrainReportCallback", "ReportCheckpointCallback")
_KEEP = (ast.Attribute, ast.Expr, ast.Compare, ast.UnaryOp, ast.If, ast.While, ast.Assert, ast.FormattedValue)
_KEEPING_FUNCTIONS = ("isinstance", "print", "str", "repr", "bool", "type", "hasattr", "id")
_MOST_STEPS = 8


def unreported(subject: Subject) -> Iterator[Place]:
    """Where workers save a model to a fixed path of their own, in a program that reports no checkpoint."""
    program = subject.program
    if _reports_checkpoints(program):
        return
    for module, node in _worker_nodes(program):
        if not isinstance(node, ast.Call):
            continue
        path = _saved_to(module, node)
        text = _fixed(module, path) if path is not None else None
        if text and not _SHARED.match(text):
            all_save = only_some(module, node, set()) is None
            over = ", and workers of one machine write over each other" if all_save else ""
            yield Place(
                module.shown,
                node.lineno,
                f"it is saved to {text} on the worker's own machine, and no report of the script has a checkpoint: Ray "
                f"keeps nothing of it{over}",
            )


def _worker_nodes(program: Program) -> Iterator[tuple[Module, ast.AST]]:
    seen: set[int] = set()
    for module, definition in program.worker_code:
        for node in ast.walk(definition):
            if id(node) not in seen:
                seen.add(id(node))
                yield module, node


def _reports_checkpoints(program: Program) -> bool:
    """Whether a report has a checkpoint, or may have: of a library's callback, or of code that is not in sight."""
    for _, call in program.reports():
        given = keyword(call, "checkpoint", 1)
        if given is not None and not (isinstance(given, ast.Constant) and given.value is None):
            return True
        unknown = [each for each in call.args if isinstance(each, ast.Starred)]
        if unknown or any(each.arg is None for each in call.keywords):
            return True
    for module in program.modules.values():
        for node in module.nodes:
            if isinstance(node, (ast.Name, ast.Attribute)) and _name(module, node).endswith(_REPORTERS):
                return True
    return any(
        dotted.startswith("ray.train.Checkpoint") and _gets_away(program, module, call)
        for module, call, dotted in program.calls()
    )


def _name(module: Module, node: ast.Name | ast.Attribute) -> str:
    return module.resolve(node) or (node.id if isinstance(node, ast.Name) else node.attr)


def _gets_away(program: Program, module: Module, node: ast.AST, steps: int = 0) -> bool:
    """Whether the object that an expression gives may come to code that is not in sight."""
    parent = module.parents[node]
    if steps > _MOST_STEPS:
        return True
    if isinstance(parent, _KEEP):
        return False
    if isinstance(parent, ast.IfExp) and node is parent.test:
        return False
    if isinstance(parent, (ast.IfExp, ast.BoolOp)):
        return _gets_away(program, module, parent, steps + 1)
    if isinstance(parent, (ast.Assign, ast.AnnAssign, ast.NamedExpr)):
        targets = parent.targets if isinstance(parent, ast.Assign) else [parent.target]
        if isinstance(parent, ast.NamedExpr) and _gets_away(program, module, parent, steps + 1):
            return True
        return any(
            not isinstance(target, ast.Name) or _name_gets_away(program, module, target, steps + 1)
            for target in targets
        )
    if isinstance(parent, ast.keyword):
        parent = module.parents[parent]
    if isinstance(parent, ast.Call):
        if isinstance(parent.func, ast.Name) and parent.func.id in _KEEPING_FUNCTIONS:
            return False
        found = program.definition(module, parent.func)
        if found is not None and isinstance(found[1], FUNCTIONS):
            parameter = _parameter(found[0], found[1], parent, node)
            if parameter is not None:
                return _uses_get_away(program, found[0], found[1], parameter, steps + 1)
    return True


def _name_gets_away(program: Program, module: Module, target: ast.Name, steps: int) -> bool:
    found = module.lookup(target)
    return found is None or _uses_get_away(program, module, found[0], target.id, steps)


def _uses_get_away(program: Program, module: Module, scope: Scope, name: str, steps: int) -> bool:
    if not isinstance(scope, FUNCTIONS) or any(
        isinstance(node, (ast.Global, ast.Nonlocal)) and name in node.names for node in module.nodes
    ):
        return True
    return any(
        _gets_away(program, module, node, steps)
        for node in module.nodes
        if isinstance(node, ast.Name)
        and node.id == name
        and isinstance(node.ctx, ast.Load)
        and (found := module.lookup(node)) is not None
        and found[0] is scope
    )


def _parameter(module: Module, function: Function, call: ast.Call, argument: ast.AST) -> str | None:
    """The parameter that a call gives an argument to; None when that is not plain."""
    if isinstance(function, ast.Lambda) or function.decorator_list:
        return None
    names = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
    for given in call.keywords:
        if given.value is argument:
            known = given.arg in names or any(each.arg == given.arg for each in function.args.kwonlyargs)
            return given.arg if known else None
    if isinstance(module.parents[function], ast.ClassDef):
        names = names[1:]
    if any(isinstance(each, ast.Starred) for each in call.args):
        return None
    return next((name for name, each in zip(names, call.args, strict=False) if each is argument), None)


def _saved_to(module: Module, call: ast.Call) -> ast.expr | None:
    """The path that a call saves a model to."""
    dotted = module.resolve(call.func)
    if dotted in _SAVERS:
        name, position, what, its_position, model = _SAVERS[dotted]
        saved = keyword(call, what, its_position)
        if model is None or (saved is not None and model.search(ast.unparse(saved))):
            return keyword(call, name, position)
        return None
    if isinstance(call.func, ast.Attribute) and call.func.attr in _SAVING_METHODS:
        return keyword(call, "filepath", 0) or keyword(call, "save_directory") or keyword(call, "output_dir")
    return None


def _fixed(module: Module, path: ast.expr) -> str | None:
    """A path that is spelt out in the source, with `{}` for what varies in it; None when its start is not."""
    value = module.value_of(path)
    if isinstance(value, ast.Constant):
        return value.value if isinstance(value.value, str) else None
    if isinstance(value, ast.JoinedStr):
        parts = [each.value if isinstance(each, ast.Constant) else "{}" for each in value.values]
        text = "".join(str(part) for part in parts)
        return None if not text or text.startswith("{}") else text
    if isinstance(value, ast.BinOp) and isinstance(value.op, (ast.Add, ast.Div, ast.Mod)):
        left = _fixed(module, value.left)
        if left is None:
            return None
        right = _fixed(module, value.right) or "{}"
        return left if isinstance(value.op, ast.Mod) else f"{left}{'/' if isinstance(value.op, ast.Div) else ''}{right}"
    if isinstance(value, ast.Call) and value.args:
        name = module.resolve(value.func)
        if name in ("os.path.join", "pathlib.Path"):
            first = _fixed(module, value.args[0])
            return "/".join([first, *(_fixed(module, each) or "{}" for each in value.args[1:])]) if first else None
        if name in ("os.path.expanduser", "os.path.abspath", "builtins.str", "os.fspath", "builtins.open"):
            return _fixed(module, value.args[0])
    return None
