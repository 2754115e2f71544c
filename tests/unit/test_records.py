"""Records survive a round trip through JSON, and tolerate what newer or damaged files hold."""

import pytest

from raytrain_debug.run import codec
from raytrain_debug.run.records import (
    CallSite,
    CheckpointRecord,
    CoreRecord,
    Described,
    ExceptionRecord,
    ExitRecord,
    FileEntry,
    FrameRecord,
    LauncherRecord,
    ProcessRecord,
    ProcessUsage,
    ReportRecord,
    RunRecord,
    SourceRecord,
    TensorDescription,
    ThreadRecord,
    from_dict,
    to_dict,
    to_sparse_dict,
)

REPORT = ReportRecord(
    index=3,
    time=12.5,
    attempt=1,
    context={"world_size": 2, "metadata": {"$error": "DeprecationWarning"}},
    metrics={"loss": float("inf"), "nested": {"a": [1, 2]}},
    checkpoint=CheckpointRecord("/tmp/x", "checkpoints/3", (FileEntry("model.pt", 10),), "copy", ("pipe: no file",)),
    where=CallSite("/train.py", 7, "loop"),
    process=ProcessUsage(rss=1, cpu_time=2.0, gpu_memory=None),
    interval=0.5,
)
TENSOR = TensorDescription((2, 3), "float32", min=0.5, max=1, nan=1, first_bad=(0, 2), kept="t0")
FRAME = FrameRecord(
    "/train.py",
    7,
    "loop",
    first_line=5,
    source=("a", "", "b"),
    locals={
        "x": Described("torch.Tensor", "tensor", "tensor", tensor=TENSOR),
        "config": Described(
            "dict", "mapping", "{'lr': nan}", length=1, items={"'lr'": Described("float", "number", "nan")}
        ),
        "n": Described("int", "number", "0", value=0),
    },
)
CORE = CoreRecord(
    1.0,
    0,
    9,
    ExceptionRecord("A", "", None, cause=ExceptionRecord("B", "b", None, frames=(FRAME,)), notes=("n",)),
    threads=(ThreadRecord("MainThread", True, (FRAME,), "all_reduce"),),
    tensors="core/tensors.safetensors",
    sources=(SourceRecord("/train.py", "core/sources/0.py", True),),
)
RECORDS = [
    REPORT,
    CORE,
    ReportRecord(0, 1.0, 0, {}, {}, None, None),
    ProcessRecord(0, 0, 2, 99, 1.5, "host", 0, "/tmp/s.sock", "train.py"),
    CoreRecord(1.0, 0, 9, ExceptionRecord("ValueError", "bad", CallSite("a.py", 1, "f"), ("line",))),
    RunRecord(
        id="20260101-000000-aaaa",
        argv=("launch", "train.py"),
        cwd="/",
        mode="torchrun",
        started=1.0,
        world_size=2,
        launcher=LauncherRecord(1, 1.0, "host", "/tmp/l.sock", {"0": 5678}),
        exits=(ExitRecord(0, 0, 9, 2.0, 0, None, "SIGKILL"),),
    ),
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_a_record_is_equal_after_a_round_trip_through_its_file(record):
    assert from_dict(type(record), codec.loads(codec.dumps(to_dict(record)))) == record


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_a_record_is_equal_after_a_round_trip_without_its_defaults(record):
    assert from_dict(type(record), codec.loads(codec.dumps(to_sparse_dict(record)))) == record


def test_a_sparse_record_leaves_out_only_defaults():
    sparse = to_sparse_dict(CORE)
    assert sparse["schema"] == 1
    assert sparse["threads"][0]["frames"][0]["locals"]["n"] == {
        "type": "int",
        "kind": "number",
        "text": "0",
        "value": 0,
    }
    assert "reason" not in sparse


def test_a_core_of_the_first_version_reads_as_one_without_threads():
    old = {"time": 1.0, "attempt": 0, "pid": 9, "schema": 1, "exception": None}
    core = from_dict(CoreRecord, old)
    assert (core.reason, core.threads, core.thread, core.waiting_in) == ("exception", (), None, None)


def test_keys_of_a_newer_version_are_ignored_at_every_level():
    data = to_dict(REPORT)
    data["new"] = 1
    data["checkpoint"]["new"] = 1
    data["checkpoint"]["files"][0]["new"] = 1
    assert from_dict(ReportRecord, codec.loads(codec.dumps(data))) == REPORT


def test_keys_that_an_older_version_did_not_write_get_their_default():
    data = {"index": 0, "time": 1, "attempt": 0, "context": {}, "metrics": {}, "checkpoint": None, "where": None}
    assert from_dict(ReportRecord, data).process == ProcessUsage()


@pytest.mark.parametrize(
    "change",
    [{"index": "0"}, {"index": None}, {"index": True}, {"metrics": []}, {"checkpoint": 1}, {"where": {"file": "a"}}],
)
def test_a_value_of_another_shape_is_refused(change):
    with pytest.raises((TypeError, KeyError, ValueError)):
        from_dict(ReportRecord, {**to_dict(REPORT), **change})


def test_what_is_no_object_or_lacks_a_key_is_refused():
    for data in ([], None, {"index": 0}):
        with pytest.raises((TypeError, KeyError, ValueError)):
            from_dict(ReportRecord, data)
