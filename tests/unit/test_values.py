"""Values of all ranks: described within bounds where they are, grouped where they meet, and shown."""

import contextlib
import gc
import io
import json
import math
import sys
import threading
import time
import weakref

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from raytrain_debug.across.values import collect, summarise, to_json
from raytrain_debug.errors import ControlError
from raytrain_debug.postmortem.tensors import statistics
from raytrain_debug.render.values import plot, render
from raytrain_debug.run import codec
from raytrain_debug.shim import elements, evaluate, tensors
from raytrain_debug.shim.describe import describe
from tests.conftest import wait_for

WHERE = {"file": "/job/train.py", "line": 88, "function": "step"}


def answer(value: object, state: str = "running", line: int = 88) -> dict[str, object]:
    """An answer of a rank as it comes off the wire."""
    described = codec.loads(codec.dumps(describe(value)))
    return {"value": described, "state": state, "where": {**WHERE, "line": line}}


def shown(*parts: object, width: int = 100) -> str:
    out = io.StringIO()
    console = Console(file=out, width=width, highlight=False)
    for part in parts:
        console.print(part, markup=False)
    return "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())


# Grouping.


def test_equal_values_are_one_group_and_the_odd_one_comes_first():
    values = collect("x", {0: answer(0.25), 1: answer(math.nan), 2: answer(0.25), 3: answer(0.25)})
    assert [group.ranks for group in values.groups] == [(1,), (0, 2, 3)]


def test_nan_equals_nan_but_true_is_not_one():
    values = collect("x", {0: answer(math.nan), 1: answer(math.nan), 2: answer(True), 3: answer(1), 4: answer(1.0)})
    assert {group.ranks for group in values.groups} == {(0, 1), (2,), (3, 4)}


@given(
    st.lists(
        st.recursive(
            st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from([math.nan, math.inf, 0.5]) | st.text("ab"),
            lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text("ab", max_size=1), inner, max_size=2),
            max_leaves=4,
        ),
        max_size=8,
    )
)
def test_every_rank_is_in_exactly_one_group_and_small_groups_come_first(each):
    values = collect("x", {rank: answer(value) for rank, value in enumerate(each)})
    ranks = [rank for group in values.groups for rank in group.ranks]
    assert sorted(ranks) == list(range(len(each)))
    sizes = [len(group.ranks) for group in values.groups]
    assert sizes == sorted(sizes)
    for group in values.groups:
        texts = {json.dumps(describe(each[rank]), sort_keys=True).replace(".0", "") for rank in group.ranks}
        assert len(texts) == 1


def test_ranks_that_raise_or_are_silent_are_groups_of_their_own():
    raised = {"raised": {"type": "NameError", "message": "name 'x' is not defined"}, "state": "running", "where": WHERE}
    values = collect("x", {0: raised, 1: answer(1), 2: raised, 3: ControlError("no answer within 2 s")})
    assert [(group.ranks, group.error) for group in values.errors] == [
        ((3,), "no answer within 2 s"),
        ((0, 2), "NameError: name 'x' is not defined"),
    ]
    found = to_json(values)
    assert found["groups"] == [{"ranks": [1], "value": 1}]
    assert found["errors"][1] == {"ranks": [0, 2], "error": "NameError: name 'x' is not defined"}


def test_it_says_which_ranks_stood_still():
    values = collect("x", {0: answer(1), 1: answer(1, "paused"), 2: answer(1, "waiting")})
    assert to_json(values)["how"] == {"0": "sampled", "1": "paused", "2": "paused"}
    assert "ranks 1, 2 paused, rank 0 sampled while running" in shown(*render(values, "/job"))


def test_summary_is_of_the_finite_numbers():
    found = summarise({0: 1.0, 1: math.nan, 2: 3.0, 3: -math.inf})
    assert (found.count, found.low, found.high, found.mean, found.nan, found.inf) == (4, 1.0, 3.0, 2.0, 1, 1)
    assert summarise({0: math.nan}).mean is None


# Describing tensors.


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_statistics_are_those_of_the_finite_elements(dtype):
    tensor = torch.randn(1000, 70, generator=torch.Generator().manual_seed(1)).to(dtype)
    tensor[3, 4], tensor[5, 6], tensor[7, 8] = math.nan, math.inf, -math.inf
    found = tensors.describe(tensor)
    finite = tensor[torch.isfinite(tensor)].double()
    assert (found["nan"], found["inf"], found["shape"]) == (1, 2, [1000, 70])
    assert found["min"] == finite.min().item()
    assert found["max"] == finite.max().item()
    assert found["mean"] == pytest.approx(finite.mean().item(), abs=1e-12)
    assert found["std"] == pytest.approx(finite.std().item(), rel=1e-9)
    assert "looked_at" not in found


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(0, 3),
        torch.tensor([True, False]),
        torch.tensor([1 + 2j, 3j]),
        torch.arange(6).reshape(2, 3).t(),
        torch.ones(3, 1).expand(3, 5),
        torch.eye(4).to_sparse(),
        torch.eye(4).to_sparse_csr(),
        torch.empty(3, device="meta"),
        torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
        torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        torch.full((2, 2), math.nan),
        torch.tensor([2**63 - 1, -(2**63)]),
        torch.tensor([1e308, -1e308]),
        numpy.array(["text"]),
        numpy.array([None]),
        numpy.arange(12).reshape(3, 4)[:, ::2],
        numpy.float32(2.5),
        numpy.array([1.0, math.nan]),
    ],
    ids=str,
)
def test_any_tensor_or_array_is_described_in_strict_json(tensor):
    text = codec.dumps(describe(tensor))
    json.loads(text, parse_constant=lambda constant: pytest.fail(constant))


def test_order_of_elements_tells_tensors_apart_that_have_the_same_statistics():
    forwards, backwards = describe(torch.arange(1000)), describe(torch.arange(1000).flip(0))
    assert forwards["mean"] == backwards["mean"]
    assert forwards["checksum"] != backwards["checksum"]
    assert describe(torch.arange(1000)) == forwards


def test_every_nan_is_alike_and_so_are_both_zeros():
    assert describe(torch.tensor([math.nan, 0.0]))["checksum"] == describe(torch.tensor([-math.nan, -0.0]))["checksum"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64, torch.int64, torch.uint8, torch.bool])
def test_torch_and_numpy_say_the_same(dtype):
    tensor = (torch.randn(50, 30) * 3).to(dtype)
    ours, theirs = tensors.describe(tensor), tensors.describe(tensor.numpy())
    del ours["$type"], theirs["$type"]
    assert ours.pop("std") == pytest.approx(theirs.pop("std"), rel=1e-12)
    assert (ours.pop("mean") or 0.0) == pytest.approx(theirs.pop("mean") or 0.0, rel=1e-12)
    assert ours == theirs


def test_a_checksum_depends_neither_on_strides_nor_on_how_the_tensor_is_cut_into_pieces(monkeypatch):
    tensor = torch.randn(300, 200)
    found = tensors.describe(tensor)
    assert tensors.describe(tensor.t().contiguous().t())["checksum"] == found["checksum"]
    monkeypatch.setattr(elements, "_CPU_PIECE", 1 << 22)
    whole = tensors.describe(tensor)
    assert whole["checksum"] == found["checksum"]
    assert whole["std"] == pytest.approx(found["std"], rel=1e-12)


_MASK = torch.tensor([1.0, 0, 0, 1] * 8)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (_MASK, 1 - _MASK),
        (_MASK.int(), 1 - _MASK.int()),
        (_MASK.bool(), ~_MASK.bool()),
        (_MASK.numpy(), 1 - _MASK.numpy()),
        (torch.eye(30)[:8], torch.eye(30)[[1, 0, 2, 3, 4, 5, 7, 6]]),
        (torch.eye(100_000, 3), torch.eye(100_000, 3).roll(1, 1)),
        (torch.arange(1000), torch.arange(1000)[torch.randperm(1000, generator=torch.Generator().manual_seed(0))]),
        (torch.tensor([1 + 2j, 2 + 1j] * 9), torch.tensor([2 + 1j, 1 + 2j] * 9)),
        (torch.tensor([[1.0, 2]]), torch.tensor([[2.0, 1]])),
        (torch.diag(torch.ones(50)).to_sparse(), torch.diag(torch.ones(50)).flip(0).to_sparse()),
    ],
    ids=["float mask", "int mask", "bool mask", "numpy", "one-hot", "pieces", "order", "complex", "pair", "sparse"],
)
def test_the_same_few_values_in_another_order_have_another_checksum(first, second):
    shown_digits = [describe(each)["checksum"][:6] for each in (first, second)]
    assert shown_digits[0] != shown_digits[1]
    assert "000000" not in shown_digits
    assert describe(first.copy() if isinstance(first, numpy.ndarray) else first.clone()) == describe(first)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor([[1 + 2j, complex(math.nan, 0)], [3j, complex(0, math.inf)]]),
        torch.tensor([2**60 + 1, 2**60 + 3] * 20),
        torch.tensor([2**64 - 1, 5], dtype=torch.uint64),
        torch.tensor([True, True, False]),
        torch.randn(100, dtype=torch.float64) + 1e8,
        torch.randn(90_000, generator=torch.Generator().manual_seed(2)) + 1e5,
        torch.tensor([1e308, 1.5e308, 1.6e308], dtype=torch.float64),
        torch.full((4,), math.inf),
        torch.tensor([[0.0, -2.0], [0.0, math.nan], [5.0, 0.0]]).to_sparse(),
        torch.tensor([[0.0, -2.0], [0.0, math.nan], [5.0, 0.0]]).to_sparse_csr(),
        torch.eye(40).to_sparse_bsr((2, 2)),
        torch.quantize_per_tensor(torch.tensor([-1.0, 0.0, 0.5]), 0.5, 0, torch.qint8),
    ],
    ids=str,
)
def test_a_live_tensor_has_the_statistics_that_it_has_in_a_checkpoint(tensor):
    live, kept = tensors.describe(tensor), statistics(tensor)
    for name in ("min", "max", "nan", "inf"):
        assert live[name] == getattr(kept, name)
    for name in ("mean", "std"):
        assert live[name] == (None if getattr(kept, name) is None else pytest.approx(getattr(kept, name), rel=1e-6))
    assert live.get("note", "") == kept.note
    assert tensors.first_bad(tensor, 60) == kept.first_bad


def test_the_spread_of_values_is_right_however_far_they_are_from_zero():
    values = torch.cat([torch.randn(100, generator=torch.Generator().manual_seed(0)).double(), torch.tensor([1e8])])
    assert tensors.describe(values)["std"] == pytest.approx(values.std().item(), rel=1e-9)
    near = 1e8 + torch.randn(100_000, dtype=torch.float64)
    assert tensors.describe(near)["std"] == pytest.approx(near.std().item(), rel=1e-9)
    assert tensors.describe(torch.full((7,), 1 / 3, dtype=torch.float64))["std"] == 0


def test_complex_numbers_read_as_python_writes_them():
    for value in (2 + 1j, torch.tensor(2 + 1j), numpy.array([2 + 1j]), numpy.complex128(2 + 1j)):
        assert "0  (2+1j)\n" in shown(*render(collect("z", {0: answer(value)})))
    assert "[(2+1j), 3j]" in shown(*render(collect("z", {0: answer(torch.tensor([2 + 1j, 3j]))})))


@pytest.mark.parametrize("shape", [(40_000_000,), (2, 20_000_000), (20_000_000, 2), (4_000, 10_000)])
def test_of_a_large_tensor_a_bounded_part_is_looked_at(shape):
    tensor = torch.zeros(1).expand(math.prod(shape)).reshape(shape) if len(shape) == 1 else torch.zeros(1).expand(shape)
    found = tensors.describe(tensor)
    assert 0 < found["looked_at"] <= tensors.LIMIT
    assert found["max"] == 0


def test_one_element_is_a_number_and_a_module_is_told_by_its_size():
    assert describe(torch.tensor([[2.5]], requires_grad=True)) == 2.5
    assert describe(numpy.float64(1.5)) == 1.5
    assert describe(torch.nn.Linear(3, 4))["parameters"] == 16


def model(change: float = 0.0) -> torch.nn.Module:
    """A model that is always the same, but for one number of its last layer."""
    torch.manual_seed(0)
    made = torch.nn.Sequential(torch.nn.Linear(30, 40), torch.nn.BatchNorm1d(40), torch.nn.Linear(40, 5))
    with torch.no_grad():
        made[2].weight[3, 17] += change
    return made


def optimizer_state(odd: float) -> dict[str, object]:
    return {"state": {at: {"step": 3, "average": torch.full((2, 9), odd if at == 299 else 0.0)} for at in range(300)}}


@pytest.mark.parametrize(
    ("same", "odd"),
    [
        (lambda: "a" * 5_000 + "b", lambda: "a" * 5_000 + "c"),
        (lambda: b"a" * 5_000 + b"b", lambda: b"a" * 5_000 + b"c"),
        (lambda: [*range(100_000), 0], lambda: [*range(100_000), 1]),
        (lambda: ("a" * 300,) * 300, lambda: ("a" * 300,) * 299 + ("a" * 299 + "b",)),
        (lambda: {"x": list(range(500))}, lambda: {"x": [*range(499), 0]}),
        (lambda: [[[[[1, 2]]]]], lambda: [[[[[1, 3]]]]]),
        (lambda: {at: at for at in range(1_000)}, lambda: {at: min(at, 998) for at in range(1_000)}),
        (lambda: {1: "a", "1": "b"}, lambda: {1: "a", "1": "c"}),
        (lambda: set(range(300)), lambda: {*range(299), 500}),
        (lambda: 1 << 20_000, lambda: (1 << 20_000) + 1),
        (lambda: range(10), lambda: range(11)),
        (lambda: optimizer_state(0.0), lambda: optimizer_state(1.0)),
        (lambda: numpy.array(["one", "two"]), lambda: numpy.array(["one", "tow"])),
        (lambda: numpy.array(["one"] * 50_000), lambda: numpy.array(["one"] * 49_999 + ["eno"])),
        (
            lambda: numpy.array([("a", 1.0)] * 20, dtype=[("k", "U1"), ("v", "f8")]),
            lambda: numpy.array([("a", 1.5)] * 20, dtype=[("k", "U1"), ("v", "f8")]),
        ),
        (model, lambda: model(1e-3)),
        (lambda: {"model": model(), "epoch": 1}, lambda: {"model": model(1e-3), "epoch": 1}),
        (lambda: [None] * 300 + [model()], lambda: [None] * 300 + [model(1e-3)]),
    ],
)
def test_values_that_differ_where_they_are_not_shown_are_groups_of_their_own(same, odd):
    values = collect("x", {0: answer(same()), 1: answer(odd()), 2: answer(same())})
    assert [group.ranks for group in values.groups] == [(1,), (0, 2)]
    assert all(group.seen_whole for group in values.groups)
    text = shown(*render(values), width=400)
    assert "as far as looked at" not in text
    lines = text.splitlines()
    assert next(line for line in lines if line.startswith("1 "))[3:].strip() not in text.split("0,2", 1)[1]


class Quiet:
    """An object that tells nothing of what it has."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __repr__(self) -> str:
        return "Quiet()"


@pytest.mark.filterwarnings("ignore")  # torch's remarks on what is a prototype
@pytest.mark.parametrize(
    "make",
    [
        lambda rank: Quiet(rank),
        lambda rank: [1, Quiet(rank)],
        lambda rank: object(),
        lambda rank: [0] * 1_000_000 + [rank],
        lambda rank: set(range(300_000)),
        lambda rank: numpy.array([None, rank]),
        lambda rank: torch.nested.nested_tensor([torch.ones(2), torch.full((3,), rank)]),
        lambda rank: torch.zeros(1).expand(20_000_000),
        lambda rank: torch.nn.LazyLinear(3),
        lambda rank: [Quiet(rank)] * 300,
    ],
)
def test_what_was_not_looked_at_whole_is_not_called_equal(make):
    values = collect("x", {rank: answer(make(rank)) for rank in range(3)})
    assert [group.ranks for group in values.groups] == [(0, 1, 2)]
    assert "(equal as far as looked at)" in shown(*render(values), width=200).replace("\n", " ")


def test_the_order_of_a_set_and_of_a_dict_does_not_tell_ranks_apart():
    up, down = set([0, 8, 16]), set([16, 8, 0])
    assert list(up) != list(down)
    values = collect("x", {0: answer(up), 1: answer(down)})
    assert len(values.groups) == 1
    assert "{0, 8, 16}" in shown(*render(values))
    many = [(at, at) for at in range(500)]
    assert len(collect("x", {0: answer(dict(many)), 1: answer(dict(reversed(many)))}).groups) == 1


def test_a_large_model_is_looked_at_in_part_and_in_all_its_tensors():
    layers = [torch.nn.Linear(1_000, 1_000) for _ in range(20)]
    found = describe(torch.nn.Sequential(*layers))
    assert 0.5 * 4 * tensors.LIMIT < found["looked_at"] <= 4 * tensors.LIMIT
    with torch.no_grad():
        layers[19].weight += 1e-3
    assert describe(torch.nn.Sequential(*layers))["checksum"] != found["checksum"]


def test_addresses_do_not_tell_ranks_apart():
    class Thing:
        pass

    assert describe(Thing()) == describe(Thing())


def test_huge_and_endless_containers_are_bounded():
    endless: list[object] = []
    endless.append(endless)
    for value in ([0] * 1_000_000, endless, {"a": list(range(1000))}, "x" * 100_000):
        assert len(codec.dumps(describe(value))) < 10_000


# Evaluating in another thread's frame.


def run_frames(stop: threading.Event) -> None:
    """A training function: two frames of its own with names that only one of them has."""
    outer_only = 7

    def inner() -> None:
        inner_only = [1, 2]
        stop.wait()
        del inner_only

    inner()
    del outer_only


@pytest.fixture
def training(monkeypatch):
    """A thread in `run_frames` that the operation takes for the training thread."""
    stop = threading.Event()
    thread = threading.Thread(target=run_frames, args=(stop,), daemon=True)
    thread.start()
    monkeypatch.setattr(evaluate, "training_thread", lambda: thread)
    wait_for(lambda: evaluate.answer({"expression": "inner_only"}).get("value"), 10, "the thread to be in inner")
    yield thread
    stop.set()
    thread.join(10)


def test_names_are_those_of_the_innermost_frame_that_has_them(training):
    inner = evaluate.answer({"expression": "sum(inner_only)"})
    assert (inner["value"], inner["where"]["function"], inner["state"]) == (3, "inner", "running")
    outer = evaluate.answer({"expression": "outer_only + len([x for x in range(outer_only)])"})
    assert (outer["value"], outer["where"]["function"]) == (14, "run_frames")


def test_a_numbered_frame_is_that_frame(training):
    assert evaluate.answer({"expression": "outer_only", "frame": 1})["value"] == 7
    assert evaluate.answer({"expression": "outer_only", "frame": 0})["raised"]["type"] == "NameError"
    assert "no frame 9" in evaluate.answer({"expression": "1", "frame": 9})["unanswerable"]


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("1 +", "SyntaxError"),
        ("dist.all_reduce(x)", "all_reduce waits for other ranks"),
        ("model.full_tensor()", "full_tensor waits for other ranks"),
        ("__import__('time').sleep(60)", "did not end within 0.2 s"),
        ("[None for _ in iter(int, 1)]", "did not end within 0.2 s"),
    ],
)
def test_what_cannot_be_answered_is_said_in_words_and_in_time(training, expression, words):
    started = time.monotonic()
    assert words in evaluate.answer({"expression": expression, "timeout": 0.2})["unanswerable"]
    assert time.monotonic() - started < 30


def test_an_endless_loop_of_python_is_stopped(training):
    before = set(threading.enumerate())
    evaluate.answer({"expression": "[None for _ in iter(int, 1)]", "timeout": 0.1})
    wait_for(lambda: set(threading.enumerate()) <= before, 30, "the expression's thread to end")


def test_an_expression_stuck_in_native_code_disturbs_no_traced_thread(training):
    def follow(frame: object, event: str, argument: object) -> object:
        return follow

    def work() -> None:
        sys.settrace(follow)
        for _ in range(100):
            (lambda: None)()
        sys.settrace(None)

    evaluate.answer({"expression": "__import__('time').sleep(60)", "timeout": 0.05})
    # On Python 3.11 a traced thread makes no step while an exception waits to be raised in another thread.
    traced = threading.Thread(target=work, daemon=True)
    traced.start()
    traced.join(20)
    assert not traced.is_alive()


def test_what_an_expression_raises_is_an_answer_even_when_it_would_end_the_process(training):
    assert evaluate.answer({"expression": "1 / 0"})["raised"] == {
        "type": "ZeroDivisionError",
        "message": "division by zero",
    }
    assert evaluate.answer({"expression": "exit(3)"})["raised"]["type"] == "SystemExit"


def test_an_expression_changes_no_variable(training):
    assert evaluate.answer({"expression": "(outer_only := 8)"})["value"] == 8
    assert evaluate.answer({"expression": "outer_only", "frame": 1})["value"] == 7


def test_looking_at_variables_keeps_none_of_them_alive():
    class Batch:
        pass

    looked, dropped = threading.Event(), threading.Event()

    def loop() -> None:
        batch = Batch()
        references.append(weakref.ref(batch))
        frames.append(sys._getframe())
        ready.set()
        looked.wait()
        del batch
        gone.set()
        dropped.wait()

    ready, gone, references, frames = threading.Event(), threading.Event(), [], []
    thread = threading.Thread(target=loop, daemon=True)
    thread.start()
    ready.wait()
    assert isinstance(evaluate.variables(frames[0])["batch"], Batch)
    looked.set()
    gone.wait()
    gc.collect()
    try:
        assert references[0]() is None
    finally:
        dropped.set()
        thread.join(10)


def test_a_dict_that_the_user_has_from_locals_stays():
    def function() -> dict[str, object]:
        kept_by_user = locals()
        evaluate.variables(sys._getframe())
        return kept_by_user

    with contextlib.suppress(KeyError):
        assert function()["kept_by_user"] is not None


# Showing.


def test_view_of_numbers_has_the_odd_one_first_a_row_of_bars_and_a_summary():
    values = collect("loss.item()", {0: answer(0.25), 1: answer(math.nan), 2: answer(0.5), 3: answer(0.25)})
    assert shown(*render(values, "/job")).splitlines() == [
        "loss.item()  in step at train.py:88, sampled while running",
        "1    nan",
        "2    0.5",
        "0,3  0.25",
        "▁×█▁",
        "min 0.25  max 0.5  mean 0.3333  1 NaN",
    ]


def test_numbers_that_differ_late_are_shown_with_all_their_digits():
    values = collect("x", {rank: answer(1 / 3 + 1e-12 * rank) for rank in range(3)})
    assert shown(*render(values)).splitlines()[1:] == [
        "0  0.3333333333333333",
        "1  0.3333333333343333",
        "2  0.3333333333353333",
        "▁▄█",
        "min 0.3333333333333333  max 0.3333333333353333  mean 0.33333333333433335",
    ]
    assert "rank 1  ▄  0.3333333333343333" in shown(*plot([values]))


def test_tensors_and_containers_whose_numbers_differ_late_have_all_their_digits():
    drifted = {rank: answer(torch.full((40,), 0.5 + 1e-9 * rank, dtype=torch.float64)) for rank in range(2)}
    assert "mean 0.500000001 " in shown(*render(collect("x", drifted)), width=200)
    nested = {rank: answer({"w": torch.ones(2), "loss": 0.5 + 1e-9 * rank}) for rank in range(2)}
    assert "loss: 0.500000001" in shown(*render(collect("x", nested)), width=200)


def test_values_that_read_alike_even_so_have_a_checksum():
    values = collect("x", {rank: answer("a" * 300 + str(rank)) for rank in range(2)})
    lines = [line[1:] for line in shown(*render(values), width=400).splitlines()[1:]]
    assert len(set(lines)) == 2
    assert all("…  #" in line for line in lines)


def test_view_names_the_place_of_each_group_when_ranks_are_at_different_ones():
    elsewhere = answer(1)
    elsewhere["where"] = {"file": "/job/data.py", "line": 12, "function": "load_batch"}
    text = shown(*render(collect("x", {0: answer(0), 1: elsewhere, 2: answer(0, line=90)}), "/job"))
    assert "1    1  in load_batch at data.py:12" in text
    assert "0,2  0  in step at train.py:88,90" in text


def test_view_of_tensors_has_no_elements_but_for_small_ones():
    text = shown(*render(collect("w", {0: answer(torch.zeros(40, 50)), 1: answer(torch.tensor([1.0, math.nan]))})))
    assert "Tensor (40, 50) float32  min 0  max 0  mean 0  std 0" in text
    assert "Tensor (2,) float32 [1, nan]  min 1" in text
    assert "1 NaN" in text


def test_view_of_a_dict_of_tensors_has_a_line_for_each():
    text = shown(*render(collect("d", {0: answer({"a": torch.zeros(3, 3), "b": 1})}), "/job"))
    assert "0  a: Tensor (3, 3) float32" in text
    assert "   b: 1" in text


@pytest.mark.parametrize("width", [12, 30, 80])
def test_views_fit_narrow_terminals(width):
    values = collect("loss", {rank: answer(float(rank)) for rank in range(64)})
    assert all(len(line) <= width for line in shown(*render(values), *plot([values] * 99), width=width).splitlines())


def test_plot_has_a_row_of_bars_a_rank_with_the_newest_value():
    history = [collect("loss", {0: answer(float(step)), 1: answer(1.0)}) for step in range(4)]
    assert shown(*plot(history)).splitlines() == [
        "loss",
        "rank 0  ▁▃▆█  3",
        "rank 1  ▄▄▄▄  1",
        "min 1  max 3  mean 2",
    ]
