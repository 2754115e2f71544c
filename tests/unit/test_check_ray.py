"""What the rules of `check` say of Ray Train is what the Ray that is installed does."""

import inspect
import warnings
from pathlib import Path

import pytest
import ray
import ray.train
import ray.train.torch
import torch
from ray.train.torch import TorchTrainer
from ray.train.v2._internal.execution.train_fn_utils import LocalTrainFnUtils
from ray.train.v2.api.context import TrainContext

from raytrain_debug.check import configs, old_api

VERSION = tuple(map(int, ray.__version__.split(".")[:2]))


@pytest.mark.parametrize("dotted", [*old_api._OF_CONTEXT, *old_api._GONE_BEFORE_V2])
def test_ray_train_has_no_such_function(dotted):
    assert not hasattr(ray.train, dotted.rpartition(".")[2])


@pytest.mark.parametrize("method", sorted(set(old_api._OF_CONTEXT.values())))
def test_the_context_has_what_the_remedy_says(method):
    assert hasattr(TrainContext, method)


@pytest.mark.parametrize("name", old_api._TRAINERS)
def test_a_removed_trainer_is_nowhere(name):
    home = Path(ray.train.__file__).parent
    assert not any(f"class {name}" in path.read_text() for path in home.rglob("*.py"))


@pytest.mark.parametrize("name", sorted(old_api._SESSION))
def test_the_session_of_v1_is_not_there_without_v1(name):
    from ray.air import session
    from ray.train import session as empty

    assert not hasattr(empty, name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        given = getattr(session, name)({"a": 1}) if name == "report" else getattr(session, name)()
    expected = old_api._SESSION_VALUES.get(name)
    assert given == (int(expected) if expected is not None else None)


@pytest.mark.parametrize("name", old_api._OF_TUNE)
def test_the_context_refuses_what_belongs_to_tune(name):
    with pytest.raises(DeprecationWarning):
        getattr(LocalTrainFnUtils("name").get_context(), name)()


@pytest.mark.parametrize("name", old_api._DICT)
def test_a_checkpoint_has_no_such_method(name):
    with pytest.raises(AttributeError):
        getattr(ray.train.Checkpoint, name)
    assert not hasattr(ray.train.Checkpoint("directory", torch), name)


def test_concrete_modules_hold_the_trainers_of_v1():
    from ray.train.torch.torch_trainer import TorchTrainer as V1

    assert V1 is not TorchTrainer
    with pytest.raises(DeprecationWarning):
        V1(print)


def test_configs_of_ray_air_are_refused():
    from ray import air

    with pytest.raises(ValueError, match="ScalingConfig"):
        TorchTrainer(print, scaling_config=air.ScalingConfig(num_workers=2))


@pytest.mark.parametrize("call", ["restore", "can_restore"])
def test_trainers_are_not_restored(call):
    with pytest.raises(DeprecationWarning):
        getattr(TorchTrainer, call)("path")


@pytest.mark.parametrize("dotted", old_api._GONE)
def test_helpers_for_mixed_precision_are_gone(dotted):
    with pytest.raises(DeprecationWarning):
        getattr(ray.train.torch, dotted.rpartition(".")[2])(1)


ARGUMENTS = [
    ("FailureConfig", "fail_fast"),
    ("ScalingConfig", "trainer_resources"),
    *(
        (callee.removeprefix("ray.train."), name)
        for callee, arguments in configs._OLD_ARGUMENTS.items()
        if callee.startswith("ray.train.")
        for name in arguments
    ),
]


@pytest.mark.parametrize(("callee", "name"), ARGUMENTS)
def test_an_old_argument_is_refused_from_its_version_on(callee, name):
    since = tuple(map(int, configs._SINCE.get(name, "2.51").split(".")))
    if since > VERSION:
        pytest.skip(f"Ray {ray.__version__} still takes it")
    with pytest.raises(DeprecationWarning):
        getattr(ray.train, callee)(**{name: 1})


@pytest.mark.parametrize(
    ("callee", "name", "position"),
    [
        ("FailureConfig", "fail_fast", 1),
        ("ScalingConfig", "trainer_resources", 0),
        ("ScalingConfig", "num_workers", 1),
        ("RunConfig", "failure_config", 3),
        ("RunConfig", "callbacks", 5),
        *(("CheckpointConfig", name, position) for name, position in configs._POSITIONS.items()),
    ],
)
def test_an_argument_without_its_name_stands_where_the_rules_look(callee, name, position):
    assert list(inspect.signature(getattr(ray.train, callee)).parameters)[position] == name


def test_a_trainer_takes_all_but_the_training_function_by_name():
    first, *others = inspect.signature(TorchTrainer).parameters.values()
    assert first.name == "train_loop_per_worker"
    assert {each.kind for each in others} == {inspect.Parameter.KEYWORD_ONLY}


@pytest.mark.parametrize("name", configs._OLD_ARGUMENTS["Trainer"])
def test_a_trainer_refuses_old_arguments(name):
    with pytest.raises(DeprecationWarning):
        TorchTrainer(print, **{name: {"a": 1}})


def test_callbacks_of_tune_are_refused():
    from ray.tune.logger import LoggerCallback

    with pytest.raises(ValueError, match="UserCallback"):
        ray.train.RunConfig(callbacks=[LoggerCallback()])


def test_a_run_does_not_restart_by_itself():
    assert ray.train.RunConfig(failure_config=ray.train.FailureConfig()).failure_config.max_failures == 0


def test_local_mode_has_no_storage_and_no_reported_checkpoints():
    local = LocalTrainFnUtils("name")
    with pytest.raises(NotImplementedError):
        local.get_context().get_storage()
    local.report({"a": 1}, checkpoint=ray.train.Checkpoint.from_directory("directory"))
    assert local.get_all_reported_checkpoints() == []


def test_a_sampler_deals_out_the_same_order_until_it_is_told_the_epoch():
    sampler = torch.utils.data.distributed.DistributedSampler(range(100), num_replicas=2, rank=0)
    first = list(sampler)
    assert list(sampler) == first
    sampler.set_epoch(1)
    assert list(sampler) != first
