"""Rules on what trainers and their configurations are given."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from raytrain_debug.check.finding import Place, Rule, Subject
from raytrain_debug.check.program import Trainer
from raytrain_debug.check.source import keyword

_TUNE = "give it to the class of that name in ray.tune, if Ray Tune runs this, or leave it out"
_OLD_ARGUMENTS = {
    "ray.train.RunConfig": {
        "sync_config": _TUNE,
        "verbose": _TUNE,
        "stop": "stop by returning from the training function",
        "progress_reporter": _TUNE,
        "log_to_file": "leave it out: Ray's log directory has each worker's output",
    },
    "ray.train.CheckpointConfig": {
        "checkpoint_frequency": "decide in the training function at which reports to give a checkpoint",
        "checkpoint_at_end": "report a checkpoint at the end of the training function",
    },
    "Trainer": {
        "resume_from_checkpoint": "pass the checkpoint's path through train_loop_config and load it there",
        "metadata": "pass it through train_loop_config",
    },
}
_TRAIN_CALLBACKS = "ray.tune.integration.ray_train."  # made for Ray Train V2
_SINCE = {"checkpoint_frequency": "2.52", "checkpoint_at_end": "2.52"}
_POSITIONS = {"checkpoint_frequency": 3, "checkpoint_at_end": 4}  # those of RunConfig differ from version to version
_TORCHRUN = re.compile(
    r"(?<![-\w])torchrun\s+(-|\S+\.py)|--nproc[-_]per[-_]node|env(iron)?(\[|\.get\(|\()\s*[\"'](LOCAL_)?RANK[\"']|torch\.distributed\.(run|launch)\b"
)


def _fail_fast(subject: Subject) -> Iterator[Place]:
    yield from _argument(subject, "ray.train.FailureConfig", "fail_fast", 1)


def _trainer_resources(subject: Subject) -> Iterator[Place]:
    yield from _argument(subject, "ray.train.ScalingConfig", "trainer_resources", 0)


def _argument(subject: Subject, callee: str, name: str, position: int) -> Iterator[Place]:
    for module, call, dotted in subject.program.calls():
        value = keyword(call, name, position) if dotted == callee else None
        if value is not None and not (name == "trainer_resources" and module.constant(value) is None):
            yield Place(module.shown, value.lineno, f"{callee}({name}=...) raises DeprecationWarning")


def _old_arguments(subject: Subject) -> Iterator[Place]:
    for module, call, dotted in subject.program.calls():
        kind = "Trainer" if dotted.startswith("ray.train.") and dotted.endswith("Trainer") else dotted
        for name, remedy in _OLD_ARGUMENTS.get(kind, {}).items():
            value = keyword(call, name, _POSITIONS.get(name))
            if value is not None and not (kind == "Trainer" and module.constant(value) is None):
                short = dotted.rpartition(".")[2]
                yield Place(
                    module.shown,
                    value.lineno,
                    f"{short}({name}=...) raises DeprecationWarning under Ray Train V2",
                    remedy,
                    _SINCE.get(name, ""),
                )
        callbacks = module.value_of(keyword(call, "callbacks", 5)) if kind == "ray.train.RunConfig" else None
        for callback in callbacks.elts if isinstance(callbacks, ast.List) else ():
            value = module.value_of(callback)
            made = module.resolve(value.func) if isinstance(value, ast.Call) else None
            if made is None or made.startswith(_TRAIN_CALLBACKS):
                continue
            if made.startswith(("ray.tune.", "ray.air.integrations.")):
                yield Place(
                    module.shown,
                    callback.lineno,
                    f"{made} is a callback of Ray Tune, and Ray Train V2 refuses it",
                    "derive from ray.train.UserCallback, or log in the training function",
                )


def _no_restarts(subject: Subject) -> Iterator[Place]:
    for module, call, dotted in subject.program.calls():
        made = module.value_of(keyword(call, "failure_config", 3)) if dotted == "ray.train.RunConfig" else None
        if isinstance(made, ast.Call) and module.resolve(made.func) == "ray.train.FailureConfig" and _is_empty(made):
            yield Place(
                module.shown,
                made.lineno,
                "FailureConfig without max_failures restarts nothing: the first worker that fails ends the run",
            )
    for trainer in subject.program.trainers:
        if isinstance(trainer.num_workers, tuple) and _has_no_failure_config(trainer):
            yield Place(
                trainer.module.shown,
                trainer.call.lineno,
                "num_workers is elastic, but without FailureConfig(max_failures=...) the first worker that fails ends "
                "the run",
            )


def _is_empty(call: ast.Call) -> bool:
    return not call.args and not call.keywords


def _has_no_failure_config(trainer: Trainer) -> bool:
    """Whether that is for sure: the run configuration is absent, or made in sight."""
    if any(each.arg is None for each in trainer.call.keywords):
        return False
    run_config = trainer.module.value_of(keyword(trainer.call, "run_config"))
    if run_config is None:
        return True
    return (
        isinstance(run_config, ast.Call)
        and trainer.module.resolve(run_config.func) == "ray.train.RunConfig"
        and all(each.arg not in ("failure_config", None) for each in run_config.keywords)
        and len(run_config.args) < 4
    )


def _datasets(subject: Subject) -> Iterator[Place]:
    record = subject.run.record if subject.run is not None else None
    ran = record is not None and record.mode == "torchrun" and record.world_size > 1
    for trainer in subject.program.trainers:
        datasets = trainer.module.value_of(keyword(trainer.call, "datasets"))
        if datasets is None or (isinstance(datasets, ast.Dict) and not datasets.keys):
            continue
        # Other trainers than torch's take no notice of torchrun.
        if isinstance(datasets, ast.Constant) or trainer.num_workers not in (0, ...) or not trainer.is_of_torch:
            continue
        told = trainer.num_workers == 0 and _TORCHRUN.search(trainer.module.text) is not None
        if ran or told:
            yield Place(
                trainer.module.shown,
                datasets.lineno if isinstance(datasets, ast.Dict) else trainer.call.lineno,
                "Ray Train refuses datasets under torchrun with more than one rank",
                guess=not ran,
            )


RULES = (
    Rule(
        "fail-fast",
        "2.51",
        "`FailureConfig(fail_fast=...)`",
        "leave it out: without max_failures a run ends at its first failure; with Ray Tune, use ray.tune.FailureConfig",
        _fail_fast,
    ),
    Rule(
        "trainer-resources",
        "2.51",
        "`ScalingConfig(trainer_resources=...)`",
        "leave it out: the controller takes no resources; resources_per_worker is for workers",
        _trainer_resources,
    ),
    Rule(
        "old-argument",
        "2.51",
        "V1's `resume_from_checkpoint`, `metadata`, `stop`, callbacks of Tune, ... (`checkpoint_frequency`: 2.52)",
        "leave it out",
        _old_arguments,
    ),
    Rule(
        "no-restarts",
        "2.51",
        "`FailureConfig` without `max_failures`; an elastic `num_workers` without one",
        "FailureConfig(max_failures=N), with N restarts, or -1 for any number",
        _no_restarts,
    ),
    Rule(
        "datasets-torchrun",
        "2.51",
        "`datasets` with `num_workers=0` in a script for torchrun",
        "run it as a single process (launch --no-torchrun) or with num_workers above 0, or use a DataLoader",
        _datasets,
        guess=True,
    ),
)
