"""What we rely on in pydevd beside the Debug Adapter Protocol: a new debugpy that changes it breaks its test."""

from __future__ import annotations

import re
import subprocess
import sys
import threading

import pytest

from raytrain_debug.shim import pydevd_signs
from tests.conftest import REPOSITORY

WITH_PYDEVD = """
import inspect, os, sys, threading
os.environ["PYDEVD_DISABLE_FILE_VALIDATION"] = "1"
import debugpy.server.api
import pydevd
from raytrain_debug.shim import pydevd_signs
"""


def with_pydevd(code):
    """Run `code`, which asserts, in a process that has pydevd."""
    done = subprocess.run([sys.executable, "-c", WITH_PYDEVD + code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_nothing_else_of_ours_touches_pydevd():
    touches = re.compile(r"\bpydev_|_pydev_|\b_?pydevd_(?!signs)|import (?:pydevd|debugpy)\b|modules\.get\(\"debugpy")
    found = {path.name for path in (REPOSITORY / "raytrain_debug").rglob("*.py") if touches.search(path.read_text())}
    assert found == {"debugger.py", "pydevd_signs.py", "tracing.py"}


def test_it_is_switched_on_without_a_port():
    with_pydevd("""
parameters = inspect.signature(pydevd.settrace).parameters
assert parameters.keys() >= {
    "host", "port", "suspend", "trace_only_current_thread", "patch_multiprocessing", "stop_at_frame", "notify_stdin",
    "wait_for_ready_to_run", "block_until_connected", "dont_trace_start_patterns",
}, parameters
assert "terminate_on_socket_close" in inspect.signature(pydevd.PyDB.initialize_network).parameters
assert "py_db.create_wait_for_connection_thread()" in inspect.getsource(pydevd)
from _pydevd_bundle.pydevd_constants import get_global_debugger
assert get_global_debugger() is None
""")


def test_it_lets_a_client_go():
    with_pydevd("""
from _pydevd_bundle import pydevd_io
from _pydevd_bundle.pydevd_api import PyDevdAPI
from _pydevd_bundle.pydevd_comm import WriterThread
assert "resume_threads" in inspect.signature(PyDevdAPI.request_disconnect).parameters
assert list(inspect.signature(pydevd.PyDB.enable_output_redirection).parameters)[1:] == [
    "redirect_stdout", "redirect_stderr"
]
assert callable(pydevd_io.stop_redirect_stream_to_pydb_io_messages)
assert callable(WriterThread.do_kill_pydev_thread) and callable(WriterThread.empty)
assert callable(pydevd.PyDB.is_attached)
""")


def test_it_forgets_what_a_client_asked_for():
    with_pydevd("""
import pydevd_file_utils as files
from _pydevd_bundle.pydevd_api import PyDevdAPI
from _pydevd_bundle.pydevd_constants import is_true_in_env
from raytrain_debug.shim.debugger import _WISHES
db, api = pydevd.PyDB(), PyDevdAPI()
before = {name: getattr(db, name) for name in _WISHES[:3]}
db.multi_threads_single_notification = not before["multi_threads_single_notification"]
api.set_variable_presentation(db, api.VariablePresentation("hide"))
api.set_ignore_system_exit_codes(db, [0, None])
assert all(getattr(db, name) != before[name] for name in before)
if hasattr(api, "set_break_on_system_exit"):
    assert db._break_on_system_exit is None
    api.set_break_on_system_exit(db, {3}, [])
    assert db._break_on_system_exit == ({3}, [])
api.set_function_breakpoints(db, [])
assert len(inspect.signature(db.setup_auto_reload_watcher).parameters) == 5
assert files._global_resolve_symlinks is False and callable(files.set_resolve_symlinks)
assert is_true_in_env("PYDEVD_RESOLVE_SYMLINKS") is False
assert files.PATHS_FROM_ECLIPSE_TO_PYTHON == [] and callable(files.setup_client_server_paths)
""")


def test_it_can_be_told_of_an_exception():
    with_pydevd("""
db = pydevd.PyDB()
assert db.break_on_uncaught_exceptions == {}
if hasattr(db, "trigger_exception_handler"):
    assert "as_uncaught" in inspect.signature(db.trigger_exception_handler).parameters
else:
    from _pydevd_bundle.pydevd_breakpoints import stop_on_unhandled_exception
    assert len(inspect.signature(stop_on_unhandled_exception).parameters) == 4
    assert len(inspect.signature(db.do_stop_on_unhandled_exception).parameters) == 4
    assert db.get_file_type(sys._getframe()) != db.PYDEV_FILE
    assert db.set_additional_thread_info(threading.current_thread()).is_tracing == 0
""")


def test_it_can_be_told_what_to_do_when_a_breakpoints_condition_raises():
    with_pydevd("""
db = pydevd.PyDB()
assert isinstance(db.skip_suspend_on_breakpoint_exception, tuple)
assert isinstance(db.skip_print_breakpoint_exception, tuple)
""")


def test_it_can_be_told_to_stop_a_thread_at_its_first_line():
    with_pydevd("""
from _pydevd_bundle.pydevd_comm_constants import CMD_STEP_INTO_MY_CODE, CMD_STOP_ON_START
from _pydevd_bundle.pydevd_constants import PYDEVD_USE_SYS_MONITORING
from _pydevd_sys_monitoring import pydevd_sys_monitoring
assert PYDEVD_USE_SYS_MONITORING == (sys.version_info >= (3, 12))
info = pydevd.PyDB().set_additional_thread_info(threading.current_thread())
info.pydev_original_step_cmd, info.pydev_step_cmd = CMD_STOP_ON_START, CMD_STEP_INTO_MY_CODE
info.update_stepping_info()
assert callable(pydevd_sys_monitoring.update_monitor_events) and callable(pydevd_sys_monitoring.restart_events)
""")


def test_its_hooks_can_be_taken_out_again():
    with_pydevd("""
import pydevd_tracing
from _pydev_bundle.pydev_monkey import undo_patch_thread_modules
assert "apply_to_all_threads" in inspect.signature(pydevd.PyDB.enable_tracing).parameters
assert callable(pydevd.PyDB.patch_threads) and callable(pydevd.PyDB().trace_dispatch)
assert "create_dummy_thread" in inspect.signature(pydevd_tracing.set_trace_to_threads).parameters
assert callable(pydevd_tracing.replace_sys_set_trace_func) and callable(pydevd_tracing.restore_sys_set_trace_func)
assert callable(pydevd_tracing._load_python_helper_lib)
assert "setup_tracing" in inspect.signature(pydevd.settrace_forked).parameters
""")


@pytest.mark.skipif(sys.version_info < (3, 12), reason="pydevd uses sys.monitoring from Python 3.12 on")
def test_its_monitoring_can_be_ended():
    with_pydevd("""
from _pydevd_sys_monitoring import pydevd_sys_monitoring
assert callable(pydevd_sys_monitoring.stop_monitoring)
implementation = sys.modules[pydevd_sys_monitoring.stop_monitoring.__module__]
assert isinstance(implementation._code_to_func_code_info_cache, dict)
""")


def test_the_signs_of_a_stopped_thread_are_its_own():
    with_pydevd("""
from _pydevd_bundle.pydevd_constants import STATE_RUN, STATE_SUSPEND
thread = threading.current_thread()
info = pydevd.PyDB().set_additional_thread_info(thread)
for state, asked in ((STATE_SUSPEND, True), (STATE_RUN, False)):
    info.pydev_state = state
    assert pydevd_signs.is_asked_to_stop(thread) is asked
assert pydevd_signs.is_standing(pydevd.PyDB.do_wait_suspend.__code__)
""")


def test_its_files_and_its_children_are_told():
    with_pydevd("""
from _pydev_bundle import pydev_monkey
assert pydevd_signs.is_its_file(pydevd.__file__) and pydevd_signs.is_its_file("_pydevd_bundle/pydevd_cython.pyx")
assert not pydevd_signs.is_its_file(os.__file__)
with pydevd_signs.unseen_children():
    assert not pydev_monkey._get_apply_arg_patching()
assert pydev_monkey._get_apply_arg_patching()
""")


def test_a_hidden_thread_has_the_marks_that_it_reads():
    thread = threading.Thread()
    assert not pydevd_signs.is_hidden(thread)
    pydevd_signs.hide(thread)
    assert pydevd_signs.is_hidden(thread)
    assert pydevd_signs.is_never_stopped(thread)
    with_pydevd("""
import _pydevd_bundle.pydevd_daemon_thread as daemon
thread = threading.Thread()
pydevd_signs.hide(thread)
assert set(vars(thread)) - set(vars(threading.Thread())) <= set(vars(daemon.PyDBDaemonThread(pydevd.PyDB())))
""")
