"""Rules on what the training function reports, keeps and returns."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from raytrain_debug.check.finding import Place, Rule, Subject
from raytrain_debug.check.metrics import tensor_metrics
from raytrain_debug.check.old_api import context_calls
from raytrain_debug.check.program import Program
from raytrain_debug.check.ranks import only_some
from raytrain_debug.check.saving import unreported
from raytrain_debug.check.source import Function, Module, own_nodes
from raytrain_debug.check.tensors import holds_tensor


def _under_rank(subject: Subject) -> Iterator[Place]:
    sites = list(_reporting(subject.program))
    ids = {id(call) for _, call, _ in sites}
    for module, call, direct in sites:
        condition = only_some(module, call, ids)
        if condition is not None:
            what = "ray.train.report is" if direct else "a function that calls ray.train.report is"
            yield Place(
                module.shown,
                call.lineno,
                f"{what} called by some ranks only, for the condition in line {condition}; report waits for all "
                "workers, so the run hangs",
            )


def _reporting(program: Program) -> Iterator[tuple[Module, ast.Call, bool]]:
    """The calls that come to `ray.train.report`, itself or through functions of the program."""
    reporting: set[int] = set()
    sites: dict[int, tuple[Module, ast.Call, bool]] = {
        id(call): (module, call, True) for module, call in program.reports()
    }
    new = list(sites.values())
    while new:
        for module, call, _ in new:
            reporting.update(id(each) for each in module.functions_around(call)[:1])
        new = []
        for module in program.modules.values():
            for node in module.nodes:
                if isinstance(node, ast.Call) and id(node) not in sites:
                    found = program.definition(module, node.func)
                    if found is not None and id(found[1]) in reporting:
                        sites[id(node)] = (module, node, False)
                        new.append(sites[id(node)])
    return iter(sites.values())


def _local_only(subject: Subject) -> Iterator[Place]:
    program = subject.program
    record = subject.run.record if subject.run is not None else None
    ran_locally = record is not None and record.mode in ("torchrun", "single", "script")
    workers = [trainer.num_workers for trainer in program.trainers]
    if 0 not in workers and not (ran_locally and all(each is ... for each in workers)):
        return
    for module, call, method in context_calls(program):
        if method == "get_storage" and not _is_tried(module, call):
            yield Place(
                module.shown,
                call.lineno,
                "get_storage() raises NotImplementedError in local mode (num_workers=0)",
                "take the path from train_loop_config, or be ready for NotImplementedError there",
            )
    for module, call, dotted in program.calls():
        if dotted == "ray.train.get_all_reported_checkpoints":
            yield Place(
                module.shown,
                call.lineno,
                "get_all_reported_checkpoints() is always empty in local mode (num_workers=0)",
                "let an empty list be a case of its own; launch --faithful gives what a cluster would",
            )


def _is_tried(module: Module, node: ast.AST) -> bool:
    return any(isinstance(around, ast.Try) and around.handlers for around in module.ancestors(node))


def _returned(subject: Subject) -> Iterator[Place]:
    for module, function in subject.program.training_functions:
        for value in _returned_values(function):
            if holds_tensor(module, value):
                yield Place(
                    module.shown,
                    value.lineno,
                    "a tensor or module is returned: local mode hands it over, a worker raises ValueError for it",
                )


def _returned_values(function: Function) -> Iterator[ast.expr]:
    if isinstance(function, ast.Lambda):
        yield function.body
        return
    for node in own_nodes(function):
        if isinstance(node, ast.Return) and node.value is not None:
            yield node.value


RULES = (
    Rule(
        "report-under-rank",
        "any",
        "`ray.train.report` called by some ranks only, as under `if rank == 0`",
        "call report on every rank, and give the checkpoint on one: report(metrics, checkpoint=checkpoint or None)",
        _under_rank,
    ),
    Rule(
        "unreported-checkpoint",
        "any",
        "a model saved to a fixed path of the worker, and no checkpoint ever reported",
        "save it in a temporary directory, and report(metrics, checkpoint=Checkpoint.from_directory(directory))",
        unreported,
        guess=True,
    ),
    Rule(
        "local-only",
        "2.51",
        "`get_storage()` and `get_all_reported_checkpoints()` with `num_workers=0`",
        "leave it to num_workers above 0",
        _local_only,
    ),
    Rule(
        "tensor-metric",
        "2.51",
        "a tensor among the reported metrics",
        "report a number: value.item()",
        tensor_metrics,
    ),
    Rule(
        "returned-tensor",
        "2.56",
        "a training function that returns a tensor or a module",
        "return numbers: value.item(); a model goes into a reported checkpoint",
        _returned,
    ),
)
