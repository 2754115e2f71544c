"""Which expressions are tensors or modules of torch for sure, as far as the source tells."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from raytrain_debug.check.source import FUNCTIONS, Binding, Module, own_nodes

_KEEPS = {
    "detach",
    "cpu",
    "cuda",
    "to",
    "clone",
    "mean",
    "sum",
    "square",
    "sqrt",
    "float",
    "double",
    "half",
    "abs",
    "squeeze",
}
_MADE = ("tensor", "as_tensor", "from_numpy", "zeros", "ones", "full", "rand", "randn", "zeros_like", "stack", "cat")
_MAKERS = {f"torch.{name}" for name in (*_MADE, "mean", "sum", "sqrt", "exp", "log", "where")}
_LOSSES = ("torch.nn.functional.cross_entropy", "torch.nn.functional.nll_loss", "torch.nn.functional.mse_loss")
_WRAPPERS = ("ray.train.torch.prepare_model", "torch.nn.parallel.DistributedDataParallel")
_MODULES = ("torch.nn.Module", "pytorch_lightning.LightningModule", "lightning.LightningModule")
_PLAIN_METHODS = {"item", "tolist", "numpy"}
_PLAIN_FUNCTIONS = {"float", "int", "round", "sum"}
_MOST_STEPS = 8


def holds_tensor(module: Module, expression: ast.expr) -> bool:
    """Whether it is a tensor or a module, or a dict, list or tuple with one in it: what Ray refuses to send."""
    value = module.value_of(expression)
    if isinstance(value, ast.Dict):
        return any(holds_tensor(module, each) for each in value.values)
    if isinstance(value, (ast.List, ast.Tuple)):
        return any(holds_tensor(module, each) for each in value.elts)
    return is_tensor(module, expression) or _is_module(module, expression)


def _is_module(module: Module, expression: ast.expr) -> bool:
    """Whether it is a torch module that is made in sight, or the state of one."""
    value = module.value_of(expression)
    if not isinstance(value, ast.Call):
        return False
    if isinstance(value.func, ast.Attribute) and value.func.attr == "state_dict":
        owner = value.func.value
        return _is_module(module, owner.value if isinstance(owner, ast.Attribute) else owner)
    dotted = module.resolve(value.func)
    if dotted is not None:
        name = dotted.rpartition(".")[2]
        return dotted in _WRAPPERS or (dotted == f"torch.nn.{name}" and name[:1].isupper() and name != "Parameter")
    found = module.lookup(value.func) if isinstance(value.func, ast.Name) else None
    made = found[1].definition if found is not None else None
    return isinstance(made, ast.ClassDef) and any(module.resolve(base) in _MODULES for base in made.bases)


def is_tensor(module: Module, expression: ast.expr, steps: int = 0) -> bool:
    """Whether it is a tensor; False too when the source does not tell."""
    if steps > _MOST_STEPS:
        return False
    if isinstance(expression, ast.Name):
        return _is_tensor_name(module, expression, steps)
    if isinstance(expression, ast.BinOp):
        return is_tensor(module, expression.left, steps + 1) or is_tensor(module, expression.right, steps + 1)
    if isinstance(expression, ast.UnaryOp):
        return not isinstance(expression.op, ast.Not) and is_tensor(module, expression.operand, steps + 1)
    if isinstance(expression, ast.Call):
        dotted = module.resolve(expression.func)
        if dotted is not None and (dotted in _MAKERS or dotted in _LOSSES):
            return True
        if isinstance(expression.func, ast.Attribute) and expression.func.attr in _KEEPS:
            return is_tensor(module, expression.func.value, steps + 1)
        if isinstance(expression.func, ast.Name):  # loss_fn = torch.nn.CrossEntropyLoss(); loss_fn(...)
            made = module.value_of(expression.func)
            if isinstance(made, ast.Call):
                kind = module.resolve(made.func) or ""
                return kind.startswith("torch.nn.") and kind.endswith("Loss")
    return False


def _is_tensor_name(module: Module, name: ast.Name, steps: int) -> bool:
    found = module.lookup(name)
    if found is None or found[1].entered or _is_plain(found[1]):
        return False
    scope, binding = found
    if binding.augmented:  # total += loss
        values = [each.value for each in module.bindings[scope][name.id] if each.augmented and not _is_plain(each)]
    else:
        values = [binding.value]
    if any(each is not None and is_tensor(module, each, steps + 1) for each in values):
        return True
    return isinstance(scope, FUNCTIONS) and any(
        each.id == name.id and module.lookup(each) == found for each in _sent_backward(scope)
    )


def _is_plain(binding: Binding) -> bool:
    """Whether it makes a number of something, as far as its expression shows."""
    for node in ast.walk(binding.value) if binding.value is not None else ():
        if isinstance(node, ast.Call):
            method = isinstance(node.func, ast.Attribute) and node.func.attr in _PLAIN_METHODS
            if method or (isinstance(node.func, ast.Name) and node.func.id in _PLAIN_FUNCTIONS):
                return True
    return False


def _sent_backward(function: ast.AST) -> Iterator[ast.Name]:
    """The names whose `backward()` is called, and those given to somebody's `backward` or `scale`."""
    for node in own_nodes(function):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = [node.func.value] if node.func.attr == "backward" and not node.args else []
            given = node.args if node.func.attr in ("backward", "scale") else []
            yield from (each for each in (*owner, *given) if isinstance(each, ast.Name))
