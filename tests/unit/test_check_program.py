"""How `check` follows a script: names, modules beside it, training functions and what runs in workers."""

import pytest

from raytrain_debug.check.examine import examine
from raytrain_debug.check.program import Program
from raytrain_debug.errors import UnreadableScript, UsageError

BAD = "    if train.get_context().get_world_rank() == 0:\n        train.report({'a': 1})\n"


def program(directory, **files):
    for name, text in files.items():
        path = directory.joinpath(*name.split("__")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Program(directory / "train.py")


def training(program):
    return [getattr(function, "name", "lambda") for _, function in program.training_functions]


def in_workers(program):
    return {getattr(definition, "name", "lambda") for _, definition in program.worker_code}


TRAINER = "from ray.train.torch import TorchTrainer\n"


@pytest.mark.parametrize(
    ("code", "function"),
    [
        ("def loop(): ...\nTorchTrainer(loop)\n", "loop"),
        ("def loop(): ...\nTorchTrainer(train_loop_per_worker=loop)\n", "loop"),
        ("import ray.train.torch\ndef loop(): ...\nray.train.torch.TorchTrainer(loop)\n", "loop"),
        ("from ray import train\ndef loop(): ...\ntrain.torch.TorchTrainer(loop)\n", "loop"),
        ("def loop(): ...\nchosen = loop\nTorchTrainer(chosen)\n", "loop"),
        ("from functools import partial\ndef loop(a): ...\nTorchTrainer(partial(loop, 1))\n", "loop"),
        ("def make():\n    def loop(): ...\n    return loop\nTorchTrainer(make())\n", "loop"),
        ("TorchTrainer(lambda: 1)\n", "lambda"),
        ("class Job:\n    def loop(self): ...\n    def fit(self):\n        TorchTrainer(self.loop)\n", "loop"),
        ("def main():\n    from ray.train.torch import TorchTrainer as T\n    def loop(): ...\n    T(loop)\n", "loop"),
        ("import ray.train\ndef loop():\n    ray.train.report({})\n", "loop"),
    ],
)
def test_the_training_function_is_found(tmp_path, code, function):
    assert training(program(tmp_path, train=TRAINER + code)) == [function]


def test_a_function_is_the_one_that_stood_there_when_it_was_named(tmp_path):
    code = "def loop():\n    first()\nTorchTrainer(loop)\ndef loop():\n    second()\nTorchTrainer(loop)\n"
    defined = "def first(): ...\ndef second(): ...\n"
    assert in_workers(program(tmp_path, train=TRAINER + defined + code)) == {"loop", "first", "second"}
    only = program(tmp_path, train=TRAINER + defined + code.rpartition("TorchTrainer")[0])
    assert in_workers(only) == {"loop", "first"}


def test_code_of_workers_is_followed_into_modules_beside_the_script(tmp_path):
    found = program(
        tmp_path,
        train=TRAINER + "import pkg.model\nfrom steps import *\ndef loop():\n    pkg.model.build()\n    step()\n"
        "def driver(): ...\nTorchTrainer(loop)\ndriver()\n",
        pkg____init__="",
        pkg__model="from .parts import Net as Part\nfrom ..nothing import x\ndef build():\n    return Part()\n",
        pkg__parts="class Net:\n    def forward(self): ...\n",
        steps="def step():\n    deeper()\ndef deeper(): ...\ndef unused(): ...\n",
    )
    assert in_workers(found) == {"loop", "build", "Net", "step", "deeper"}


def test_modules_that_import_each_other_end(tmp_path):
    found = program(
        tmp_path, train=TRAINER + "from a import f\nTorchTrainer(f)\n", a="from b import f\n", b="from a import f\n"
    )
    assert found.training_functions == []


@pytest.mark.parametrize(
    "text",
    [
        "from ray import train\n" + "def loop():\n" + BAD,
        "import ray.train as train\n" + "def loop():\n" + BAD,
        "def loop():\n    from ray import train\n" + BAD,
        "import ray\ntrain = ray.train\ndef loop():\n" + BAD,
    ],
)
def test_names_are_followed_to_where_they_are_imported(tmp_path, text):
    (tmp_path / "train.py").write_text(text)
    assert [each.rule for each in examine(tmp_path / "train.py").findings] == ["report-under-rank"]


@pytest.mark.parametrize(
    "text",
    [
        "import mine as train\ndef loop():\n" + BAD,
        "from ray import train\ndef loop(train):\n" + BAD,
        "from ray import tune as train\ndef loop():\n" + BAD,
    ],
)
def test_other_things_of_the_same_name_are_left_alone(tmp_path, text):
    (tmp_path / "train.py").write_text(text)
    assert examine(tmp_path / "train.py").findings == ()


def test_a_finding_in_a_module_beside_the_script_names_that(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    program(tmp_path, train="import helper\n", helper="from ray import train\ntrain.world_rank()\n")
    (finding,) = examine(tmp_path / "train.py").findings
    assert (finding.file, finding.line) == ("helper.py", 2)


def test_a_module_that_is_no_python_is_told_and_the_rest_looked_at(tmp_path):
    program(tmp_path, train="import broken\nfrom ray import train\ntrain.world_rank()\n", broken="def (:\n")
    done = examine(tmp_path / "train.py")
    assert [each.line for each in done.findings] == [3]
    assert "broken.py, line 1" in done.unread[0]


@pytest.mark.parametrize("text", [b"def (:\n", b"a = '\xff'\n", b"\x00", b"x = " + b"(" * 500 + b")" * 500])
def test_a_script_that_is_no_python_is_told_in_words(tmp_path, text):
    (tmp_path / "train.py").write_bytes(text)
    with pytest.raises(UnreadableScript) as raised:
        examine(tmp_path / "train.py")
    assert raised.value.remedy


@pytest.mark.parametrize("name", ["nothing.py", "."])
def test_a_script_that_is_not_there_is_wrong_usage(tmp_path, name):
    with pytest.raises(UsageError):
        examine(tmp_path / name)


def test_the_script_is_not_run(tmp_path):
    (tmp_path / "train.py").write_text("raise SystemExit('run')\n")
    assert examine(tmp_path / "train.py").findings == ()


def test_scripts_of_any_shape_are_read_without_failing(tmp_path):
    odd = (
        "global x\nasync def f(a, /, b, *c, d=lambda: 1, **e):\n    async with a as (g, h): ...\n"
        "    async for i, (j, *k) in b: yield i\n    [m := 1, *(n for n in c)]\n    del a\n"
        "    try: ...\n    except* ValueError as error: ...\n"
        "match 1:\n    case {'a': [b, *c], **d} if b: ...\nclass A[T](object): x: int\ntype B = int\n"
    )
    import sys

    if sys.version_info < (3, 12):
        odd = odd.replace("class A[T](object)", "class A(object)").replace("type B = int\n", "")
    if sys.version_info < (3, 11):
        odd = odd.replace("except*", "except")
    (tmp_path / "train.py").write_text(odd.replace("global x\n", ""))
    assert examine(tmp_path / "train.py").findings == ()
