"""Rules on how workers get their data: downloads and shuffling."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from raytrain_debug.check.finding import Place, Rule, Subject
from raytrain_debug.check.program import Program
from raytrain_debug.check.ranks import only_some
from raytrain_debug.check.source import FUNCTIONS, Module, keyword

_DATASETS = ("torchvision.", "torchaudio.", "torchtext.")
_DOWNLOADS = ("urllib.request.urlretrieve", "wget.download", "gdown.download", "nltk.download", "torch.hub.load")
_GUARD = re.compile(r"lock|(main|local_main)_process_first|zero_first|rank_zero|local_first", re.IGNORECASE)
_OWN_SAMPLING = ("lightning", "pytorch_lightning", "transformers", "accelerate", "trl")
_SAME_ORDER = (
    "with more than one worker its DistributedSampler deals out the same order in every epoch: nothing calls set_epoch"
)
_SAMPLERS = ("torch.utils.data.distributed.DistributedSampler", "torch.utils.data.DistributedSampler")
_LOADERS = ("torch.utils.data.DataLoader", "torch.utils.data.dataloader.DataLoader")


def _downloads(subject: Subject) -> Iterator[Place]:
    for module, call, dotted in subject.program.worker_calls():
        if dotted.startswith(_DATASETS):
            if module.constant(keyword(call, "download", 4)) is not True or _is_temporary(
                module, keyword(call, "root", 0)
            ):
                continue
        elif dotted not in _DOWNLOADS:
            continue
        if not _is_guarded(subject.program, module, call):
            yield Place(
                module.shown,
                call.lineno,
                f"{dotted} downloads in every worker at once; those of one machine write the same files",
            )


def _is_temporary(module: Module, root: ast.expr | None) -> bool:
    value = module.value_of(root)
    return isinstance(value, ast.Call) and (module.resolve(value.func) or "").startswith("tempfile.")


def _is_guarded(program: Program, module: Module, node: ast.AST, steps: int = 0) -> bool:
    """Whether a lock is held there, or one rank alone comes there; also where all callers see to that."""
    if only_some(module, node, set()) is not None:
        return True
    for around in module.ancestors(node):
        if isinstance(around, (ast.With, ast.AsyncWith)) and any(
            _GUARD.search(ast.unparse(item.context_expr)) for item in around.items
        ):
            return True
        if isinstance(around, FUNCTIONS):
            if isinstance(around, ast.Lambda):
                return False
            if around.name == "prepare_data":  # Lightning calls it in one process a machine
                return True
            if any(_GUARD.search(ast.unparse(each)) for each in around.decorator_list):
                return True
            callers = list(_callers(program, around))
            return steps < 5 and bool(callers) and all(_is_guarded(program, *each, steps + 1) for each in callers)
    return False


def _callers(program: Program, function: ast.AST) -> Iterator[tuple[Module, ast.AST]]:
    for module, definition in program.worker_code:
        for node in ast.walk(definition):
            if isinstance(node, ast.Call):
                found = program.definition(module, node.func)
                if found is not None and found[1] is function:
                    yield module, node


def _set_epoch(subject: Subject) -> Iterator[Place]:
    program = subject.program
    if _sets_epoch(program) or not _has_epochs(program):
        return
    loaders: set[int] = set()  # those that are told already, or do not shuffle
    unknown = False
    for module, call, dotted in program.worker_calls():
        if dotted == "ray.train.torch.prepare_data_loader":
            loader = module.value_of(keyword(call, "data_loader", 0))
            known = isinstance(loader, ast.Call) and module.resolve(loader.func) in _LOADERS
            if module.constant(keyword(call, "add_dist_sampler", 1)) is False:
                continue
            unknown = unknown or not known
            loaders.add(id(loader))
            if not known or not _shuffles(module, loader):
                continue
        elif dotted not in _SAMPLERS or module.constant(keyword(call, "shuffle", 3)) is False:
            continue
        yield Place(module.shown, call.lineno, _SAME_ORDER)
    if unknown:  # what is prepared was made elsewhere: it is one of the loaders that the workers make
        for module, call, dotted in program.worker_calls():
            if dotted in _LOADERS and _shuffles(module, call) and id(call) not in loaders:
                yield Place(module.shown, call.lineno, _SAME_ORDER, guess=True)


def _sets_epoch(program: Program) -> bool:
    """Whether somebody does: the program itself, or the trainer of a library that it uses."""
    if any(
        isinstance(node, ast.Attribute) and node.attr == "set_epoch"
        for module in program.modules.values()
        for node in module.nodes
    ):
        return True
    return any(
        dotted.partition(".")[0] in _OWN_SAMPLING and dotted.endswith(("Trainer", "Accelerator"))
        for _, _, dotted in program.worker_calls()
    )


def _shuffles(module: Module, loader: ast.expr | None) -> bool:
    return isinstance(loader, ast.Call) and module.constant(keyword(loader, "shuffle", 2)) is True


def _has_epochs(program: Program) -> bool:
    """Whether workers loop over what loops: without that there is one epoch alone."""
    looping: set[int] = set()
    loops: list[tuple[Module, ast.AST]] = []
    for module, definition in program.worker_code:
        for node in ast.walk(definition):
            if isinstance(node, (ast.For, ast.While)):
                loops.append((module, node))
                looping.update(id(each) for each in module.functions_around(node)[:1])
    for module, loop in loops:
        for node in ast.walk(loop):
            if node is not loop and isinstance(node, (ast.For, ast.While)):
                return True
            if isinstance(node, ast.Call):
                found = program.definition(module, node.func)
                if found is not None and id(found[1]) in looping:
                    return True
    return False


RULES = (
    Rule(
        "download-race",
        "any",
        "a data set downloaded by all workers at once, without a lock",
        'hold a lock: with filelock.FileLock(os.path.expanduser("~/data.lock")): ...',
        _downloads,
    ),
    Rule(
        "set-epoch",
        "any",
        "a shuffling `DistributedSampler`, or `prepare_data_loader`, without `set_epoch`",
        "at the start of each epoch: if ray.train.get_context().get_world_size() > 1: loader.sampler.set_epoch(epoch)",
        _set_epoch,
    ),
)
