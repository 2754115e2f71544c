"""The rule on what a training function captures that does not travel to a worker.

cloudpickle sends a function of the script by value, with what it names of the script and what it closes over, and so
on; a function of an imported module goes by its name alone.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

from raytrain_debug.check.finding import Place, Rule, Subject
from raytrain_debug.check.program import Program, Trainer
from raytrain_debug.check.source import FUNCTIONS, Binding, Definition, Module, keyword, own_nodes

UNPICKLABLE = {
    "threading.Lock": "a lock",
    "threading.RLock": "a lock",
    "threading.Condition": "a condition, which has a lock",
    "threading.Event": "an event, which has a lock",
    "threading.Semaphore": "a semaphore, which has a lock",
    "threading.BoundedSemaphore": "a semaphore, which has a lock",
    "threading.Barrier": "a barrier, which has a lock",
    "threading.Thread": "a thread, which has a lock",
    "threading.Timer": "a thread, which has a lock",
    "threading.local": "thread-local data",
    "multiprocessing.Lock": "a lock",
    "multiprocessing.Queue": "a queue of processes",
    "queue.Queue": "a queue, which has a lock",
    "queue.SimpleQueue": "a queue",
    "queue.LifoQueue": "a queue, which has a lock",
    "queue.PriorityQueue": "a queue, which has a lock",
    "socket.socket": "a socket",
    "socket.create_connection": "a socket",
    "sqlite3.connect": "a database connection",
    "subprocess.Popen": "a process, which has a lock",
    "concurrent.futures.ThreadPoolExecutor": "a pool of threads",
    "concurrent.futures.ProcessPoolExecutor": "a pool of processes",
    "concurrent.futures.Future": "a future, which has a lock",
    "weakref.ref": "a weak reference",
    "mmap.mmap": "a memory map",
    "contextvars.ContextVar": "a context variable",
    "zipfile.ZipFile": "an open file",
    "tarfile.open": "an open file",
    "h5py.File": "an open file",
    "torch.utils.tensorboard.SummaryWriter": "a writer, which has a queue",
    "torch.cuda.Stream": "a CUDA stream",
    "torch.cuda.Event": "a CUDA event",
    "torch.distributed.new_group": "a process group",
}
"""What makes objects that cloudpickle refuses, and what those are. Its test makes them where that needs no more."""

_ENTERS_ITSELF = {
    "builtins.open",
    "io.open",
    "gzip.open",
    "bz2.open",
    "lzma.open",
    "socket.socket",
    "socket.create_connection",
    "subprocess.Popen",
    "concurrent.futures.ThreadPoolExecutor",
    "concurrent.futures.ProcessPoolExecutor",
    "zipfile.ZipFile",
    "tarfile.open",
    "h5py.File",
    "mmap.mmap",
    "torch.utils.tensorboard.SummaryWriter",
}
_OPENERS = ("builtins.open", "io.open", "gzip.open", "bz2.open", "lzma.open")
_LOADERS = (
    "torch.utils.data.DataLoader",
    "torch.utils.data.dataloader.DataLoader",
    "ray.train.torch.prepare_data_loader",
)
_OWN_STATE = {"__getstate__", "__reduce__", "__reduce_ex__"}
_MOST_STEPS = 8


@dataclass
class _Capture:
    """The walk through what travels with one training function."""

    program: Program
    seen: set[int] = field(default_factory=set)

    def of(self, module: Module, definition: Definition) -> Iterator[tuple[Module, ast.AST, str, str]]:
        """Where, by which name, and what it captures that does not pickle."""
        if id(definition) in self.seen or not _by_value(module, definition):
            return
        self.seen.add(id(definition))
        inside = {id(node) for node in ast.walk(definition)}
        for node in ast.walk(definition):
            if not isinstance(node, ast.Name) or not isinstance(node.ctx, ast.Load):
                continue
            found = module.lookup(node)
            if found is None or id(found[0]) in inside:
                continue  # a builtin, or a name of its own
            binding = found[1]
            if binding.definition is not None:
                yield from self.of(module, binding.definition)
            elif binding.origin is not None:
                there = self.program.find_value(binding.origin)
                if there is not None and isinstance(there[1], ast.expr):
                    yield from self.value(there[0], there[1], module, node, node.id)
            elif binding.value is not None and not binding.augmented and not self.is_other_inside(module, binding):
                yield from self.value(module, binding.value, module, node, node.id)
        if isinstance(definition, ast.ClassDef):
            for statement in definition.body:
                if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
                    name = f"{definition.name}.{statement.targets[0].id}"
                    yield from self.value(module, statement.value, module, statement, name)

    def value(
        self, home: Module, value: ast.expr, module: Module, node: ast.AST, name: str
    ) -> Iterator[tuple[Module, ast.AST, str, str]]:
        """The capture of a value of `home` by `node` of `module`, when it does not pickle."""
        what = unpicklable(self.program, home, value)
        if what is not None:
            yield module, node, name, what

    @staticmethod
    def is_other_inside(module: Module, binding: Binding) -> bool:
        """Whether a `with` binds something else than its manager: a lock gives True, a directory its path."""
        value = binding.value
        return binding.entered and isinstance(value, ast.Call) and module.resolve(value.func) not in _ENTERS_ITSELF


def _by_value(module: Module, definition: Definition) -> bool:
    return module.is_main or isinstance(definition, ast.Lambda) or bool(module.functions_around(definition))


def unpicklable(program: Program, module: Module, expression: ast.expr, steps: int = 0) -> str | None:
    """What the value of an expression is, when cloudpickle refuses that; None when it does not, or nobody knows."""
    if steps > _MOST_STEPS:
        return None
    if isinstance(expression, ast.GeneratorExp):
        return "a generator"
    if isinstance(expression, ast.Name):
        value = module.value_of(expression)
        return unpicklable(program, module, value, steps + 1) if value is not None and value is not expression else None
    if isinstance(expression, (ast.List, ast.Tuple, ast.Set, ast.Dict)):
        parts = expression.values if isinstance(expression, ast.Dict) else expression.elts
        return next((what for part in parts if (what := unpicklable(program, module, part, steps + 1))), None)
    if isinstance(expression, ast.Call):
        return _of_call(program, module, expression, steps)
    return None


def _of_call(program: Program, module: Module, call: ast.Call, steps: int) -> str | None:
    dotted = module.resolve(call.func)
    if dotted in UNPICKLABLE:
        return UNPICKLABLE[dotted]
    if dotted in _OPENERS:
        given = keyword(call, "mode", 1)
        mode = module.constant(given) if given is not None else "r"
        # cloudpickle sends the text of a file that is open for reading.
        return None if dotted in _OPENERS[:2] and mode in ("r", "rt", ...) else "an open file"
    if dotted == "builtins.iter" and call.args:
        made = module.value_of(call.args[0])
        if isinstance(made, ast.Call) and module.resolve(made.func) in _LOADERS:
            return "the iterator of a DataLoader"
    if dotted in ("functools.partial", "builtins.dict"):
        parts = [*call.args, *(each.value for each in call.keywords)]
        return next((what for part in parts if (what := unpicklable(program, module, part, steps + 1))), None)
    found = program.definition(module, call.func)
    if found is None:
        return None
    if isinstance(found[1], (ast.FunctionDef, ast.AsyncFunctionDef)):
        own = list(own_nodes(found[1]))
        yields = any(isinstance(node, (ast.Yield, ast.YieldFrom)) for node in own)
        return "a generator" if yields and not found[1].decorator_list else None
    if isinstance(found[1], ast.ClassDef):
        return _of_instance(program, found[0], found[1], steps)
    return None


def _of_instance(program: Program, module: Module, made: ast.ClassDef, steps: int) -> str | None:
    """What an object holds from its `__init__` on that does not pickle."""
    names = module.bindings[made]
    if _OWN_STATE & set(names):
        return None
    for binding in names.get("__init__", ()):
        if isinstance(binding.definition, FUNCTIONS):
            for node in own_nodes(binding.definition):
                if not isinstance(node, ast.Assign) or not isinstance(target := node.targets[0], ast.Attribute):
                    continue
                if isinstance(target.value, ast.Name) and target.value.id == "self":
                    what = unpicklable(program, module, node.value, steps + 1)
                    if what is not None:
                        return f"a {made.name} whose {target.attr} is {what}"
    return None


def _unpicklable(subject: Subject) -> Iterator[Place]:
    program = subject.program
    for trainer in program.trainers:
        capture = _Capture(program)
        for module, function in trainer.functions:
            name = getattr(function, "name", "the training function")
            for where, node, captured, what in capture.of(module, function):
                yield Place(where.shown, _line(node), f"{name} captures {captured}, {what}, which does not pickle")
        yield from _given(program, trainer)


def _given(program: Program, trainer: Trainer) -> Iterator[Place]:
    """What comes with the training function: its configuration, and the arguments of a partial."""
    module = trainer.module
    config = module.value_of(keyword(trainer.call, "train_loop_config"))
    if isinstance(config, ast.Dict):
        for key, value in zip(config.keys, config.values, strict=True):
            if (what := unpicklable(program, module, value)) is not None:
                name = repr(key.value) if isinstance(key, ast.Constant) else "a value"
                yield Place(module.shown, value.lineno, f"{name} of train_loop_config is {what}, which does not pickle")
    function = module.value_of(keyword(trainer.call, "train_loop_per_worker", 0))
    owner = program.owner(module, function) if isinstance(function, ast.Attribute) else None
    if isinstance(function, ast.Attribute) and owner is not None and (what := _of_instance(program, *owner, 0)):
        reason = f"the method {function.attr} takes its object with it, {what}, which does not pickle"
        yield Place(module.shown, function.lineno, reason)
    if isinstance(function, ast.Call) and module.resolve(function.func) == "functools.partial":
        for value in (*function.args[1:], *(each.value for each in function.keywords)):
            if (what := unpicklable(program, module, value)) is not None:
                name = ast.unparse(value)
                yield Place(module.shown, value.lineno, f"the partial holds {name}, {what}, which does not pickle")


def _line(node: ast.AST) -> int:
    return getattr(node, "lineno", 0)


RULES = (
    Rule(
        "unpicklable",
        "any",
        "a training function that captures what does not pickle: a lock, an open file, a generator, ...",
        "make it inside the training function",
        _unpicklable,
    ),
)
