"""One strict line a report, with context, call site and resources, and never an exception of ours."""

import dataclasses
import json
import math
import os
import shutil
import subprocess
import sys
import threading
import time
import warnings

import pytest
import torch
from ray.train.v2.api.context import LocalTrainContext

from raytrain_debug.run import layout, reader
from raytrain_debug.shim import callsite, usage
from raytrain_debug.shim.context import describe_context
from raytrain_debug.shim.guard import Guard
from raytrain_debug.shim.recorder import Recorder
from tests.unit.test_snapshot import Checkpoint

CONTEXT = LocalTrainContext("exp", world_size=4, world_rank=3, local_rank=1, local_world_size=2, node_rank=1)


@pytest.fixture
def run(tmp_path):
    return layout.create_run(tmp_path / layout.ROOT_NAME)


def recorder(run, attempt=0, keep=2):
    return Recorder(run.rank(0), Guard(run.errors), attempt, keep)


def record(to, metrics, checkpoint=None, context=CONTEXT):
    to.record(metrics, checkpoint, context, sys._getframe())


def lines(run):
    """The records as a strict JSON parser sees them."""

    def refuse(constant):
        raise AssertionError(constant)

    return [json.loads(line, parse_constant=refuse) for line in run.rank(0).reports.read_text().splitlines()]


def test_datasets_are_told_beside_the_context_and_one_that_is_none_disturbs_nothing(run):
    one = recorder(run)
    one.record({"loss": 0.5}, None, CONTEXT, sys._getframe(), {"train": object()})
    one.record({"loss": 0.25}, None, CONTEXT, sys._getframe(), {})
    first, second = lines(run)
    assert first["context"].pop("dataset_shards") == {"train": {"kind": "object", "$error": "AttributeError"}}
    assert first["context"] == second["context"]
    assert not run.errors.exists()


def test_a_line_has_all_that_the_contract_names(run, tmp_path):
    (tmp_path / "ckpt").mkdir()
    (tmp_path / "ckpt" / "model.pt").write_bytes(b"12345")
    before = time.time()
    one = recorder(run, attempt=2)
    record(one, {"loss": 0.5}, Checkpoint(str(tmp_path / "ckpt")))
    record(one, {"loss": 0.25})
    first, second = lines(run)
    assert list(first) == [
        *("schema", "index", "time", "interval", "attempt", "context", "metrics", "checkpoint", "where", "process")
    ]
    assert (first["schema"], first["index"], first["attempt"], first["interval"]) == (1, 0, 2, None)
    assert before <= first["time"] <= second["time"] <= time.time()
    assert second["interval"] == pytest.approx(second["time"] - first["time"])
    assert first["metrics"] == {"loss": 0.5}
    assert first["checkpoint"] == {
        "source": str(tmp_path / "ckpt"),
        "snapshot": "checkpoints/0",
        "files": [{"path": "model.pt", "size": 5}],
        "kept": "copy",
        "skipped": [],
    }
    assert second["checkpoint"] is None
    assert (first["where"]["file"], first["where"]["function"]) == (__file__, "record")
    assert first["process"]["rss"] > 10_000_000
    assert first["process"]["cpu_time"] > 0
    assert first["process"]["gpu_memory"] is None
    loaded = reader.load_rank(run.rank(0), 0)
    assert loaded.last_report.metrics == {"loss": 0.25}
    assert loaded.snapshot == run.rank(0).checkpoints / "0"


def test_the_context_is_every_getter_and_a_raising_one_is_its_errors_type(run):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        record(recorder(run), {})
    assert not caught
    context = lines(run)[0]["context"]
    expected = {"experiment_name": "exp", "world_size": 4, "world_rank": 3, "local_rank": 1, "local_world_size": 2}
    assert {key: context[key] for key in expected} == expected
    assert context["node_rank"] == 1
    assert context["trial_name"] == context["metadata"] == {"$error": "DeprecationWarning"}
    assert context["storage"] == {"$error": "NotImplementedError"}
    assert set(context) == {name[4:] for name in dir(CONTEXT) if name.startswith("get_")}


def test_getters_that_need_arguments_or_return_odd_things_do_no_harm():
    class Odd:
        get_attribute = 3

        def get_with(self, argument):
            return argument

        def get_self(self):
            return self

        def get_nan(self):
            return math.nan

    described = describe_context(Odd())
    assert described["with"] == {"$error": "TypeError"}
    assert described["self"]["$type"].endswith("Odd")
    assert described["nan"] == {"$float": "nan"}
    assert "attribute" not in described


def test_each_context_object_is_asked_once(run):
    calls = []

    class Counting:
        def get_world_size(self):
            calls.append(1)
            return len(calls)

    one = recorder(run)
    first, second = Counting(), Counting()
    for context in (first, first, second):
        record(one, {}, context=context)
    assert [line["context"]["world_size"] for line in lines(run)] == [1, 1, 2]


def test_metrics_of_every_kind_survive_as_values(run):
    record(recorder(run), {"nan": math.nan, "t": torch.tensor(2.0), "big": 2**60 + 1, "w": torch.zeros(2), 3: "three"})
    metrics = reader.load_rank(run.rank(0), 0).last_report.metrics
    assert math.isnan(metrics["nan"])
    assert (metrics["t"], metrics["big"], metrics["3"]) == (2.0, 2**60 + 1, "three")
    assert metrics["w"]["shape"] == [2]


def test_metrics_that_were_tensors_are_named_where_there_are_any(run):
    one = recorder(run)
    scalar = torch.tensor(2.0)
    parameter = torch.nn.Parameter(torch.zeros(2))
    record(one, {"loss": scalar, "lr": 0.1, "w": parameter, 3: {"mean": [scalar]}, "big": [0] * 20_000, "s": {1: "x"}})
    record(one, {"loss": scalar.item(), "array": scalar.numpy()})
    record(one, dict.fromkeys(range(20_000), scalar))
    first, second, described = lines(run)
    assert first["tensors"] == ["loss", "w", "3"]
    assert first["metrics"]["loss"] == 2.0
    assert "tensors" not in second
    assert "tensors" not in described
    assert reader.load_rank(run.rank(0), 0).reports[0].tensors == ("loss", "w", "3")
    assert not run.errors.exists()


def test_a_report_of_a_script_without_torch_names_no_tensors(run):
    code = (
        "import sys\nfrom pathlib import Path\nfrom raytrain_debug.run import layout\n"
        "from raytrain_debug.shim.guard import Guard\nfrom raytrain_debug.shim.recorder import Recorder\n"
        "run = layout.RunPaths(Path(sys.argv[1]))\n"
        "Recorder(run.rank(0), Guard(run.errors), 0).record({'loss': 0.5}, None, None, sys._getframe())\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code, str(run.directory)], check=True, timeout=60)
    assert "tensors" not in lines(run)[0]


@pytest.mark.parametrize("metrics", [None, 3, [1, 2], "text"])
def test_metrics_that_are_no_dict_are_recorded_all_the_same(run, metrics):
    record(recorder(run), metrics)
    assert reader.load_rank(run.rank(0), 0).last_report.metrics == {"$metrics": metrics}


def test_the_index_counts_on_over_attempts_after_a_torn_line(run):
    record(recorder(run), {})
    record(recorder(run, attempt=1), {})
    with open(run.rank(0).reports, "a") as file:
        file.write('{"schema":1,"index":2')
    record(recorder(run, attempt=2), {})
    loaded = reader.load_rank(run.rank(0), 0)
    assert [(report.index, report.attempt) for report in loaded.reports] == [(0, 0), (1, 1), (2, 2)]
    assert loaded.damaged == 1


def test_snapshots_of_an_earlier_attempt_count_among_the_last_k(run, tmp_path):
    (tmp_path / "ckpt").mkdir()
    (tmp_path / "ckpt" / "model.pt").write_bytes(b"1")
    for attempt in range(3):
        one = recorder(run, attempt)
        for _ in range(2):
            record(one, {}, Checkpoint(str(tmp_path / "ckpt")))
            record(one, {})
    assert sorted(os.listdir(run.rank(0).checkpoints)) == ["10", "8"]


def test_where_is_the_users_own_frame_behind_libraries(run, tmp_path):
    """A callback of an installed framework reports: the user's line is the one that called the framework."""
    import sysconfig

    source = "def fit(callback):\n    callback()\n"
    namespace = {"__name__": "lightning.pytorch.trainer"}
    exec(compile(source, os.path.join(sysconfig.get_path("purelib"), "lightning", "trainer.py"), "exec"), namespace)
    ray_source = "def report(recorder, context, getframe):\n    recorder.record({}, None, context, getframe())\n"
    ray_namespace = {"__name__": "ray.train.lightning"}
    exec(compile(ray_source, "/anywhere/ray/train/lightning.py", "exec"), ray_namespace)
    one = recorder(run)
    module = {"__name__": "raytrain_debug.pretend"}  # as our hook, between Ray and the recorder
    exec("import sys\ndef getframe(): return sys._getframe()", module)

    def user_code():
        namespace["fit"](lambda: None)
        namespace["fit"](from_ray)

    from_ray = eval(
        "lambda: report(one, context, getframe)", {**ray_namespace, "one": one, "context": CONTEXT, **module}
    )
    user_code()
    where = lines(run)[0]["where"]
    assert (where["file"], where["function"]) == (__file__, "user_code")


def test_an_installed_training_script_is_user_code_when_there_is_no_other(tmp_path):
    import sysconfig

    path = os.path.join(sysconfig.get_path("purelib"), "their_trainer", "main.py")
    namespace = {"__name__": "their_trainer.main", "sys": sys}
    exec(compile("def train():\n    return sys._getframe()", path, "exec"), namespace)
    frame = namespace["train"]()
    assert callsite._classify(frame.f_code, "their_trainer.main") == 2
    assert callsite._classify(compile("", "/home/me/train.py", "exec"), "__main__") == 3
    assert callsite._classify(compile("", threading.__file__, "exec"), "threading") == 1
    assert callsite.user_call(None) is None


def test_reports_from_many_threads_are_whole_and_numbered(run):
    one = recorder(run)
    threads = [threading.Thread(target=lambda: [record(one, {"x": "y" * 500}) for _ in range(50)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [line["index"] for line in lines(run)] == list(range(200))


def test_a_metric_whose_repr_reports_does_not_lock_up(run):
    one = recorder(run)

    class Reporting:
        def __repr__(self):
            record(one, {"inner": 1})
            return "reported"

    record(one, {"outer": Reporting()})
    assert sorted(line["index"] for line in lines(run)) == [0, 1]


def test_a_deleted_run_directory_is_said_once_and_not_made_again(run, capsys):
    one = recorder(run)
    record(one, {})
    shutil.rmtree(run.directory)
    for _ in range(3):
        record(one, {})
    assert capsys.readouterr().err.count("training goes on") == 1
    assert not run.directory.exists()


def test_a_full_disk_is_said_once_and_later_reports_are_recorded_again(run):
    code = f"""
import resource, signal
from tests.unit.test_recorder import *
run = layout.RunPaths(__import__("pathlib").Path({str(run.directory)!r}))
one = recorder(run)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
record(one, {{"x": "y" * 100}})
resource.setrlimit(resource.RLIMIT_FSIZE, (1500, resource.RLIM_INFINITY))
for _ in range(4):
    record(one, {{"x": "y" * 5000}})
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
record(one, {{"last": 1}})
"""
    root = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
    child = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True)
    assert child.returncode == 0, child.stderr
    assert child.stderr.count("training goes on") == 1
    loaded = reader.load_rank(run.rank(0), 0)
    assert [report.index for report in loaded.reports] == [0, 5]
    assert loaded.last_report.metrics == {"last": 1}


def test_a_failed_snapshot_still_gives_a_record(run, tmp_path):
    record(recorder(run), {"loss": 1.0}, Checkpoint(str(tmp_path / "gone")))
    (line,) = lines(run)
    assert line["checkpoint"]["kept"] == "failed: No such file or directory"
    assert line["metrics"] == {"loss": 1.0}


def test_an_interrupt_of_the_user_passes_through(run):
    class Interrupting:
        def get_world_size(self):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        record(recorder(run), {}, context=Interrupting())


def test_usage_needs_neither_torch_nor_ray_nor_psutil():
    code = "import sys; from raytrain_debug.shim import recorder, ray_hooks, usage; usage.sample(); \
print(sorted({'torch', 'ray', 'psutil', 'debugpy', 'numpy', 'pyarrow'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"


def test_usage_is_what_the_system_says():
    import psutil

    sample = dataclasses.asdict(usage.sample())
    assert sample["rss"] == pytest.approx(psutil.Process().memory_info().rss, rel=0.2)
    times = psutil.Process().cpu_times()
    assert sample["cpu_time"] == pytest.approx(times.user + times.system, abs=0.5)


def test_gpu_memory_is_read_only_when_the_script_has_used_cuda(monkeypatch):
    statistics = {"allocated_bytes": {"all": {"current": 12345}}}
    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", lambda: statistics)
    assert usage.sample().gpu_memory is None
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert usage.sample().gpu_memory == 12345


def test_a_guard_writes_the_traceback_and_says_each_place_once(run, capsys):
    guard = Guard(run.errors)
    for _ in range(30):
        with guard("doing this"):
            raise ValueError("odd\nvalue")
        with guard("doing that"):
            pass
    log = run.errors.read_text()
    assert "Traceback" in log
    assert "test_a_guard_writes" in log
    assert log.count("Traceback") == 20
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "doing this failed (ValueError: odd value)" in error
    assert str(run.errors) in error


def test_a_guarded_function_returns_none_when_it_fails(run):
    guard = Guard(run.errors)
    assert guard.wrap("dividing")(lambda x: 1 / x)(2) == 0.5
    assert guard.wrap("dividing")(lambda x: 1 / x)(0) is None


def test_a_guard_lets_the_users_own_exceptions_pass(run):
    for error in (KeyboardInterrupt, SystemExit):
        with pytest.raises(error), Guard(run.errors)("anything"):
            raise error


def test_a_guard_survives_a_missing_directory_and_a_closed_stderr(tmp_path, monkeypatch):
    class Closed:
        def write(self, text):
            raise ValueError("closed")

    for stderr in (Closed(), None):
        monkeypatch.setattr(sys, "stderr", stderr)
        with Guard(tmp_path / "nowhere" / "errors.log")("anything"):
            raise RuntimeError
