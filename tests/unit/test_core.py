"""The core of a process, as it is written and read back: exceptions, frames, threads, tensors, sources."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy
import pytest
import torch
from safetensors import safe_open

from raytrain_debug.run import layout
from raytrain_debug.run.reader import load_rank, read_record
from raytrain_debug.run.records import CoreRecord, ThreadRecord
from raytrain_debug.shim import core


@pytest.fixture
def paths(tmp_path: Path) -> layout.RankPaths:
    rank = layout.RankPaths(tmp_path / "0")
    layout.make_private(rank.directory)
    return rank


def core_of(paths: layout.RankPaths, function: Callable[[], object], attempt: int = 0, budget: int = 1 << 20):
    """The core that an exception of `function` leaves."""
    try:
        function()
    except BaseException as error:
        whose = core.Whose(paths, attempt, started=time.time() - 1e6, budget=budget)
        core.of_exception(whose, error, threading.current_thread())
    return read(paths)


def read(paths: layout.RankPaths) -> CoreRecord:
    record = read_record(paths.core, CoreRecord)
    assert record is not None
    return record


def frame_of(record: CoreRecord | ThreadRecord, function: str):
    thread = record.threads[0] if isinstance(record, CoreRecord) else record
    return next(frame for frame in thread.frames if frame.function == function)


def test_frames_have_their_place_their_source_and_their_locals(paths):
    def step(rate):
        batch = {"x": torch.ones(3)}
        raise ValueError(f"bad {len(batch)}")  # the line

    def loop():
        rate = 0.5
        step(rate)

    record = core_of(paths, loop)
    assert record.reason == "exception"
    assert record.exception.type == "ValueError"
    assert record.exception.message == "bad 1"
    assert record.exception.traceback[-1] == "ValueError: bad 1"
    functions = [frame.function for frame in record.threads[0].frames]
    assert functions[-2:] == ["loop", "step"]
    frame = record.threads[0].frames[-1]
    assert (frame.file, frame.line) == (__file__, step.__code__.co_firstlineno + 2)
    assert frame.source[frame.line - frame.first_line].strip().startswith("raise ValueError")
    assert frame.origin == "user"
    assert frame.locals["rate"].value == 0.5
    assert frame.locals["batch"].items["'x'"].tensor.shape == (3,)
    where = record.exception.where
    assert (where.file, where.line, where.function) == (frame.file, frame.line, "step")


def test_the_chain_has_its_own_frames_and_none_that_python_would_not_print(paths):
    def inner():
        deep = 1
        raise KeyError(deep)

    def from_it():
        try:
            inner()
        except KeyError as error:
            raise ValueError("outer") from error

    def while_handling():
        try:
            inner()
        except KeyError:
            raise ValueError("outer")  # noqa: B904

    def from_none():
        try:
            inner()
        except KeyError:
            raise ValueError("outer") from None

    caused = core_of(paths, from_it).exception
    assert (caused.cause.type, caused.context) == ("KeyError", None)
    assert caused.cause.frames[-1].function == "inner"
    assert caused.cause.frames[-1].locals["deep"].value == 1
    handled = core_of(paths, while_handling).exception
    assert (handled.cause, handled.context.type) == (None, "KeyError")
    hidden = core_of(paths, from_none).exception
    assert (hidden.cause, hidden.context) == (None, None)


def test_a_cycle_of_exceptions_ends(paths):
    def cycle():
        first, second = ValueError("first"), KeyError("second")
        first.__cause__, second.__cause__ = second, first
        raise first

    error = core_of(paths, cycle).exception
    assert error.cause.type == "KeyError"
    assert error.cause.cause is None


@pytest.mark.skipif(sys.version_info < (3, 11), reason="groups and notes came with Python 3.11")
def test_groups_and_notes_are_kept(paths):
    def fail():
        error = ExceptionGroup("several", [ValueError("a"), ExceptionGroup("inner", [OSError(2, "no", "f.txt")])])  # noqa: F821
        error.add_note("seen in epoch 3")
        raise error

    error = core_of(paths, fail).exception
    assert error.notes == ("seen in epoch 3",)
    assert [member.type for member in error.members] == ["ValueError", "ExceptionGroup"]
    assert error.members[1].members[0].attributes["filename"].value == "f.txt"


def test_fields_of_an_exception_are_kept(paths):
    class LossError(Exception):
        def __init__(self, step: int) -> None:
            super().__init__("loss", step)
            self.step = step

    def fail():
        raise LossError(7)

    attributes = core_of(paths, fail).exception.attributes
    assert attributes["step"].value == 7
    assert attributes["args"].text == "('loss', 7)"


def test_a_script_that_does_not_compile_is_placed_by_its_syntax_error(paths):
    record = core_of(paths, lambda: compile("x = 1\ny = (\n", "/home/me/train.py", "exec"))
    error = record.exception
    assert error.type == "SyntaxError"
    assert error.attributes["lineno"].value == 2
    assert error.attributes["filename"].value == "/home/me/train.py"


def test_a_message_that_never_comes_does_not_keep_the_core_back(paths):
    release: list[bool] = []

    class Mute(Exception):
        def __str__(self) -> str:
            while not release:
                time.sleep(0.001)
            return ""

    def fail():
        here = 1
        raise Mute(here)

    try:
        record = core_of(paths, fail)
    finally:
        release.append(True)
    assert record.seconds < 5
    assert record.exception.type.endswith("Mute")
    assert frame_of(record, "fail").locals["here"].value == 1


def test_a_recursion_without_end_keeps_both_ends_of_its_stack(paths):
    def recurse(depth):
        return recurse(depth + 1)

    record = core_of(paths, lambda: recurse(0))
    depths = [frame.locals["depth"].value for frame in record.threads[0].frames if frame.function == "recurse"]
    assert depths[0] == 0
    assert depths[-1] > 500
    assert len(depths) <= 200
    assert any("left out" in note for note in record.notes)


def test_other_threads_are_there_with_their_locals_and_what_they_wait_in(paths):
    ready, release = threading.Event(), threading.Event()

    def helper(secret):
        ready.set()
        release.wait()

    thread = threading.Thread(target=helper, args=(42,), name="my helper")
    thread.start()
    ready.wait()
    try:
        record = core_of(paths, lambda: 1 / 0)
    finally:
        release.set()
        thread.join()
    mine = next(each for each in record.threads if each.name == "my helper")
    assert frame_of(mine, "helper").locals["secret"].value == 42
    assert (mine.is_main, mine.waiting_in) == (False, "lock")
    assert record.threads[0].is_main


def test_a_rank_that_is_ended_leaves_what_its_threads_do(paths):
    whose = core.Whose(paths, 0, time.time())
    asker = threading.Thread(target=core.of_threads, args=(whose,))
    marker = "the main thread stands here"
    asker.start()
    asker.join()
    record = read(paths)
    assert (record.reason, record.exception) == ("ended", None)
    own = frame_of(record, "test_a_rank_that_is_ended_leaves_what_its_threads_do")
    assert own.locals["marker"].value == marker
    assert own.origin == "user"


def kept(paths: layout.RankPaths) -> dict[str, torch.Tensor]:
    with safe_open(paths.core_tensors, "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def test_tensors_are_kept_as_they_were_and_named_in_the_locals(paths):
    def fail():
        strided = torch.arange(12.0).reshape(3, 4).t()[::2]
        half = torch.tensor([1.5, float("nan")], dtype=torch.bfloat16)
        eighth = torch.tensor([1.0, -2.0]).to(torch.float8_e5m2)
        flags = torch.tensor([True, False])
        empty = torch.empty(0, 3)
        single = torch.tensor(3.0, requires_grad=True)
        array = numpy.arange(6, dtype=numpy.int16).reshape(2, 3).T
        batch = {"x": [torch.ones(2)]}
        raise ValueError(strided, half, eighth, flags, empty, single, array, batch)

    record = core_of(paths, fail)
    found, names = kept(paths), frame_of(record, "fail").locals
    assert record.tensors == "core/tensors.safetensors"

    def tensor(name: str) -> torch.Tensor:
        return found[names[name].tensor.kept]

    assert torch.equal(tensor("strided"), torch.arange(12.0).reshape(3, 4).t()[::2])
    assert tensor("half").dtype == torch.bfloat16
    assert torch.isnan(tensor("half")[1])
    assert tensor("eighth").to(torch.float32).tolist() == [1.0, -2.0]
    assert tensor("flags").tolist() == [True, False]
    assert tensor("empty").shape == (0, 3)
    assert tensor("single").item() == 3.0
    assert tensor("array").tolist() == [[0, 3], [1, 4], [2, 5]]
    assert found[names["batch"].items["'x'"].items["0"].tensor.kept].tolist() == [1.0, 1.0]


def test_what_is_shared_is_kept_once_and_what_safetensors_cannot_hold_is_described(paths):
    def fail():
        weight = torch.ones(1000)
        same, tied = weight, weight.detach()
        sparse = torch.eye(3).to_sparse()
        complicated = torch.ones(2, dtype=torch.complex64)
        raise ValueError(same, tied, sparse, complicated)

    names = frame_of(core_of(paths, fail), "fail").locals
    assert names["weight"].tensor.kept == names["same"].tensor.kept == names["tied"].tensor.kept
    assert names["sparse"].tensor.kept is None
    assert names["sparse"].tensor.nan == 0
    assert names["complicated"].tensor.kept is None
    assert len(kept(paths)) == 1


def test_the_budget_goes_to_the_innermost_frame_and_to_variables_before_models(paths):
    def step(model, loss):
        raise ValueError(loss)

    def loop():
        batch = torch.ones(20_000)
        model = torch.nn.Linear(100, 100)
        step(model, torch.ones(50_000))
        return batch

    record = core_of(paths, loop, budget=300_000)
    found = kept(paths)
    assert frame_of(record, "step").locals["loss"].tensor.kept in found
    assert frame_of(record, "loop").locals["batch"].tensor.kept in found
    model = frame_of(record, "step").locals["model"]
    assert model.items["weight"].tensor.kept is None
    assert model.items["bias"].tensor.kept in found
    assert sum(tensor.numel() * tensor.element_size() for tensor in found.values()) <= 300_000
    assert any("--core-budget" in note for note in record.notes)


def test_a_sharded_model_is_kept_by_this_ranks_part_without_asking_the_others(paths):
    class Sharded(torch.nn.Linear):
        def state_dict(self, *args, **kwargs):
            raise AssertionError("this would wait for the other ranks")

    class Waits(torch.Tensor):
        @classmethod
        def __torch_dispatch__(cls, function, kinds, args=(), kwargs=None):
            raise AssertionError("this would wait for a collective")

    def fail():
        model = Sharded(3, 2)
        pending = torch.Tensor._make_wrapper_subclass(Waits, (2,))
        raise ValueError(len(model.bias), type(pending))

    names = frame_of(core_of(paths, fail), "fail").locals
    assert names["model"].items["weight"].tensor.kept in kept(paths)
    assert names["pending"].tensor.kept is None
    assert names["pending"].tensor.shape == (2,)


def test_no_budget_keeps_no_tensor(paths):
    def fail():
        loss = torch.ones(2)
        raise ValueError(loss)

    record = core_of(paths, fail, budget=0)
    assert record.tensors is None
    assert not paths.core_tensors.exists()


def test_source_files_of_the_user_are_kept_whole(paths):
    record = core_of(paths, lambda: 1 / 0)
    source = next(each for each in record.sources if each.file == __file__)
    assert (paths.directory / source.path).read_text() == Path(__file__).read_text()
    assert source.changed  # the process pretends to have started long ago
    libraries = [each.file for each in record.sources if "site-packages" in each.file]
    # Of pytest itself: threads in which only its plugins run.
    assert [file for file in libraries if "execnet" not in file and "pytest_rerunfailures" not in file] == []


def test_a_new_attempt_does_not_erase_the_core_of_the_one_before(paths):
    def fail(number):
        tensor = torch.ones(number)
        raise ValueError(number, tensor)

    core_of(paths, lambda: fail(1), attempt=0)
    core_of(paths, lambda: 1 / 0, attempt=1)
    rank = load_rank(paths, 0)
    assert rank.core.attempt == 1
    assert rank.core_of(0).exception.message.startswith("(1, tensor")
    assert rank.core_of(1).exception.type == "ZeroDivisionError"
    assert rank.core_of(2) is None
    assert not paths.core_tensors.exists()


def test_every_file_is_for_its_owner_alone(paths):
    def fail():
        loss = torch.ones(2)
        raise ValueError(loss)

    core_of(paths, fail)
    for folder, _, files in os.walk(paths.directory):
        assert os.stat(folder).st_mode & 0o777 == 0o700
        for name in files:
            assert os.stat(os.path.join(folder, name)).st_mode & 0o777 == 0o600


def test_a_hostile_frame_costs_at_most_five_seconds(paths):
    class Slow:
        def __repr__(self) -> str:
            time.sleep(0.2)
            return "slow"

    kinds = [type(f"Slow{number}", (Slow,), {}) for number in range(50)]

    def fail():
        many = [kind() for kind in kinds for _ in range(3)]
        huge = {outer: {inner: list(range(100)) for inner in range(100)} for outer in range(100)}
        raise ValueError(len(many), len(huge))

    record = core_of(paths, fail)
    assert record.seconds < 15, "5, and what a busy machine adds; without a limit it is 30"
    assert any("took too long" in note for note in record.notes)
    assert frame_of(record, "fail").locals["many"].length == 150
