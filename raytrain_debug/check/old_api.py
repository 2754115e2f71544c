"""Rules on names of old API: functions, trainers and modules that are gone, or are not for Ray Train V2."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from raytrain_debug.check.finding import Place, Rule, Subject
from raytrain_debug.check.program import Program
from raytrain_debug.check.source import Module

_RANKS = ("world_rank", "world_size", "local_rank", "local_world_size", "node_rank")
_OF_CONTEXT = {f"ray.train.get_{name}": f"get_{name}" for name in (*_RANKS, "experiment_name", "storage")}
_OF_CONTEXT |= {f"ray.train.{name}": f"get_{name}" for name in _RANKS}

_TRANSFORMERS = "ray.train.huggingface.transformers"
_TRAINERS = {
    "LightningTrainer": "TorchTrainer, with a training function that runs ray.train.lightning.prepare_trainer(trainer)",
    "LightningConfigBuilder": "TorchTrainer, with a training function that makes the Lightning module and trainer",
    "TransformersTrainer": f"TorchTrainer, with a training function that runs {_TRANSFORMERS}.prepare_trainer(trainer)",
    "HuggingFaceTrainer": f"TorchTrainer, with a training function that runs {_TRANSFORMERS}.prepare_trainer(trainer)",
    "AccelerateTrainer": "TorchTrainer, with a training function that makes accelerate.Accelerator()",
}
_TRAINER_HOMES = ("ray.train.lightning", "ray.train.huggingface", "ray.train.accelerate")

_SESSIONS = ("ray.air.session", "ray.train._internal.session", "ray.train.session")
_SESSION_VALUES = {"get_world_size": "1", "get_world_rank": "0", "get_local_rank": "0"}
_SESSION_VALUES |= {"get_local_world_size": "0", "get_node_rank": "0"}
_SESSION = {"report", "get_checkpoint", "get_dataset_shard", "get_experiment_name", *_SESSION_VALUES}

_OF_TUNE = ("get_trial_name", "get_trial_id", "get_trial_resources", "get_trial_dir", "get_metadata")

_DICT = ("from_dict", "to_dict", "from_bytes", "to_bytes", "from_uri", "to_uri", "get_preprocessor")
_CHECKPOINTS = ("ray.train.Checkpoint", "ray.air.Checkpoint", "ray.air.checkpoint.Checkpoint")
_CHECKPOINT_MAKERS = (
    *_CHECKPOINTS,
    *(f"{each}.from_directory" for each in _CHECKPOINTS),
    "ray.train.get_checkpoint",
    "ray.air.session.get_checkpoint",
)

_CONCRETE = {
    "ray.train.torch.torch_trainer": "ray.train.torch",
    "ray.train.tensorflow.tensorflow_trainer": "ray.train.tensorflow",
    "ray.train.xgboost.xgboost_trainer": "ray.train.xgboost",
    "ray.train.lightgbm.lightgbm_trainer": "ray.train.lightgbm",
    "ray.train.data_parallel_trainer": "ray.train.v2.api.data_parallel_trainer",
    "ray.train.torch.train_loop_utils": "ray.train.torch",
    "ray.train.context": "ray.train",
}
_V1_CLASSES = {"TorchTrainer", "TensorflowTrainer", "XGBoostTrainer", "LightGBMTrainer", "DataParallelTrainer"}
_V1_FUNCTIONS = {"prepare_model", "prepare_data_loader", "get_device", "get_devices", "get_context"}

_GONE_BEFORE_V2 = {
    "ray.train.save_checkpoint": "ray.train.report(metrics, checkpoint=Checkpoint.from_directory(directory))",
    "ray.train.load_checkpoint": "ray.train.get_checkpoint()",
}
_GONE = {
    "ray.train.torch.accelerate": "torch.amp.autocast and torch.amp.GradScaler",
    "ray.train.torch.prepare_optimizer": "the optimizer as it is, with torch.amp.GradScaler where you need it",
    "ray.train.torch.backward": "loss.backward()",
}


def _rank_helpers(subject: Subject) -> Iterator[Place]:
    for module, line, dotted in subject.program.uses:
        if (method := _OF_CONTEXT.get(dotted)) is not None:
            yield Place(
                module.shown,
                line,
                f"ray.train has no {dotted.rpartition('.')[2]}",
                f"ray.train.get_context().{method}()",
            )


def _removed_trainers(subject: Subject) -> Iterator[Place]:
    for module, line, dotted in subject.program.uses:
        home, _, name = dotted.rpartition(".")
        if name in _TRAINERS and home.startswith(_TRAINER_HOMES):
            yield Place(module.shown, line, f"{name} is gone", f"use {_TRAINERS[name]}")
        elif name == "HorovodTrainer" and home.startswith("ray.train.horovod"):
            yield Place(
                module.shown,
                line,
                "HorovodTrainer raises DeprecationWarning under Ray Train V2",
                "use TorchTrainer or TensorflowTrainer",
                since="2.51",
            )


def _v1_session(subject: Subject) -> Iterator[Place]:
    for module, call, dotted in subject.program.worker_calls():
        home, _, name = dotted.rpartition(".")
        if name not in _SESSION or home not in _SESSIONS:
            continue
        of_context = "get_context()." if name in _SESSION_VALUES or name == "get_experiment_name" else ""
        remedy = f"ray.train.{of_context}{name}(...)"
        if home == "ray.train.session":
            yield Place(module.shown, call.lineno, f"the module {home} is empty: it has no {name}", remedy, "2.7")
            continue
        what = "drops what is reported" if name == "report" else f"returns {_SESSION_VALUES.get(name)} on every worker"
        reason = f"{dotted} belongs to Ray Train V1; in a V2 worker it {what}"
        yield Place(module.shown, call.lineno, reason, remedy)


def _tune_context(subject: Subject) -> Iterator[Place]:
    for module, call, method in context_calls(subject.program):
        if method in _OF_TUNE:
            yield Place(
                module.shown,
                call.lineno,
                f"{method}() of the train context raises DeprecationWarning under Ray Train V2",
                "pass what you need of it through train_loop_config"
                if method == "get_metadata"
                else "name the run with RunConfig(name=...) and read get_context().get_experiment_name()",
            )


def context_calls(program: Program) -> Iterator[tuple[Module, ast.Call, str]]:
    """Calls of a method of `ray.train.get_context()`, also through a name that it was given."""
    for module in program.modules.values():
        for node in module.nodes:
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                owner = module.value_of(node.func.value)
                if isinstance(owner, ast.Call) and module.resolve(owner.func) == "ray.train.get_context":
                    yield module, node, node.func.attr


def _checkpoint_dicts(subject: Subject) -> Iterator[Place]:
    remedy = (
        "save files in a directory and use Checkpoint.from_directory(directory); read them "
        "with checkpoint.as_directory()"
    )
    for module in subject.program.modules.values():
        for node in module.nodes:
            if isinstance(node, ast.ImportFrom) and node.module in ("ray.air", "ray.air.checkpoint"):
                if any(alias.name == "Checkpoint" for alias in node.names):
                    yield Place(
                        module.shown,
                        node.lineno,
                        "ray.air has no Checkpoint",
                        "from ray.train import Checkpoint",
                        "2.8",
                    )
            elif isinstance(node, ast.Attribute) and node.attr in _DICT and _is_checkpoint(module, node.value):
                yield Place(module.shown, node.end_lineno or node.lineno, f"Checkpoint has no {node.attr}", remedy)


def _is_checkpoint(module: Module, expression: ast.expr) -> bool:
    if module.resolve(expression) in _CHECKPOINTS:
        return True
    value = module.value_of(expression)
    if isinstance(value, ast.Attribute) and value.attr == "checkpoint":  # of a result
        return any(name.startswith(("ray.train", "ray.air", "ray.tune")) for name in module.imports)
    return isinstance(value, ast.Call) and module.resolve(value.func) in _CHECKPOINT_MAKERS


def _concrete_modules(subject: Subject) -> Iterator[Place]:
    for module, line, dotted in subject.program.uses:
        home, _, name = dotted.rpartition(".")
        if home in _CONCRETE and name in (*_V1_CLASSES, *_V1_FUNCTIONS):
            why = "which refuses to run under V2" if name in _V1_CLASSES else "which does not know V2's workers"
            yield Place(
                module.shown,
                line,
                f"{home} holds the {name} of Ray Train V1, {why}",
                f"from {_CONCRETE[home]} import {name}",
            )
    for module, call, dotted in subject.program.calls():
        if (dotted.startswith("ray.train.") and dotted.endswith("Trainer")) or dotted == "ray.train.RunConfig":
            for argument in call.keywords:
                value = module.value_of(argument.value)
                if isinstance(value, ast.Call):
                    given = module.resolve(value.func) or ""
                    name = given.rpartition(".")[2]
                    if given in (f"ray.air.{name}", f"ray.air.config.{name}") and name.endswith("Config"):
                        yield Place(
                            module.shown,
                            value.lineno,
                            f"{given} is of Ray Train V1; V2 refuses it",
                            f"from ray.train import {name}",
                        )


def _gone_functions(subject: Subject) -> Iterator[Place]:
    for module, line, dotted in subject.program.uses:
        name = ".".join(dotted.split(".")[-2:])
        if dotted in _GONE_BEFORE_V2:
            yield Place(module.shown, line, f"{dotted} is gone", f"use {_GONE_BEFORE_V2[dotted]}", "2.7")
        elif dotted in _GONE:
            yield Place(
                module.shown, line, f"{dotted} raises DeprecationWarning under Ray Train V2", f"use {_GONE[dotted]}"
            )
        elif dotted.startswith("ray.train.") and name.endswith(("Trainer.restore", "Trainer.can_restore")):
            yield Place(
                module.shown,
                line,
                f"{name} raises DeprecationWarning under Ray Train V2",
                "make the trainer as before, with the same RunConfig(name=..., storage_path=...): that goes on",
            )


RULES = (
    Rule(
        "rank-helper",
        "2.7",
        "rank and world size asked of the module `ray.train`, not of its context",
        "ask ray.train.get_context()",
        _rank_helpers,
    ),
    Rule(
        "removed-trainer",
        "2.9",
        "LightningTrainer, TransformersTrainer, HuggingFaceTrainer, AccelerateTrainer (HorovodTrainer: 2.51)",
        "use TorchTrainer",
        _removed_trainers,
    ),
    Rule(
        "v1-session",
        "2.51",
        "`ray.air.session` in code that runs in workers (`ray.train.session`: 2.7)",
        "use ray.train",
        _v1_session,
    ),
    Rule(
        "tune-context",
        "2.51",
        "`get_trial_name()` and the like, and `get_metadata()`, of the train context",
        "use train_loop_config",
        _tune_context,
    ),
    Rule(
        "checkpoint-dict",
        "2.7",
        "`Checkpoint.from_dict`, `to_dict`, `from_bytes`, `from_uri` and the like (import from `ray.air`: 2.8)",
        "use Checkpoint.from_directory(directory)",
        _checkpoint_dicts,
    ),
    Rule(
        "concrete-module",
        "2.51",
        "V1 classes and functions from modules such as `ray.train.torch.torch_trainer`; configs of `ray.air`",
        "import from the public module",
        _concrete_modules,
    ),
    Rule(
        "gone-function",
        "2.51",
        "`Trainer.restore`, `ray.train.torch.backward` and the like (`save_checkpoint`, `load_checkpoint`: 2.7)",
        "use what took its place",
        _gone_functions,
    ),
)
