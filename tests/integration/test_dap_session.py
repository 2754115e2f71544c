"""The session against a real pydevd that speaks the protocol from inside the process, with no adapter between."""

import os
import subprocess
import sys

import pytest

from raytrain_debug.dap.session import Session
from raytrain_debug.errors import DapError, RankEnded
from tests.conftest import TARGETS, wait_for

DEBUGGEE = str(TARGETS / "debuggee.py")
LINES = {text.strip(): number for number, text in enumerate((TARGETS / "debuggee.py").read_text().splitlines(), 1)}


@pytest.fixture(scope="module")
def debuggee():
    """`debuggee("--raise")` starts the program and returns it and its port."""
    started = []

    def start(*arguments):
        command = [sys.executable, "-Xfrozen_modules=off", DEBUGGEE, *arguments]
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "PYDEVD_DISABLE_FILE_VALIDATION": "1"},
        )
        started.append(process)
        return process, int(process.stdout.readline())

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.fixture(scope="module")
def shared(debuggee):
    """The port of a program that goes on for all tests that leave it as it was, one client after another."""
    return debuggee("--thread")[1]


@pytest.fixture
def attach(debuggee, shared):
    """`attach()` attaches to the shared program, `attach("--raise")` to one of its own; `session.said` keeps output."""
    sessions = []

    def start(*arguments):
        port = debuggee(*arguments)[1] if arguments else shared
        session = Session("127.0.0.1", port, "rank 0")
        session.said = []
        session.on_output = lambda category, text: session.said.append((category, text))
        session.attach(timeout=20)
        sessions.append(session)
        return session

    yield start
    for session in sessions:
        session.disconnect()


def stopped(session):
    stop = session.wait_for_stop(20)
    assert stop is not None, "the program did not stop"
    return stop, session.stack()[0]


def test_pause_stops_the_training_thread_even_when_another_stops_first(attach):
    session = attach()
    for _ in range(3):
        session.pause()
        stop, _ = stopped(session)
        assert stop.reason == "pause"
        assert stop.thread_id == session.training_thread().id
        assert "train" in [frame.name for frame in session.stack()]
        assert session.evaluate("state.run", session.stack()[0]).value == "True"
        session.resume()
    assert {thread.name for thread in session.threads()} == {"MainThread", "background"}


def test_line_breakpoint_with_a_condition_stops_only_where_it_holds(attach):
    session = attach()
    made = session.set_breakpoint(DEBUGGEE, LINES["state.steps = number"], "number % 7 == 3")
    assert made.verified
    for hits in (1, 2):
        stop, frame = stopped(session)
        assert (stop.reason, frame.name, frame.line) == ("breakpoint", "step", LINES["state.steps = number"])
        assert int(session.evaluate("number", frame).value) % 7 == 3
        assert session.breakpoints.get(made.number).hits == hits
        session.resume()


def test_temporary_breakpoint_stops_once(attach):
    session = attach()
    session.set_breakpoint(DEBUGGEE, LINES["state.steps = number"], temporary=True)
    stopped(session)
    assert list(session.breakpoints) == []
    session.resume()
    assert session.wait_for_stop(0.3) is None


def test_function_breakpoint_stops_in_every_function_of_the_name(attach):
    session = attach("--thread")  # pydevd alone looks for those of its first client only
    session.set_function_breakpoint("scale", "value > 2")
    stop, frame = stopped(session)
    assert (stop.reason, frame.name) == ("function breakpoint", "scale")
    assert int(session.evaluate("value", frame).value) > 2


def test_a_breakpoint_that_cannot_be_is_told_in_words(attach):
    made = attach().set_breakpoint("/nowhere/train.py", 3)
    assert not made.verified
    assert "does not exist" in made.message


def test_steps_go_in_over_and_out(attach):
    session = attach()
    session.set_breakpoint(DEBUGGEE, LINES["doubled = scale(number)"])
    stopped(session)
    session.clear_breakpoints()
    places = []
    for command in ("stepIn", "next", "stepOut", "next"):
        session.resume(command)
        stop, frame = stopped(session)
        assert stop.reason == "step"
        places.append((frame.name, frame.line))
    assert places == [
        ("scale", LINES["product = value * factor"]),
        ("scale", LINES["return product, factor"]),
        ("step", LINES["doubled = scale(number)"]),
        ("step", LINES['text = f"step {number}"']),
    ]


def test_jump_moves_the_next_line_and_says_why_it_cannot(attach):
    session = attach()
    session.set_breakpoint(DEBUGGEE, LINES["state.steps = number"])
    stopped(session)
    session.clear_breakpoints()
    session.jump(DEBUGGEE, LINES["doubled = scale(number)"])
    assert stopped(session)[1].line == LINES["doubled = scale(number)"]
    with pytest.raises(DapError, match="line"):
        session.jump(DEBUGGEE, LINES["number = 0"])
    assert session.stop is not None
    assert session.evaluate("number", session.stack()[0]).value.isdecimal()


def test_evaluate_gives_values_whole_runs_statements_and_brings_what_they_print(attach):
    session = attach()
    session.set_breakpoint(DEBUGGEE, LINES["state.steps = number"])
    _, frame = stopped(session)
    assert session.evaluate("'a\\n' + 'b' * 100_000", frame).value == "a\n" + "b" * 100_000
    assert session.evaluate("text = 'changed'; print('hello', number)", frame).value == ""
    assert session.evaluate("text", frame).value == "changed"
    assert "".join(text for category, text in session.said if category == "stdout").startswith("hello ")
    locals_ = session.variables(session.scopes(frame)[0].reference)
    assert {"number", "doubled", "text"} <= {variable.name for variable in locals_}


def test_what_evaluation_raises_is_told_without_its_traceback(attach):
    session = attach()
    session.pause()
    _, frame = stopped(session)
    for expression, message in [
        ("undefined", "NameError: name 'undefined' is not defined"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("x x", "SyntaxError: invalid syntax"),
        ("raise KeyError('a')", "KeyError: 'a'"),
        ("raise ValueError('one\\ntwo')", "ValueError: one\ntwo"),
    ]:
        with pytest.raises(DapError) as caught:
            session.evaluate(expression, frame)
        assert str(caught.value) == message


def test_completions_know_the_frame(attach):
    session = attach()
    session.set_breakpoint(DEBUGGEE, LINES["state.steps = number"])
    _, frame = stopped(session)
    assert "number" in session.completions("num", 3, frame)
    assert "steps" in session.completions("x = state.st", 12, frame)


def test_running_thread_gives_a_sample_of_its_stack_and_no_values(attach):
    session = attach()
    names = [frame.name for frame in session.stack()]
    assert names[-2:] == ["main", "<module>"]
    with pytest.raises(DapError):
        session.evaluate("state", session.stack()[0])
    with pytest.raises(DapError, match="rank 0 is running"):
        session.resume("next")


def test_uncaught_exception_stops_with_frames_and_the_end_is_told(attach):
    session = attach("--raise")
    session.pause()
    stopped(session)
    session.evaluate("state.run = False", session.stack()[0])
    session.resume()
    stop, frame = stopped(session)
    assert (stop.reason, stop.text, stop.description) == ("exception", "ValueError", "planted")
    assert (frame.name, session.evaluate("cause", frame).value) == ("fail", "planted")
    information = session.exception_info()
    assert (information.type, information.message) == ("ValueError", "planted")
    assert "raise ValueError(cause)" in information.trace
    session.resume()
    with pytest.raises(RankEnded):
        session.wait_for_stop(20)
    assert session.ended
    with pytest.raises(RankEnded):
        session.threads()


def test_a_killed_process_ends_the_session(debuggee):
    process, port = debuggee()
    session = Session("127.0.0.1", port, "rank 0")
    session.attach(timeout=20)
    changes = []
    session.on_change = lambda: changes.append(session.ended)
    process.kill()
    with pytest.raises(RankEnded):
        session.wait_for_stop(20)
    wait_for(lambda: changes and changes[-1], what="the change to be told")
    session.disconnect()


def test_breakpoints_outlive_a_reattach(attach):
    session = attach()
    session.set_breakpoint(DEBUGGEE, LINES["state.steps = number"])
    stopped(session)
    session.disconnect()
    session.attach(timeout=20)
    stop, frame = stopped(session)
    assert (stop.reason, frame.line) == ("breakpoint", LINES["state.steps = number"])


def test_nobody_at_the_port_is_an_error_in_words(debuggee):
    process, port = debuggee()
    process.kill()
    process.wait()
    with pytest.raises(DapError, match=f"nobody answers at 127.0.0.1:{port}"):
        Session("127.0.0.1", port).attach(timeout=5)
