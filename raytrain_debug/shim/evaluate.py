"""The operation `evaluate` of the control channel: an expression's value in a frame of the training thread.

The expression runs in a thread of its own on copies of the frame's variables, while the training thread goes on (or
stands still, when a debugger has stopped it). It can change objects, as any debugger's expression can, but not which
objects the variables name. It must not communicate with other ranks: nothing makes them do the same at that moment.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import ctypes
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from raytrain_debug.run import codec
from raytrain_debug.run.words import counted
from raytrain_debug.shim.bounded import Helper, TookTooLong
from raytrain_debug.shim.describe import describe
from raytrain_debug.shim.frames import Position, positions, training_thread, user_positions, without_comprehensions
from raytrain_debug.shim.stacks import state_of

LONGEST = 600.0  # seconds that an expression may be given
_THREAD = "raytrain_debug evaluate"
_MAX_AT_WORK = 8  # expressions, those included that took too long and could not be stopped
_OPTIMIZED = 0x1  # CO_OPTIMIZED: the code of a function, whose variables are not in a dict

# Calls that wait for other ranks to make them too. tensor.gather and tensor.scatter are no such calls.
_COLLECTIVES = frozenset(
    {
        "all_gather",
        "all_gather_into_tensor",
        "all_gather_object",
        "all_reduce",
        "all_to_all",
        "all_to_all_single",
        "barrier",
        "broadcast_from_rank_zero",
        "broadcast_object_list",
        "full_tensor",
        "gather_object",
        "monitored_barrier",
        "reduce_scatter",
        "reduce_scatter_tensor",
        "scatter_object_list",
    }
)


class Unanswerable(Exception):
    """There is no answer; the message says why, in words for the user."""


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Serve a request `{"expression", "frame", "timeout"}`; takes up to `timeout` seconds and a little.

    `frame` counts frames of the user's code outwards from the innermost, 0. Without it the innermost is taken that
    knows all names of the expression (and the innermost when none does).

    The answer is `{"value", "state", "where"}`, or `{"raised": {"type", "message"}, "state", "where"}`, or
    `{"unanswerable": why}`.
    """
    try:
        expression = parse(str(request.get("expression", "")))
        number = request.get("frame")
        limit = min(max(float(request.get("timeout", 2.0)), 0.01), LONGEST)
        return _bounded(lambda: _evaluate(expression, number), limit)
    except Unanswerable as reason:
        return {"unanswerable": str(reason)}


def parse(text: str) -> ast.Expression:
    """An expression; raises Unanswerable for what is none or calls a collective."""
    try:
        tree = ast.parse(text.strip(), "<expression>", "eval")
    except (SyntaxError, ValueError) as error:
        raise Unanswerable(f"{type(error).__name__}: {getattr(error, 'msg', None) or error}") from None
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if name in _COLLECTIVES:
                raise Unanswerable(f"{name} waits for other ranks, and nothing makes them call it now")
    return tree


def free_names(tree: ast.Expression) -> set[str]:
    """The names that an expression takes from where it is evaluated."""
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    arguments = {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    stored = {node.id for node in names if not isinstance(node.ctx, ast.Load)}
    return {node.id for node in names} - stored - arguments


def _evaluate(expression: ast.Expression, number: int | None) -> dict[str, Any]:
    thread = training_thread()
    state = state_of(thread)
    own = without_comprehensions(user_positions(positions(thread.ident or 0)))
    if not own:
        raise Unanswerable("the training thread is not in your code")
    if number is not None and not 0 <= number < len(own):
        frames = counted(len(own), "frame")
        raise Unanswerable(f"there is no frame {number}: the training thread is in {frames} of your code")
    at, namespace = _choose(own, expression) if number is None else (own[-1 - number], _namespace(own[-1 - number]))
    where = {"file": at.file, "line": at.line, "function": at.function}
    del own, at
    try:
        with _without_gradients():
            value = eval(compile(expression, "<expression>", "eval"), namespace)
            return {"value": describe(value), "state": state, "where": where}
    except BaseException as error:
        return {"raised": _raised(error), "state": state, "where": where}


def _choose(own: list[Position], expression: ast.Expression) -> tuple[Position, dict[str, Any]]:
    """The innermost frame that has all names of the expression, with its names; else the innermost."""
    wanted = free_names(expression) - vars(builtins).keys()
    innermost = _namespace(own[-1])
    namespace = innermost
    for at in reversed(own):
        if at is not own[-1]:
            namespace = _namespace(at)
        if wanted <= namespace.keys():
            return at, namespace
    return own[-1], innermost


def _namespace(at: Position) -> dict[str, Any]:
    own, around = variables(at.frame), at.frame.f_globals
    # All names are the expression's globals, so that nested scopes see them; to it these tell of the frame.
    telling = {
        "dir": lambda *of: dir(*of) if of else sorted(own),
        "globals": lambda: dict(around),
        "locals": lambda: dict(own),
        "vars": lambda *of: vars(*of) if of else dict(own),
    }
    return {**telling, **around, **own}


def variables(frame: FrameType) -> dict[str, Any]:
    """The variables of a frame that may be running, by name; the frame keeps nothing of this."""
    code = frame.f_code
    if sys.version_info >= (3, 13) or not code.co_flags & _OPTIMIZED:
        return dict(frame.f_locals)
    if sys.version_info >= (3, 12):
        # `f_locals` would fill the dict that an earlier `locals()` of the user's returned, and keep values alive.
        get = ctypes.pythonapi.PyFrame_GetVar
        get.restype, get.argtypes = ctypes.py_object, [ctypes.py_object, ctypes.py_object]
        found = {}
        for name in (*code.co_varnames, *code.co_cellvars, *code.co_freevars):
            with contextlib.suppress(NameError):
                found[name] = get(frame, name)
        return found
    snapshot = frame.f_locals
    copy = dict(snapshot)
    # The frame keeps this dict, and with it values that the user's code has let go of. It is emptied when nobody else
    # has it (the frame, `snapshot` and the argument make three) and no trace function is about to write it back.
    if sys.getrefcount(snapshot) <= 3 and frame.f_trace is None and "pydevd" not in sys.modules:
        snapshot.clear()
    return copy


def _bounded(work: Callable[[], dict[str, Any]], limit: float) -> dict[str, Any]:
    """What `work` returns or raises, in a thread that pydevd leaves alone; Unanswerable when it takes too long."""
    at_work = sum(thread.name == _THREAD for thread in threading.enumerate())
    if at_work >= _MAX_AT_WORK:
        raise Unanswerable(f"{at_work} expressions asked earlier are still at work in this rank")
    helper = Helper(_THREAD)
    try:
        return helper.call(work, limit)
    except TookTooLong:
        raise Unanswerable(f"the expression did not end within {limit:g} s") from None
    finally:
        helper.close()


@contextlib.contextmanager
def _without_gradients() -> Any:
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "no_grad"):
        yield
        return
    with torch.no_grad():
        yield


def _raised(error: BaseException) -> dict[str, str]:
    kind = codec.error(error)["$error"]
    try:
        message = str(error)
    except Exception:
        message = ""
    return {"type": kind, "message": message if len(message) <= 1_000 else message[:999] + "…"}
