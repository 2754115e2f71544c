"""Each rule of `check`: a bad script, where `# !` marks the lines that it finds, and a good one without a finding."""

from pathlib import Path

import pytest

from raytrain_debug.check.examine import examine
from raytrain_debug.check.rules import RULES

HEAD = """\
import os, tempfile
import ray.train, torch
from ray import train
from ray.train import Checkpoint, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
from torch.utils.data import DataLoader
"""
FIT = "TorchTrainer(loop, scaling_config=ScalingConfig(num_workers=2)).fit()\n"
LOCAL_FIT = "TorchTrainer(loop, scaling_config=ScalingConfig(num_workers=0)).fit()\n"
REPORT = "    train.report({'loss': 1.0})\n"
EPOCHS = "    for epoch in range(3):\n        for batch in loader: print(batch)\n"

# rule, bad, good
CASES = [
    ("rank-helper", "print(train.get_world_rank())  # !\n", "print(train.get_context().get_world_rank())\n"),
    ("rank-helper", "from ray.train import world_size  # !\n", "from ray.train import get_context\n"),
    (
        "removed-trainer",
        "from ray.train.lightning import LightningTrainer  # !\n",
        "from ray.train.lightning import prepare_trainer\n",
    ),
    (
        "removed-trainer",
        "import ray.train.huggingface\nray.train.huggingface.TransformersTrainer()  # !\n",
        "class TransformersTrainer: ...\nTransformersTrainer()\n",
    ),
    ("removed-trainer", "from ray.train.horovod import HorovodTrainer  # !\n", "import horovod.torch\n"),
    (
        "v1-session",
        f"from ray.air import session\ndef loop():\n    session.report({{'a': 1}})  # !\n{FIT}",
        f"from ray.air import session\ndef tuned(config):\n    session.report({{'a': 1}})\ndef loop():\n{REPORT}{FIT}",
    ),
    (
        "v1-session",
        f"from ray.train import session\ndef loop():\n    session.get_world_rank()  # !\n{FIT}",
        f"from mine import session\ndef loop():\n    session.get_world_rank()\n{FIT}",
    ),
    (
        "tune-context",
        "def loop():\n    context = train.get_context()\n    print(context.get_trial_name())  # !\n",
        "def loop():\n    context = train.get_context()\n    print(context.get_experiment_name())\n",
    ),
    ("checkpoint-dict", "Checkpoint.from_dict({'a': 1})  # !\n", "Checkpoint.from_directory('d')\n"),
    (
        "checkpoint-dict",
        "def loop():\n    if last := train.get_checkpoint():\n        last.to_dict()  # !\n",
        "def loop(frame):\n    if last := train.get_checkpoint():\n        last.to_directory()\n    frame.to_dict()\n",
    ),
    ("checkpoint-dict", "print(best.checkpoint.to_dict())  # !\n", "print(best.metrics.to_dict())\n"),
    ("checkpoint-dict", "from ray.air import Checkpoint  # !\n", "from ray.train import Checkpoint\n"),
    (
        "concrete-module",
        "from ray.train.torch.torch_trainer import TorchTrainer  # !\n",
        "from ray.train.torch import TorchTrainer\n",
    ),
    (
        "concrete-module",
        "from ray.air import RunConfig\nTorchTrainer(print, run_config=RunConfig(name='a'))  # !\n",
        "from ray.air import RunConfig\nprint(RunConfig(name='a'))\n",
    ),
    (
        "gone-function",
        "TorchTrainer.restore('path')  # !\n",
        "class Mine:\n    def restore(self): ...\nMine().restore()\n",
    ),
    (
        "gone-function",
        "def loop(loss):\n    train.torch.backward(loss)  # !\n",
        "def loop(loss):\n    loss.backward()\n",
    ),
    (
        "fail-fast",
        "FailureConfig(max_failures=0, fail_fast=True)  # !\n",
        "from ray.tune import FailureConfig\nFailureConfig(fail_fast=True)\n",
    ),
    (
        "fail-fast",
        "FailureConfig(0, True)  # !\n",
        "FailureConfig(0)\nargs = 0,\nFailureConfig(*args, 3)\n",
    ),
    (
        "trainer-resources",
        "ScalingConfig({'CPU': 0}, 2)  # !\nScalingConfig(4)  # !\n",
        "ScalingConfig(None, 2)\n",
    ),
    (
        "old-argument",
        "train.CheckpointConfig(1, None, 'max', 5)  # !\n",
        "train.CheckpointConfig(1, None, 'max')\n",
    ),
    (
        "old-argument",
        "from ray.tune.logger import JsonLogger\nRunConfig('name', None, None, None, None, [JsonLogger()])  # !\n",
        "RunConfig('name', None, None, None, None, [])\n",
    ),
    (
        "local-only",
        "def loop():\n    train.get_context().get_storage()  # !\n"
        "TorchTrainer(loop, scaling_config=ScalingConfig(None, 0))\n",
        "def loop():\n    train.get_context().get_storage()\n"
        "TorchTrainer(loop, scaling_config=ScalingConfig(None, 2))\n",
    ),
    (
        "trainer-resources",
        "ScalingConfig(num_workers=2, trainer_resources={'CPU': 0})  # !\n",
        "ScalingConfig(num_workers=2, resources_per_worker={'CPU': 1})\n",
    ),
    ("old-argument", "RunConfig(stop={'a': 1})  # !\n", "from ray import tune\ntune.RunConfig(stop={'a': 1})\n"),
    (
        "old-argument",
        "def loop(): ...\nTorchTrainer(loop, resume_from_checkpoint=Checkpoint('d'))  # !\n",
        "def loop(): ...\nTorchTrainer(loop, resume_from_checkpoint=None)\n",
    ),
    (
        "old-argument",
        "from ray.tune.logger import JsonLogger\nRunConfig(callbacks=[JsonLogger()])  # !\n",
        "class Mine(train.UserCallback): ...\nRunConfig(callbacks=[Mine()])\n",
    ),
    (
        "no-restarts",
        "RunConfig(failure_config=FailureConfig())  # !\n",
        "RunConfig(failure_config=FailureConfig(max_preemption_failures=3))\n",
    ),
    (
        "no-restarts",
        "failures = FailureConfig()  # !\nRunConfig(failure_config=failures)\n",
        "FailureConfig()\nRunConfig(failure_config=FailureConfig(max_failures=0))\n",
    ),
    (
        "no-restarts",
        "def loop(): ...\nTorchTrainer(loop, scaling_config=ScalingConfig(num_workers=(1, 4)))  # !\n",
        "def loop(): ...\nTorchTrainer(loop, scaling_config=ScalingConfig(num_workers=(1, 4)),\n"
        "             run_config=RunConfig(failure_config=FailureConfig(max_failures=3)))\n",
    ),
    (
        "datasets-torchrun",
        "'''torchrun --nproc-per-node 2 train.py'''\ndef loop(): ...\n"
        "TorchTrainer(loop, datasets={'train': 1}, scaling_config=ScalingConfig(num_workers=0))  # !\n",
        "'''Not for torchrun.'''\ndef loop(): ...\n"
        "TorchTrainer(loop, datasets={'train': 1}, scaling_config=ScalingConfig(num_workers=0))\n",
    ),
    (
        "report-under-rank",
        "def loop():\n    if train.get_context().get_world_rank() == 0:\n        train.report({'a': 1})  # !\n",
        "def loop():\n    if train.get_context().get_world_rank() == 0:\n        train.report({'a': 1})\n"
        "    else:\n        train.report({})\n",
    ),
    (
        "report-under-rank",
        "def tell():\n    train.report({'a': 1})\ndef loop():\n    rank = torch.distributed.get_rank()\n"
        "    for epoch in range(3):\n        if rank != 0:\n            continue\n        tell()  # !\n",
        "def tell():\n    train.report({'a': 1})\ndef loop(lora_rank):\n    if lora_rank == 8:\n        tell()\n",
    ),
    (
        "old-argument",
        "from ray.air.integrations.wandb import WandbLoggerCallback as W\nRunConfig(callbacks=[W()])  # !\n",
        "from ray.tune.integration.ray_train import TuneReportCallback\nRunConfig(callbacks=[TuneReportCallback()])\n",
    ),
    (
        "report-under-rank",
        "def loop(rank):\n    if rank == 0:\n        train.report({'a': 1})  # !\n        return\n    print(rank)\n",
        "def loop(rank):\n    if rank == 0:\n        train.report({'a': 1})\n        return\n    train.report({})\n",
    ),
    (
        "report-under-rank",
        "class Callback:\n    def on_save(self, args, state):\n        if state.is_world_process_zero:\n"
        "            train.report({'a': 1})  # !\n",
        "def loop():\n    rank = train.get_context().get_world_rank()\n    if rank is None:\n        return\n"
        "    checkpoint = Checkpoint('d') if rank == 0 else None\n    train.report({'a': 1}, checkpoint)\n",
    ),
    (
        "report-under-rank",
        "def loop(rank):\n    train.report({'a': 1}) if rank == 0 else None  # !\n"
        "    rank == 0 and train.report({'a': 1})  # !\n    rank != 0 or print() or train.report({'a': 1})  # !\n"
        "    if (mine := train.get_context().get_world_rank()) == 0:\n        train.report({'a': mine})  # !\n",
        "def loop(rank):\n    train.report({'a': 1}) if rank == 0 else train.report({})\n"
        "    train.report({'a': 1} if rank == 0 else {}) or rank == 0\n    rank == 0 and print()\n",
    ),
    (
        "report-under-rank",
        "def loop(rank):\n    while rank == 0:\n        train.report({'a': 1})  # !\n        break\n"
        "def other(rank, step):\n    while not step and rank < 2:\n        train.report({'a': 1})  # !\n",
        "def loop(rank, step):\n    while step < 3:\n        train.report({'rank': rank})\n"
        "    while rank > 9:\n        print()\n    else:\n        train.report({})\n",
    ),
    (
        "report-under-rank",
        "def loop(rank):\n    match rank:\n        case 0:\n            train.report({'a': 1})  # !\n"
        "def other(kind, rank):\n    match kind:\n        case 'a' if rank == 0:\n            train.report({})  # !\n"
        "        case _:\n            print(rank)\ndef third(rank):\n    match rank:\n        case 0:\n"
        "            print(rank)\n        case _:\n            return\n    train.report({})  # !\n",
        "def loop(rank, kind):\n    match rank:\n        case 0:\n            train.report({'a': 1})\n"
        "        case _:\n            train.report({})\n    match kind:\n        case 'a':\n"
        "            train.report({'rank': rank})\n    match rank:\n        case mine:\n"
        "            train.report({'rank': mine})\n    match rank:\n        case 0:\n"
        "            train.report({})\n            return\n    train.report({})\n",
    ),
    (
        "report-under-rank",
        "def loop(rank):\n    for epoch in range(3):\n        if rank != 0:\n            break\n"
        "        train.report({'a': epoch})  # !\ndef other(rank):\n    try:\n        if rank:\n"
        "            raise StopIteration('enough')\n        train.report({})  # !\n"
        "    except (KeyError, StopIteration):\n        print(rank)\n",
        "def loop(rank, world_size):\n    if rank >= world_size:\n        raise ValueError(rank)\n"
        "    if rank == 1:\n        raise RuntimeError('a fault, to see that the run ends')\n"
        "    for epoch in range(3):\n        if epoch > 1:\n            break\n        train.report({'a': rank})\n"
        "    try:\n        if rank:\n            raise ValueError\n        train.report({})\n"
        "    except KeyError:\n        print(rank)\n    try:\n        if rank:\n            raise ValueError\n"
        "        train.report({})\n    except ValueError:\n        print(rank)\n        raise\n",
    ),
    (
        "unreported-checkpoint",
        f"def loop(model, epoch):\n    torch.save(model.state_dict(), f'out/{{epoch}}.pt')  # !\n{REPORT}",
        "def loop(model):\n    torch.save(model.state_dict(), 's3://bucket/model.pt')\n"
        f"    torch.save(model.state_dict(), os.path.join(tempfile.mkdtemp(), 'm.pt'))\n{REPORT}",
    ),
    (
        "unreported-checkpoint",
        "OUT = os.path.join('out', 'models')\ndef loop(model):\n"
        f"    torch.save({{'model': model}}, os.path.join(OUT, 'model.pt'))  # !\n{REPORT}",
        "def loop(model):\n    torch.save(model.state_dict(), 'out/model.pt')\n"
        "    train.report({}, checkpoint=Checkpoint.from_directory('out'))\n",
    ),
    (
        "unreported-checkpoint",
        "def loop(config, model):\n    with Checkpoint(config['resume']).as_directory() as directory:\n"
        "        model.load_state_dict(torch.load(directory))\n"
        f"    torch.save(model.state_dict(), '/data/model.pt')  # !\n{REPORT}",
        "import mine\ndef loop(config, model):\n    mine.tell({}, Checkpoint(config['resume']))\n"
        f"    torch.save(model.state_dict(), '/data/model.pt')\n{REPORT}",
    ),
    (
        "unreported-checkpoint",
        "class Job:\n    def restore(self, old, model):\n        print(f'from {old}', isinstance(old, Checkpoint))\n"
        "        model.load(old.path)\n    def loop(self, config, model):\n"
        "        old = Checkpoint(config['resume']) if config else None\n        if old and old is not None:\n"
        "            self.restore(old, model)\n"
        "        torch.save(obj=model.state_dict(), f='/data/model.pt')  # !\n        train.report({})\n",
        "class Job:\n    def restore(self, old, model):\n        self.old = old\n"
        "    def loop(self, config, model):\n        self.restore(Checkpoint(config['resume']), model)\n"
        "        torch.save(model.state_dict(), '/data/model.pt')\n        train.report({})\n",
    ),
    (
        "unreported-checkpoint",
        "# RayTrainReportCallback would do it.\ndef loop(model):\n"
        f"    torch.save(model.state_dict(), '/data/model.pt')  # !\n{REPORT}",
        "from ray.train.lightning import RayTrainReportCallback as Reports\ndef loop(model):\n"
        f"    torch.save(model.state_dict(), '/data/model.pt')\n    model.fit([Reports()])\n{REPORT}",
    ),
    (
        "unreported-checkpoint",
        "def loop(model):\n    torch.save(model.state_dict(), '/data/m.pt')  # !\n    train.report({}, None)\n",
        "def loop(model, *rest, **more):\n    torch.save(model.state_dict(), '/data/model.pt')\n"
        "    train.report(*rest) if more else train.report({}, **more)\n",
    ),
    (
        "unreported-checkpoint",
        "import pickle\nimport numpy as np\ndef loop(model):\n    with open('/data/model.pkl', 'wb') as file:\n"
        "        pickle.dump(model, file)  # !\n    np.save('/data/weights.npy', model.get_weights())  # !\n"
        "    pickle.dump({'model': model.state_dict(), 'epoch': 1}, open('/data/state', 'wb'))  # !\n" + REPORT,
        "import pickle\nimport numpy as np\ndef loop(model, model_config, losses):\n"
        "    pickle.dump(model_config, open('/data/config.pkl', 'wb'))\n    np.save('/data/losses.npy', losses)\n"
        "    with open(os.path.join(tempfile.mkdtemp(), 'm.pkl'), 'wb') as file:\n"
        "        pickle.dump(model, file)\n" + REPORT,
    ),
    (
        "local-only",
        "def loop():\n    train.get_context().get_storage()  # !\n"
        f"    train.get_all_reported_checkpoints()  # !\n{LOCAL_FIT}",
        f"def loop():\n    train.get_context().get_storage()\n    train.get_all_reported_checkpoints()\n{FIT}",
    ),
    (
        "unreported-checkpoint",
        f"def loop(model, rank):\n    if rank == 0:\n        torch.save(model.state_dict(), 'm.pt')  # !\n{REPORT}",
        "def loop(model, rank):\n    if rank == 0:\n        torch.save(model.state_dict(), 'out/m.pt')\n"
        "        checkpoint = Checkpoint('out')\n    else:\n        checkpoint = None\n"
        "    train.report({}, checkpoint=checkpoint)\n",
    ),
    (
        "local-only",
        f"def loop():\n    return train.get_context().get_storage().path  # !\n{LOCAL_FIT}",
        "def loop():\n    try:\n        return train.get_context().get_storage().path\n"
        f"    except NotImplementedError:\n        return None\n{LOCAL_FIT}",
    ),
    (
        "tensor-metric",
        "def loop(model, loss_fn):\n    loss = loss_fn(model())\n    loss.backward()\n"
        "    train.report({'loss': loss})  # !\n",
        "def loop(model, loss_fn):\n    loss = loss_fn(model())\n    loss.backward()\n"
        "    train.report({'a': loss.item()})\n",
    ),
    (
        "tensor-metric",
        "def loop():\n    train.report(dict(loss=torch.ones(1).mean()))  # !\n",
        "def loop():\n    train.report(dict(loss=torch.ones(1).mean().item()))\n",
    ),
    (
        "tensor-metric",
        "def loop(model):\n    criterion = torch.nn.MSELoss()\n    metrics = {\n"
        "        'loss': criterion(model()).mean()  # !\n    }\n    train.report(metrics)\n",
        "def loop(model):\n    loss = torch.nn.functional.mse_loss(model(), 1)\n    loss.backward()\n"
        "    loss = loss.item() / 2\n    train.report({'loss': loss})\n",
    ),
    (
        "tensor-metric",
        "def loop(model, loss_fn):\n    total = 0\n    for batch in model:\n        loss = loss_fn(batch)\n"
        "        loss.backward()\n        total += loss\n    train.report({'a': {'mean': total / 3}})  # !\n",
        "def loop(model, loss_fn):\n    total = 0\n    for batch in model:\n        loss = loss_fn(batch)\n"
        "        loss.backward()\n        total += loss.item()\n    loss = evaluate(model)\n"
        "    train.report({'a': {'mean': total / 3}, 'loss': loss})\n",
    ),
    (
        "tensor-metric",
        "def loop(model):\n    loss = torch.nn.functional.mse_loss(model(), 1)\n    metrics = {'epoch': 1}\n"
        "    metrics['loss'] = loss  # !\n    metrics.update({'more': loss.mean()})  # !\n"
        "    metrics.update(most=loss * 2)  # !\n    metrics[f'{model}_loss'] = loss  # !\n"
        "    metrics['sum'] = 0.0\n    metrics['sum'] += loss  # !\n    train.report(metrics)\n"
        "    train.report({**metrics, 'epoch': 2})\n    train.report({'loss': loss, **model.times()})  # !\n",
        "def loop(model):\n    loss = torch.nn.functional.mse_loss(model(), 1)\n    metrics = {'loss': loss}\n"
        "    metrics['loss'] = metrics['loss'].item()\n    other = {'loss': loss}\n    print(other)\n"
        "    other = {}\n    other['loss'] = loss.item()\n    train.report(metrics)\n    train.report(other)\n"
        "    metrics['loss'] = loss\n    metrics.update(loss=float(loss))\n    train.report({**metrics})\n"
        "    metrics['later'] = loss\n    more = {'loss': loss}\n"
        "    more.update(more)\n    more.update({key: value.item() for key, value in more.items()})\n"
        "    train.report(more)\n",
    ),
    (
        "tensor-metric",
        "def loop(model):\n    loss = torch.nn.functional.mse_loss(model(), 1)\n    metrics = dict(epoch=1)\n"
        "    if model:\n        metrics['loss'] = loss\n    else:\n        metrics['loss'] = loss.mean()  # !\n"
        "    train.report(metrics.copy())\n",
        "def numbers(of):\n    for key in of:\n        of[key] = float(of[key])\ndef loop(model):\n"
        "    loss = torch.nn.functional.mse_loss(model(), 1)\n    metrics = {'loss': loss}\n    numbers(metrics)\n"
        "    train.report(metrics)\n    metrics['loss'] = loss\n    for key, value in metrics.items():\n"
        "        metrics[key] = value.item()\n    train.report(metrics)\n    if isinstance(loss, torch.Tensor):\n"
        "        metrics['loss'] = loss.item()\n    else:\n        metrics['loss'] = loss\n    train.report(metrics)\n"
        "    metrics['loss'] = loss\n    del metrics['loss']\n    train.report(metrics)\n    kept = model.metrics()\n"
        "    kept['loss'] = loss\n    train.report(kept)\n",
    ),
    (
        "returned-tensor",
        "def loop():\n    model = ray.train.torch.prepare_model(torch.nn.Linear(1, 1))\n"
        f"{REPORT}    return model  # !\n{FIT}",
        f"def helper():\n    return torch.zeros(1)\ndef loop():\n    return {{'loss': helper().item()}}\n{FIT}",
    ),
    (
        "returned-tensor",
        "class Net(torch.nn.Module): ...\ndef loop(loss):\n    model = Net()\n    if loss:\n"
        "        return {'state': model.state_dict()}  # !\n    loss.backward()\n    return [1, loss]  # !\n" + FIT,
        "class Net: ...\ndef loop(loss):\n    model = Net()\n    if loss:\n        return model\n"
        "    return loss.item()\n" + FIT,
    ),
    (
        "download-race",
        "from torchvision.datasets import MNIST\ndef data():\n    return MNIST('data', download=True)  # !\n"
        f"def loop():\n    data()\n{FIT}",
        "from torchvision.datasets import MNIST\ndef data():\n    return MNIST('data', download=True)\n"
        f"def loop(lock):\n    with lock:\n        data()\n{FIT}data()\n",
    ),
    (
        "download-race",
        f"from torchvision import datasets\ndef loop():\n    datasets.MNIST(root='d', download=True)  # !\n{FIT}",
        "from torchvision import datasets\ndef loop():\n    datasets.MNIST(root=tempfile.mkdtemp(), download=True)\n"
        "    if train.get_context().get_local_rank() == 0:\n        datasets.MNIST(root='d', download=True)\n"
        f"    datasets.MNIST(root='d', download=False)\n{FIT}",
    ),
    (
        "download-race",
        f"from torchvision import datasets\ndef loop():\n    datasets.MNIST('d', True, None, None, True)  # !\n{FIT}",
        f"from torchvision import datasets\ndef loop():\n    datasets.MNIST('d', True)\n{FIT}",
    ),
    (
        "set-epoch",
        "def loop():\n    loader = DataLoader(range(9), shuffle=True)\n"
        f"    loader = train.torch.prepare_data_loader(loader)  # !\n{EPOCHS}{FIT}",
        "def loop():\n    loader = DataLoader(range(9))\n"
        f"    loader = train.torch.prepare_data_loader(loader)\n{EPOCHS}{FIT}",
    ),
    (
        "set-epoch",
        "def data():\n    return (DataLoader(range(9), shuffle=True),  # !\n            DataLoader(range(9)))\n"
        "def loop():\n    loader, other = data()\n    loader = train.torch.prepare_data_loader(loader)\n"
        f"{EPOCHS}{FIT}",
        "import accelerate\ndef loop():\n    loader = DataLoader(range(9), shuffle=True)\n"
        "    loader = accelerate.Accelerator().prepare(train.torch.prepare_data_loader(loader))\n"
        f"{EPOCHS}{FIT}",
    ),
    (
        "set-epoch",
        "from torch.utils.data.distributed import DistributedSampler\ndef turn(loader):\n    for batch in loader: ...\n"
        "def loop():\n    loader = DataLoader(range(9), sampler=DistributedSampler(range(9)))  # !\n"
        f"    while True:\n        turn(loader)\n{FIT}",
        "from torch.utils.data.distributed import DistributedSampler\ndef loop():\n"
        f"    loader = DataLoader(range(9), sampler=DistributedSampler(range(9)))\n    for batch in loader: ...\n{FIT}",
    ),
]


def found(path: Path, text: str) -> list[tuple[str, int]]:
    path.write_text(text)
    return [(finding.rule, finding.line) for finding in examine(path).findings]


@pytest.mark.parametrize(("rule", "bad", "good"), CASES, ids=[f"{rule}-{at}" for at, (rule, *_) in enumerate(CASES)])
def test_a_rule_finds_what_is_bad_and_nothing_else(tmp_path, rule, bad, good):
    marked = [line for line, text in enumerate((HEAD + bad).splitlines(), 1) if text.endswith("# !")]
    assert found(tmp_path / "bad.py", HEAD + bad) == [(rule, line) for line in marked]
    assert found(tmp_path / "good.py", HEAD + good) == []


def test_every_rule_on_source_has_a_case():
    elsewhere = {"unpicklable", "report-counts", "checkpoint-overwritten"}
    assert {rule.id for rule in RULES} == {rule for rule, *_ in CASES} | elsewhere


def test_a_finding_has_all_that_a_reader_needs(tmp_path):
    script = tmp_path / "train.py"
    for _, bad, _ in CASES:
        script.write_text(HEAD + bad)
        for finding in examine(script).findings:
            assert finding.file == str(script)
            assert finding.reason
            assert finding.remedy
            assert finding.since == "any" or finding.since.startswith("2.")


def test_a_script_that_chooses_ray_train_v1_hears_nothing_of_v2(tmp_path):
    bad = "FailureConfig(max_failures=0, fail_fast=True)\nTorchTrainer.restore('path')\ntrain.get_world_rank()\n"
    chosen = HEAD + "os.environ['RAY_TRAIN_V2_ENABLED'] = '0'\n" + bad
    assert [rule for rule, _ in found(tmp_path / "train.py", chosen)] == ["rank-helper"]


def test_what_runs_under_v1_only_hears_nothing_of_v2(tmp_path):
    asked = "if is_v2_enabled():\n    TorchTrainer(print)\nelse:\n    TorchTrainer.restore('path')\n"
    assert found(tmp_path / "train.py", HEAD + asked) == []
