"""Frames of a thread that is looked at from another one, and what they tell that it waits in."""

import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from raytrain_debug.shim.callsite import USER
from raytrain_debug.shim.flight_recorder import Pending
from raytrain_debug.shim.frames import Position, positions, user_positions, without_comprehensions
from raytrain_debug.shim.waits import called_method, find_wait
from tests.conftest import wait_for

ALL_REDUCE = Pending("0", "all_reduce", 7, 1.0)


@contextmanager
def standing_in(function: Callable[[threading.Lock], None]) -> Iterator[list[Position]]:
    """The frames of a thread that runs `function(lock)` once it stands still; the lock is let go of afterwards."""
    lock = threading.Lock()
    lock.acquire()
    thread = threading.Thread(target=function, args=(lock,), daemon=True)
    thread.start()

    def still() -> list[Position]:
        first = positions(thread.ident or 0)
        time.sleep(0.05)  # the thread's turn: looked at twice in one turn of ours, it stands still anywhere
        second = positions(thread.ident or 0)
        return second if [(p.code, p.lasti) for p in first] == [(p.code, p.lasti) for p in second] else []

    try:
        yield wait_for(still, 10, "the thread to stand still")
    finally:
        lock.release()
        thread.join(10)


def made(module: str, function: str, file: str = "/usr/lib/python3/dist-packages/lib.py") -> Position:
    """A position in a function of that name and module, as sampled from a real frame of it."""
    namespace: dict[str, object] = {"__name__": module, "sys": sys}
    exec(compile(f"def {function}():\n    return sys._getframe()\n", file, "exec"), namespace)
    frame = namespace[function]()  # type: ignore[operator]
    return Position(frame, frame.f_code, frame.f_lineno, frame.f_lasti, module, USER if file == "train.py" else 1)


def stand(lock: threading.Lock) -> None:
    lock.acquire()
    lock.release()


def comprehend(lock: threading.Lock) -> None:
    [stand(each) for each in [lock]]


def wait_on_event(lock: threading.Lock) -> None:
    threading.Thread(target=lambda: (lock.acquire(), event.set()), daemon=True).start()
    event = threading.Event()
    event.wait()
    lock.release()


def take_from_queue(lock: threading.Lock) -> None:
    waiting: queue.Queue[None] = queue.Queue()
    threading.Thread(target=lambda: (lock.acquire(), waiting.put(None)), daemon=True).start()
    waiting.get()
    lock.release()


class Work:
    """Something whose `wait` is native, as torch's is."""

    def __init__(self, lock: threading.Lock) -> None:
        self.wait = lock.acquire


def wait_for_work(lock: threading.Lock) -> None:
    work = Work(lock)
    work.wait()
    lock.release()


def test_frames_are_outermost_first_with_the_users_apart():
    with standing_in(comprehend) as found:
        own = user_positions(found)
        assert without_comprehensions(own)[0].function == "comprehend"
        assert own[-1].function == "stand"
        assert own[-1].file == __file__
        assert found[0].module == "threading"
        assert "<listcomp>" not in [each.function for each in without_comprehensions(own)]


@pytest.mark.parametrize(("function", "label"), [(wait_on_event, "lock"), (take_from_queue, "queue get")])
def test_waits_of_the_standard_library_have_names(function, label):
    with standing_in(function) as found:
        wait = find_wait(found)
        assert wait is not None
        assert (wait.label, wait.peers) == (label, False)


def test_native_wait_has_a_name_only_while_a_collective_is_under_way():
    with standing_in(wait_for_work) as found:
        assert called_method(found[-1].code, found[-1].lasti) == "wait"
        assert find_wait(found) is None
        wait = find_wait(found, [ALL_REDUCE])
        assert wait is not None
        assert (wait.label, wait.peers) == ("all_reduce", True)


def test_other_native_calls_are_no_wait_even_with_a_collective_under_way():
    with standing_in(stand) as found:
        assert find_wait(found, [ALL_REDUCE]) is None


def test_collective_that_the_user_called_counts_not_the_one_it_is_made_of():
    c10d = "torch.distributed.distributed_c10d"
    user = made("__main__", "save", "train.py")
    inner = [
        made("torch.distributed.c10d_logger", "wrapper"),
        made(c10d, "all_gather_object"),
        made(c10d, "all_gather"),
    ]
    wait = find_wait([user, *inner])
    assert wait is not None
    assert (wait.label, wait.peers, wait.index) == ("all_gather_object", True, 2)


def test_a_library_that_calls_the_users_code_is_no_wait():
    data = made("torch.utils.data.dataloader", "__next__")
    assert find_wait([made("__main__", "train", "train.py"), data, made("__main__", "__getitem__", "train.py")]) is None
    wait = find_wait([made("__main__", "train", "train.py"), data])
    assert wait is not None
    assert (wait.label, wait.peers) == ("DataLoader next", False)


def test_backward_is_a_wait_only_while_a_collective_is_under_way():
    frames = [made("__main__", "train", "train.py"), made("torch.autograd.graph", "_engine_run_backward")]
    assert find_wait(frames) is None
    wait = find_wait(frames, [ALL_REDUCE])
    assert wait is not None
    assert (wait.label, wait.index) == ("all_reduce", 1)


def test_asking_for_the_rank_is_no_wait():
    frames = [made("__main__", "train", "train.py"), made("torch.distributed.distributed_c10d", "get_rank")]
    assert find_wait(frames) is None
