"""Runs the user's script or module as plain `python SCRIPT` or `python -m MODULE` would, with no trace of us.

Sources: "The Python Command Line" and "__main__ — Top-level code environment" in Python's documentation, and runpy,
which is what python itself runs modules, directories and archives with: its `_get_module_details` and
`_get_main_module_details` find them and word the errors.
"""

from __future__ import annotations

import builtins
import importlib.machinery
import io
import os
import pkgutil
import runpy
import sys
import threading
import types
from collections.abc import Callable
from typing import Any, NoReturn

from raytrain_debug.shim import pydevd_signs

path_lock = threading.Lock()
"""Held by whoever changes the beginning of sys.path while the rank starts: debugpy does, as long as it is imported."""

_OWN_DIRECTORY = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")


def run_target(name: str, arguments: list[str], *, module: bool) -> None:
    """Run the script at path `name`, or the module `name`, as `__main__` with `arguments` as sys.argv[1:].

    What it raises comes out as it was raised; a target that does not exist ends the process as python does, with its
    message and exit code.
    """
    main = types.ModuleType("__main__")
    if sys.version_info < (3, 14):
        main.__annotations__ = {}
    code = _load_module(name, arguments, main) if module else _load_file(name, arguments, main)
    main.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = main
    exec(code, main.__dict__)


def run_to_end(
    run: Callable[[], None],
    at_failure: Callable[[BaseException], None],
    before_end: Any = None,
    at_exit: Callable[[SystemExit], None] = lambda error: None,
) -> None:
    """Call `run`, and end the process as python does when it raises: traceback, hooks, exit code, all without us.

    `at_failure(error)` is called first, and `before_end(error)` once the traceback has been printed.
    `at_exit(error)` is called where the target calls sys.exit.
    """
    try:
        run()
    except SystemExit as error:
        hide_us(error)
        at_exit(error)
        raise
    except BaseException as error:
        hide_us(error)
        at_failure(error)
        _print(error)
        if before_end is not None:
            before_end(error)
        if isinstance(error, KeyboardInterrupt):
            sys.excepthook = _say_nothing
            raise  # python ends by the signal then
        raise SystemExit(1) from None


def hide_us(error: BaseException) -> None:
    """Take our own frames, and the debugger's, out of the tracebacks of `error` and of all it is chained to."""
    seen: set[int] = set()
    left: list[BaseException | None] = [error]
    while left:
        each = left.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        each.__traceback__ = without_our_frames(each.__traceback__)
        left += [each.__cause__, each.__context__, *getattr(each, "exceptions", ())]


def without_our_frames(traceback: types.TracebackType | None) -> types.TracebackType | None:
    """The traceback that plain python would have shown; `traceback` itself is changed."""
    first = last = None
    while traceback is not None:
        file = traceback.tb_frame.f_code.co_filename
        if pydevd_signs.is_its_file(file):
            break  # interrupted while it stood: what follows is the debugger waiting
        if not file.startswith(_OWN_DIRECTORY):
            if last is None:
                first = traceback
            else:
                last.tb_next = traceback
            last = traceback
        traceback = traceback.tb_next
    if last is not None:
        last.tb_next = None
    return first


def _put_first(directory: str) -> None:
    """Let `directory` be the first of sys.path in the place of what python put there for us."""
    with path_lock:
        sys.path[0] = directory


def _load_file(path: str, arguments: list[str], main: types.ModuleType) -> types.CodeType:
    sys.argv[:] = [path, *arguments]
    sys.orig_argv[:] = [sys.executable, "-u", path, *arguments]
    file = os.path.join(os.getcwd(), path)  # not made any shorter, as python leaves it
    if pkgutil.get_importer(file) is not None:
        # A directory or archive: python puts it on the path and runs the __main__ in it.
        if not getattr(sys.flags, "safe_path", False):
            _put_first(file)
        return _found(runpy._get_main_module_details, main, runpy._Error)  # type: ignore[attr-defined]
    if not getattr(sys.flags, "safe_path", False):
        _put_first(os.path.dirname(os.path.realpath(path)))
    try:
        with io.open_code(file) as opened:
            code = pkgutil.read_code(opened)
        with io.open_code(file) as opened:
            source = opened.read() if code is None else b""
    except OSError as error:
        _exit(2, f"{sys.executable}: can't open file {file!r}: [Errno {error.errno}] {error.strerror}")
    kinds = importlib.machinery.SourceFileLoader, importlib.machinery.SourcelessFileLoader
    main.__file__ = file
    main.__dict__["__cached__"] = None
    main.__loader__ = kinds[code is not None]("__main__", file)
    main.__spec__ = None
    main.__package__ = None
    return code or compile(source, file, "exec", dont_inherit=True)


def _load_module(name: str, arguments: list[str], main: types.ModuleType) -> types.CodeType:
    sys.argv[:] = ["-m", *arguments]
    sys.orig_argv[:] = [sys.executable, "-u", "-m", name, *arguments]
    code = _found(runpy._get_module_details, main, name, runpy._Error)  # type: ignore[attr-defined]
    sys.argv[0] = main.__file__ or name
    return code


def _found(find: Callable[..., Any], main: types.ModuleType, *arguments: Any) -> types.CodeType:
    try:
        _, spec, code = find(*arguments)
    except runpy._Error as error:  # type: ignore[attr-defined]
        _exit(1, f"{sys.executable}: {error}")
    main.__file__ = spec.origin
    main.__dict__["__cached__"] = spec.cached
    main.__loader__ = spec.loader
    main.__package__ = spec.parent
    main.__spec__ = spec
    loaded: types.CodeType = code
    return loaded


def _exit(code: int, message: str) -> NoReturn:
    sys.stderr.write(message + "\n")
    raise SystemExit(code)


def _print(error: BaseException) -> None:
    """As PyErr_Print does it: `sys.last_*` first, then sys.excepthook, the user's own if they have set one."""
    kind, trace = type(error), error.__traceback__
    sys.last_type, sys.last_value, sys.last_traceback = kind, error, trace
    if sys.version_info >= (3, 12):
        sys.last_exc = error
    try:
        sys.excepthook(kind, error, trace)
    except SystemExit:
        raise
    except BaseException as second:
        hide_us(second)
        second.__context__ = None
        print("Error in sys.excepthook:", file=sys.stderr)
        sys.__excepthook__(type(second), second, second.__traceback__)
        print("\nOriginal exception was:", file=sys.stderr)
        sys.__excepthook__(kind, error, trace)


def _say_nothing(*args: Any) -> None:
    pass
