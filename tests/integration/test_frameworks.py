"""Ray Train's frameworks in local mode: each example is debugged, recorded, and its checkpoint read."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from raytrain_debug.postmortem import findings
from raytrain_debug.run.reader import load_run
from tests.conftest import REPOSITORY, TARGETS, wait_for

EXAMPLES = REPOSITORY / "examples"
ENV = {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3"}


@dataclass(frozen=True)
class Example:
    """`at` begins the line that the breakpoint is set on, in `function`, where `expression` has `value`.

    The last checkpoint has `file`, which `postmortem` reads as `format` with `tensor` (name, shape) and the scalars
    `told`. `modules` are what the extra `extra` installs, `heavy` says why the tests' own extra leaves it out.
    """

    script: str
    at: str
    function: str
    expression: str
    value: str
    file: str
    format: str
    tensor: tuple[str, tuple[int, ...]] | None
    told: tuple[str, ...] = ()
    ranks: int = 1
    arguments: tuple[str, ...] = ("--epochs", "2")
    reports: int = 2
    modules: tuple[str, ...] = ()
    extra: str = ""
    heavy: str = ""


WHOLE = [
    Example(
        *("linear_single.py", "loss.backward()", "train_loop", "tuple(x.shape)", "(32, 1)"),
        *("model.pt", "torch", ("weight", (1, 1))),
    ),
    Example(
        *("digits_ddp.py", "loss.backward()", "train_one_epoch", "tuple(images.shape)", "(32, 1, 8, 8)"),
        *("model.pt", "torch", ("8.weight", (10, 64))),
        ranks=2,
    ),
    Example(
        *("frameworks/lightning_digits.py", "return loss", "training_step", "self.hparams.width", "32"),
        *("checkpoint.ckpt", "Lightning", ("state_dict.layers.2.weight", (10, 32)), ("epoch", "hyper_parameters.lr")),
        ranks=2,
        modules=("pytorch_lightning",),
        extra="lightning",
    ),
    Example(
        *("frameworks/transformers_digits.py", "if state.global_step", "on_step_end", "state.max_steps", "114"),
        *("checkpoint/model.safetensors", "safetensors", ("classifier.weight", (10, 32))),
        modules=("transformers", "accelerate"),
        extra="transformers",
    ),
    Example(
        *("frameworks/xgboost_digits.py", "return False", "after_iteration", "epoch", "0"),
        *("model.ubj", "XGBoost model", None, ("rounds", "trees", "objective")),
        arguments=("--rounds", "6"),
        reports=7,
        modules=("xgboost",),
        extra="xgboost",
    ),
    Example(
        *("frameworks/lightgbm_digits.py", "(_, _, error, _) =", "say_progress", "environment.iteration", "0"),
        *("model.txt", "LightGBM model", None, ("trees", "objective")),
        arguments=("--rounds", "6"),
        reports=6,
        modules=("lightgbm",),
        extra="lightgbm",
    ),
    Example(
        *("frameworks/keras_digits.py", 'print(f"epoch', "on_epoch_end", "epoch", "0"),
        *("model.keras", "Keras model", ("layers.dense_1.vars.0", (32, 10)), ("class", "keras_version")),
        modules=("tensorflow", "keras"),
        extra="tensorflow",
        heavy="it takes 1.4 GB",
    ),
    Example(
        *("frameworks/jax_digits.py", "with tempfile", "train_loop", "params['out']['b'].shape", "(10,)"),
        *("state/_METADATA", "Orbax", ("params.out.w", (32, 10)), ("epoch",)),
        modules=("jax", "orbax"),
        extra="jax",
        heavy="it takes 450 MB",
    ),
]


def line_of(script: Path, text: str) -> int:
    """The number of the line that begins with `text`."""
    (line,) = [
        number for number, line in enumerate(script.read_text().splitlines(), 1) if line.strip().startswith(text)
    ]
    return line


def require(example: Example) -> None:
    missing = [module for module in example.modules if importlib.util.find_spec(module) is None]
    if missing:
        why = f", which the tests' own extra leaves out because {example.heavy}" if example.heavy else ""
        pytest.skip(f"not installed: {', '.join(missing)}; pip install 'raytrain_debug[{example.extra}]'{why}")


def is_of_ray(process: psutil.Process) -> bool:
    """Whether it is a worker process of Ray's, which names itself after what it does."""
    try:
        return any(word.startswith("ray::") for word in process.cmdline())
    except psutil.Error:
        return False


@pytest.mark.parametrize("example", WHOLE, ids=lambda example: Path(example.script).stem)
def test_an_example_is_debugged_recorded_and_its_checkpoint_read(example, launch):
    require(example)
    script, last = EXAMPLES / example.script, example.ranks - 1
    how = ("--no-torchrun",) if example.ranks == 1 else ("--nproc-per-node", str(example.ranks))
    job = launch(*how, "--wait", str(last), script, *example.arguments, env=ENV)
    session = job.session(last)
    line = line_of(script, example.at)
    session.set_breakpoint(str(script), line)
    assert session.wait_for_stop(120) is not None, job.output
    frame = session.stack()[0]
    assert (frame.name, frame.line) == (example.function, line)
    assert session.evaluate(example.expression, frame).value == example.value
    assert session.evaluate("__rank__", frame).value == str(last)
    session.clear_breakpoints()
    session.disconnect()
    assert job.wait(150) == 0, job.output

    found = findings.examine(job.run)
    assert found.verdict.state == "finished"
    assert not job.paths.errors.exists(), job.paths.errors.read_text()
    assert [each.rank.rank for each in found.ranks] == list(range(example.ranks))
    for each in found.ranks:
        assert len(each.rank.reports) == example.reports
        for report in each.rank.reports:
            assert report.metrics
            assert (report.context["world_size"], report.context["world_rank"]) == (example.ranks, each.rank.rank)
            assert (report.where.file, report.where.function) == (str(script), "train_loop")
        assert each.checkpoint.directory is not None
        assert each.checkpoint.health.state == "usable", each.checkpoint.health
    files = {file.path: file for file in found.ranks[0].checkpoint.files}
    file = files[example.file]
    assert (file.format, file.faults) == (example.format, ())
    assert set(example.told) <= file.scalars.keys()
    if example.tensor is not None:
        name, shape = example.tensor
        assert {tensor.name: tensor.statistics.shape for tensor in file.tensors}[name] == shape


def test_ray_data_in_one_process(launch):
    """Ray's own workers are no ranks, and the shard is told in each report without being run for it."""
    script = EXAMPLES / "frameworks" / "ray_data_digits.py"
    job = launch("--no-torchrun", "--wait", "all", script, "--epochs", "2")
    session = job.session()
    line = line_of(script, "optimizer.step()")
    session.set_breakpoint(str(script), line)
    assert session.wait_for_stop(120) is not None, job.output
    frame = session.stack()[0]
    assert (frame.name, frame.line) == ("train_loop", line)
    assert session.evaluate("len(batch)", frame).value == "2"
    driver = psutil.Process(job.status()[0]["pid"])
    wait_for(lambda: any(map(is_of_ray, driver.children(recursive=True))), 60, "Ray's workers")
    assert list(job.status()) == [0]
    session.clear_breakpoints()
    session.disconnect()
    assert job.wait(120) == 0, job.output
    wait_for(lambda: not driver.is_running(), 30, "the rank's end")

    assert len(list(job.paths.directory.parent.iterdir())) == 1
    run = load_run(job.paths)
    assert [path.name for path in (job.paths.directory / "ranks").iterdir()] == ["0"]
    assert [rank.rank for rank in run.ranks] == [0]
    first, second = run.ranks[0].reports
    assert first.context["dataset_shards"] == second.context["dataset_shards"]
    (told,) = first.context["dataset_shards"].values()
    assert (list(first.context["dataset_shards"]), told["kind"], told["rows"]) == (["train"], "Dataset", 1797)
    assert (list(told["schema"]), told["schema"]["label"]) == (["image", "label"], "int64")
    assert "shape=(64,)" in told["schema"]["image"]
    assert 1797 * 64 * 4 <= told["bytes"] < 1797 * 64 * 5
    assert first.metrics["rows"] == 1797
    assert not job.paths.errors.exists()


def test_datasets_under_torchrun_are_refused_in_plain_words(launch):
    job = launch("--nproc-per-node", "2", "--wait", "all", TARGETS / "ray_data_torchrun.py")
    session, other = job.session(0), job.session(1)
    said: list[str] = []
    session.on_output = lambda category, text: said.append(text)
    for each in (session, other):
        assert each.wait_for_stop(120).text == "AssertionError"
    session.resume()  # alone, so that it is the first to end
    assert job.wait() == 1
    refusal = "AssertionError: Ray Data is not supported in local mode with multiple workers."
    remedy = "run one process (launch --no-torchrun SCRIPT) or real workers (num_workers of 1 or more, launch --ray"
    wait_for(lambda: session.ended, 30, "the session's end")
    assert refusal in job.output
    assert remedy in job.output.rstrip().splitlines()[-1]
    assert remedy in "".join(said)
    assert remedy in findings.examine(job.run).verdict.sentence
