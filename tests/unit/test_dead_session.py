"""A dead job as a debugger sees it: threads, stacks, variables, expressions, source text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from raytrain_debug.dap.dead_session import DeadSession
from raytrain_debug.errors import RaytrainDebugError
from raytrain_debug.postmortem.dead_job import dead_job
from raytrain_debug.run.reader import load_run
from raytrain_debug.run.records import CoreRecord
from tests.dead_runs import CALLS, RAISES, SOURCE, DeadRun
from tests.unit.made_runs import GONE, START, MadeRun, exception

FAILED = 3  # the thread of rank 1


def look(run: DeadRun | MadeRun) -> DeadSession:
    return DeadSession(dead_job(load_run(run.paths, last=1)))


@pytest.fixture
def run(tmp_path: Path) -> DeadRun:
    return DeadRun(tmp_path)


@pytest.fixture
def session(run: DeadRun) -> Iterator[DeadSession]:
    made = look(run)
    yield made
    made.close()


def frames(session: DeadSession, thread: int = FAILED, **arguments: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = session.answer("stackTrace", {"threadId": thread, **arguments})["stackFrames"]
    return found


def frame_id(session: DeadSession, name: str = "step", thread: int = FAILED) -> int:
    (found,) = [frame["id"] for frame in frames(session, thread) if frame["name"] == name]
    return int(found)


def test_the_next_look_of_a_debugger_answers_what_it_still_asks_of_the_last_one_with_nothing(
    run: DeadRun, session: DeadSession, tmp_path: Path
) -> None:
    run.script.write_text("# a new first line\n" + SOURCE)  # so that the recorded text has a number, too
    old = frames(session)
    opened = session.answer("scopes", {"frameId": old[0]["id"]})["scopes"][0]["variablesReference"]
    fewer = MadeRun(tmp_path / "other")
    fewer.started(0, pid=GONE)
    fewer.ended(0, 0, pid=GONE)
    for then in (look(run), look(fewer.write(exit_code=0))):
        then.follow(session)
        assert then.answer("scopes", {"frameId": old[0]["id"]}) == {"scopes": []}
        assert then.answer("variables", {"variablesReference": opened}) == {"variables": []}
        with pytest.raises(RaytrainDebugError, match="of an earlier look at the run: choose one anew"):
            then.answer("evaluate", {"expression": "loss", "frameId": old[0]["id"], "context": "repl"})
        with pytest.raises(RaytrainDebugError, match="of an earlier look"):
            then.answer("source", {"sourceReference": 1})
        session = then
    assert session.answer("stackTrace", {"threadId": FAILED}) == {"stackFrames": [], "totalFrames": 0}
    with pytest.raises(RaytrainDebugError, match="no thread 9"):
        session.answer("stackTrace", {"threadId": 9})


def test_the_numbers_of_the_next_look_are_new_ones(run: DeadRun, session: DeadSession) -> None:
    run.script.write_text("# a new first line\n" + SOURCE)
    old = frames(session)
    then = look(run)
    then.follow(session)
    new = frames(then)
    assert not {frame["id"] for frame in old} & {frame["id"] for frame in new}
    reference = new[0]["source"]["sourceReference"]
    assert reference != old[0]["source"]["sourceReference"]
    assert then.answer("source", {"sourceReference": reference})["content"] == SOURCE
    assert "loss" in scope(then, "Locals")


def variables(session: DeadSession, reference: int) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in session.answer("variables", {"variablesReference": reference})["variables"]}


def scope(session: DeadSession, name: str, frame: str = "step", thread: int = FAILED) -> dict[str, dict[str, Any]]:
    scopes = session.answer("scopes", {"frameId": frame_id(session, frame, thread)})["scopes"]
    (reference,) = [each["variablesReference"] for each in scopes if each["name"] == name]
    return variables(session, reference)


def evaluate(session: DeadSession, expression: str, frame: str = "step", context: str = "repl", **more: Any) -> str:
    arguments = {"expression": expression, "frameId": frame_id(session, frame), "context": context, **more}
    return str(session.answer("evaluate", arguments)["result"])


def refusal(session: DeadSession, expression: str, frame: str = "step") -> str:
    with pytest.raises(RaytrainDebugError) as caught:
        evaluate(session, expression, frame)
    return str(caught.value)


# ---- threads and stacks


def test_ranks_are_threads_named_by_how_they_ended_and_other_threads_show_if_they_ran_the_users_code(
    session: DeadSession,
) -> None:
    names = [thread["name"] for thread in session.answer("threads", {})["threads"]]
    assert names == ["rank 0: ended with the job", "rank 0, loader", "rank 1: ValueError"]


def test_the_first_failure_is_an_exception_stop_and_the_one_to_look_at(session: DeadSession) -> None:
    *others, stop = session.stops()
    assert (stop["threadId"], stop["reason"]) == (FAILED, "exception")
    assert (stop["text"], stop["description"]) == ("ValueError", "loss is nan")
    assert stop["preserveFocusHint"] is False
    assert [(each["reason"], each["description"]) for each in others] == [
        ("ended", "in all_reduce"),
        ("ended", "in lock"),
    ]
    assert all(each["preserveFocusHint"] for each in others)


def test_of_very_many_ranks_those_that_raised_are_told_and_the_others_at_once(tmp_path: Path) -> None:
    made = MadeRun(tmp_path / "root", world_size=300)
    for rank in range(300):
        made.started(rank, pid=GONE + rank)
        if rank in (7, 9):
            made.died(rank, exception(), pid=GONE + rank, time=rank)
        made.ended(rank, exit_code=1 if rank in (7, 9) else None, signal="SIGTERM", caused=True, pid=GONE + rank)
    made.write(exit_code=1)
    stops = look(made).stops()
    assert [(stop["threadId"], stop["allThreadsStopped"]) for stop in stops] == [(10, False), (8, True)]


def test_other_ranks_that_raised_are_exception_stops_as_well_told_before_the_first(tmp_path: Path) -> None:
    made = MadeRun(tmp_path / "root", world_size=3)
    for rank in (0, 1, 2):
        made.started(rank, pid=GONE + rank)
        made.died(rank, exception(f"rank {rank}"), pid=GONE + rank, time=-rank)
        made.ended(rank, exit_code=1, pid=GONE + rank)
    made.write(exit_code=1)
    stops = look(made).stops()
    assert sorted(stop["threadId"] for stop in stops) == [1, 2, 3]
    assert [stop["preserveFocusHint"] for stop in stops] == [True, True, False]
    assert stops[-1]["description"] == "rank 2"


def test_the_stack_goes_from_the_raising_line_to_the_script_and_then_to_what_caused_the_exception(
    session: DeadSession, run: DeadRun
) -> None:
    stack = frames(session)
    assert [frame["name"] for frame in stack] == [
        "step",
        "_call_impl",
        "train",
        "<module>",
        "caused by KeyError: 'lr'",
        "parse",
    ]
    assert (stack[0]["line"], stack[0]["source"]["path"]) == (RAISES, str(run.script))
    assert stack[2]["line"] == CALLS
    assert stack[4]["presentationHint"] == "label"
    assert [("presentationHint" in frame["source"]) for frame in stack[:4]] == [False, True, False, False]


def test_parts_of_a_stack_have_the_same_frames_as_the_whole(session: DeadSession) -> None:
    whole = frames(session)
    assert frames(session, startFrame=0, levels=1) + frames(session, startFrame=1, levels=19) == whole
    assert frames(session, startFrame=6) == []
    assert session.answer("stackTrace", {"threadId": FAILED, "levels": 1})["totalFrames"] == len(whole)


def test_a_rank_without_a_core_stands_where_it_last_reported(tmp_path: Path) -> None:
    made = MadeRun(tmp_path / "root")
    made.started(0)
    made.reported(0, 4)
    made.ended(0, exit_code=None, signal="SIGKILL")
    made.started(1)
    made.ended(1)
    made.write(exit_code=1)
    session = look(made)
    assert [each["name"] for each in session.answer("threads", {})["threads"]] == [
        "rank 0: SIGKILL",
        "rank 1: finished",
    ]
    (frame,) = frames(session, 1)
    assert (frame["name"], frame["line"]) == ("train_func (last report)", 88)
    assert frames(session, 2) == []
    *_, stop = session.stops()
    assert (stop["threadId"], stop["reason"], stop["description"]) == (1, "ended", "SIGKILL")
    assert scope(session, "Last report", frame["name"], 1)["index"]["value"] == "4"


def test_a_core_of_an_earlier_attempt_is_a_thread_of_its_own(tmp_path: Path) -> None:
    made = MadeRun(tmp_path / "root", world_size=1)
    made.started(0, pid=GONE)
    made.died(0, exception("first try"), pid=GONE)
    made.ended(0, exit_code=1, pid=GONE)
    made.started(0, pid=GONE + 1, attempt=1)
    made.ended(0, pid=GONE + 1, attempt=1)
    made.write(attempt=1)
    names = [each["name"] for each in look(made).answer("threads", {})["threads"]]
    assert names[:2] == ["rank 0: finished", "rank 0, attempt 0: ValueError"]


def test_a_core_of_an_earlier_attempt_is_not_taken_for_that_of_a_process_whose_end_nobody_saw(tmp_path: Path) -> None:
    made = MadeRun(tmp_path / "root")
    made.started(0, pid=GONE)
    made.died(0, exception("first try"), pid=GONE)
    made.ended(0, exit_code=1, pid=GONE)
    made.started(0, pid=GONE + 1, attempt=1)
    made.write(ended=False, attempt=1)
    names = [each["name"] for each in look(made).answer("threads", {})["threads"]]
    assert names[:2] == ["rank 0: lost", "rank 0, attempt 0: ValueError"]


def test_a_run_that_left_nothing_has_no_threads(tmp_path: Path) -> None:
    made = MadeRun(tmp_path / "root", world_size=0)
    made.paths.record.write_text("{")
    session = look(made)
    assert session.answer("threads", {}) == {"threads": []}
    assert session.stops() == []


def test_the_exception_is_told_with_its_notes_its_cause_and_its_traceback(session: DeadSession) -> None:
    told = session.answer("exceptionInfo", {"threadId": FAILED})
    assert (told["exceptionId"], told["description"]) == ("ValueError", "loss is nan\nin batch 2")
    assert told["details"]["stackTrace"].startswith("Traceback")
    assert told["details"]["innerException"][0]["message"] == "KeyError: 'lr'"
    with pytest.raises(RaytrainDebugError, match="no exception"):
        session.answer("exceptionInfo", {"threadId": 1})


# ---- source


def test_a_file_that_says_the_same_is_shown_itself(session: DeadSession) -> None:
    assert "sourceReference" not in frames(session)[0]["source"]


def test_a_file_that_has_changed_is_shown_as_it_was(session: DeadSession, run: DeadRun) -> None:
    run.script.write_text("# a new first line\n" + SOURCE)
    source = frames(session)[0]["source"]
    assert (source["path"], source["origin"]) == (str(run.script), "as it ran")
    told = session.answer("source", {"sourceReference": source["sourceReference"]})
    assert told["content"] == SOURCE
    run.script.write_text(SOURCE)
    assert "sourceReference" not in frames(session)[0]["source"]


def test_a_change_that_moves_no_recorded_line_does_not_matter(session: DeadSession, run: DeadRun) -> None:
    run.script.write_text(SOURCE + "\n# a new last line\n")
    assert "sourceReference" not in frames(session)[0]["source"]


def test_a_file_that_is_not_here_is_shown_from_the_lines_that_were_kept(tmp_path: Path) -> None:
    run = DeadRun(tmp_path, with_source=False)
    (run.paths.rank(1).core_sources / "0.py").unlink()
    session = look(run)
    source = frames(session)[0]["source"]
    lines = session.answer("source", {"source": source, "sourceReference": source["sourceReference"]})["content"]
    assert lines.split("\n")[RAISES - 1] == SOURCE.split("\n")[RAISES - 1]
    assert session.answer("loadedSources", {})["sources"]


# ---- variables


def test_locals_are_as_the_core_describes_them_and_open_level_by_level(session: DeadSession) -> None:
    found = scope(session, "Locals")
    assert found["history"]["value"] == "[1, 2, …]"
    assert found["names"]["type"] == "list"
    assert found["__exception__"]["value"] == "ValueError: loss is nan"
    batch = variables(session, found["batch"]["variablesReference"])
    assert batch["'x'"]["evaluateName"] == "batch['x']"
    x = variables(session, batch["'x'"]["variablesReference"])
    assert (x["shape"]["value"], x["max"]["value"]) == ("[3, 4]", "11")
    assert x["values"]["value"].startswith("tensor([[")
    big = variables(session, found["big"]["variablesReference"])
    assert (big["nan"]["value"], big["first_bad"]["value"]) == ("2", "[3, 4]")
    assert "values" not in big
    history = variables(session, found["history"]["variablesReference"])
    assert history[""]["value"] == "98 more were not kept"
    model = variables(session, found["model"]["variablesReference"])
    assert model["weight"]["evaluateName"] == "model.weight"
    assert model["(parameters)"]["value"] == "3"


def test_every_expression_that_variables_give_evaluates_to_what_they_show(session: DeadSession) -> None:
    todo = [*scope(session, "Locals").values(), *scope(session, "Last report").values()]
    todo += [*scope(session, "Context").values(), *scope(session, "Checkpoint").values()]
    seen = 0
    while todo:
        row = todo.pop()
        if row["variablesReference"]:
            todo += variables(session, row["variablesReference"]).values()
        if "evaluateName" in row:
            evaluate(session, row["evaluateName"], context="watch")
            seen += 1
    assert seen > 30


def test_the_last_report_its_context_and_its_checkpoint_are_scopes_of_every_frame(session: DeadSession) -> None:
    for frame in ("step", "_call_impl", "train"):
        assert scope(session, "Context", frame)["world_size"]["value"] == "2"
        assert scope(session, "Last report", frame)["metrics"]["value"] == "{'loss': nan, 'step': 2}"
    files = scope(session, "Checkpoint")
    assert list(files) == ["model.pt", "nested.pt", "notes.txt"]
    tensors = variables(session, files["model.pt"]["variablesReference"])
    assert tensors["0.weight"]["value"] == "float32 [2, 2]: [[3.0, 3.0], [3.0, 3.0]]"
    facts = variables(session, tensors["0.weight"]["variablesReference"])
    assert (facts["norm"]["value"], facts["nan"]["value"]) == ("6", "0")
    (text,) = variables(session, files["notes.txt"]["variablesReference"]).values()
    assert "no format" in text["value"]


def test_a_checkpoint_that_was_not_kept_says_why(session: DeadSession) -> None:
    (row,) = scope(session, "Checkpoint", "train", 1).values()
    assert row["value"] == "no snapshot (kept: off); the script had it at /tmp/gone"


def test_variables_come_in_pages(session: DeadSession) -> None:
    scopes = session.answer("scopes", {"frameId": frame_id(session)})["scopes"]
    reference = scopes[0]["variablesReference"]
    whole = session.answer("variables", {"variablesReference": reference})["variables"]
    page = session.answer("variables", {"variablesReference": reference, "start": 2, "count": 3})["variables"]
    assert page == whole[2:5]


# ---- expressions


@pytest.mark.parametrize(
    ("expression", "result"),
    [
        ("names", "['a', 'b']"),
        ("history[1]", "2"),
        ("batch['x'].sum().item()", "66.0"),
        ("batch['x'].shape", "torch.Size([3, 4])"),
        ("model", "Linear(in_features=2, out_features=1)"),
        ("model.weight.tolist()", "[[1.0, 2.0]]"),
        ("model.in_features + 1", "3"),
        ("loss.isnan().item()", "True"),
        ("big.shape", "(1000, 1000)"),
        ("[name for name in names if name in names]", "['a', 'b']"),
        ("(lambda: len(history))()", "100"),
        ("LR", "0.1"),
        ("checkpoint['model.pt']['0.weight'].norm()", "tensor(6.)"),
        ("checkpoint['nested.pt']['model']['w'].sum() + checkpoint['nested.pt']['epoch']", "tensor(12.)"),
        ("checkpoint['nested.pt']['model.w'].shape[0]", "5"),
        ("checkpoint['notes.txt'].read_text()", "'hello'"),
        ("torch.stack([batch['x'], batch['x']]).mean().item() + math.pi - math.pi", "5.5"),
        ("metrics['step'], context['world_size'], rank", "(2, 2, 1)"),
        ("__exception__.code", "7"),
        ("type(optimizer)", "<class 'torch.optim.sgd.SGD'>"),
        ("None", ""),
    ],
)
def test_expressions_see_locals_kept_tensors_and_the_checkpoint(
    session: DeadSession, expression: str, result: str
) -> None:
    assert evaluate(session, expression) == result


def test_a_text_comes_raw_on_request_and_a_result_opens_like_a_variable(session: DeadSession) -> None:
    assert evaluate(session, "names[0]", format={"rawString": True}) == "a"
    arguments = {"expression": "{'a': [1, 2]}", "frameId": frame_id(session), "context": "watch"}
    answer = session.answer("evaluate", arguments)
    (row,) = variables(session, answer["variablesReference"]).values()
    assert (row["name"], row["value"]) == ("a", "[1, 2]")


def test_a_variable_of_the_frame_goes_before_ours_unless_only_its_description_is_left(session: DeadSession) -> None:
    assert evaluate(session, "metrics", "train") == "{'loss': 0.25}"
    assert evaluate(session, "__metrics__['step']", "train") == "2"
    assert "checkpoint of 3 files" in evaluate(session, "checkpoint")


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("big.mean()", "elements of this tensor were not kept"),
        ("history[50]", "only 2 of 100 parts were kept"),
        ("list(history)", "only 2 of 100 parts were kept"),
        ("optimizer.state", "only a description was kept: SGD(lr=0.1)"),
        ("index", "index is not among what the rank left here"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("1 +", "SyntaxError"),
        ("checkpoint['model.pth']", "there is 'model.pt'"),
        ("checkpoint['model.pt']['0.wieght']", "there is '0.weight'"),
        ("import os", "os is not imported here"),
        ("__import__('train')", "train is not imported here"),
        ("open('/etc/passwd')", "open is not among"),
        ("names = []", "names is as the rank left it"),
    ],
)
def test_what_cannot_be_evaluated_says_why(session: DeadSession, expression: str, words: str) -> None:
    assert words in refusal(session, expression)


def test_no_expression_runs_the_script(session: DeadSession, run: DeadRun) -> None:
    run.script.write_text("raise SystemExit('the script was run')")
    for expression in ("import train", "from train import parse", "__import__('builtins').__import__('train')"):
        assert "train" in refusal(session, expression)


def test_statements_keep_their_names_for_later_and_what_they_print_is_told(session: DeadSession) -> None:
    assert evaluate(session, "total = 0\nfor name in names: total += len(name)\nprint('total', total)") == ""
    assert session.printed == "total 2\n"
    assert evaluate(session, "total + 1", "train") == "3"
    assert evaluate(session, "def twice(x): return 2 * x") == ""
    assert evaluate(session, "twice(total)") == "4"
    assert "SyntaxError" in refusal_of_watch(session, "total = 3")


def refusal_of_watch(session: DeadSession, expression: str) -> str:
    with pytest.raises(RaytrainDebugError) as caught:
        evaluate(session, expression, context="watch")
    return str(caught.value)


def test_completions_know_names_and_attributes(session: DeadSession) -> None:
    def complete(text: str) -> list[str]:
        arguments = {"text": text, "column": len(text) + 1, "frameId": frame_id(session)}
        return [row["label"] for row in session.answer("completions", arguments)["targets"]]

    assert complete("nam") == ["names"]
    assert "weight" in complete("model.")
    assert complete("len(batch['x'].nor") == ["norm", "normal_"]
    assert {"names", "checkpoint", "len", "math"} <= set(complete(""))
    assert complete("nowhere.") == []


def test_without_a_frame_expressions_are_of_the_first_failure(session: DeadSession) -> None:
    assert session.answer("evaluate", {"expression": "names"})["result"] == "['a', 'b']"


def test_a_damaged_tensor_file_costs_its_tensors_only(tmp_path: Path) -> None:
    run = DeadRun(tmp_path)
    run.paths.rank(1).core_tensors.write_bytes(b"\x10\0\0\0\0\0\0\0no")
    session = look(run)
    assert "safetensors" in refusal(session, "batch['x'].sum()")
    assert evaluate(session, "names[0]") == "'a'"
    locals = scope(session, "Locals")
    x = variables(session, variables(session, locals["batch"]["variablesReference"])["'x'"]["variablesReference"])
    assert "safetensors" in x["values"]["value"]


def test_a_pickle_that_safe_loading_refuses_says_what_would_load_it(tmp_path: Path) -> None:
    import torch

    made = MadeRun(tmp_path / "root", world_size=1)
    made.started(0)
    torch.save({"path": tmp_path, "w": torch.ones(2)}, made.snapshot(0) / "odd.pt")
    made.reported(0, 0, checkpoint=made.kept(0))
    made.died(0, exception())
    made.ended(0, exit_code=1)
    made.write(exit_code=1)
    run = load_run(made.paths, last=1)
    session = DeadSession(dead_job(run))
    (frame, *_) = frames(session, 1)
    with pytest.raises(RaytrainDebugError) as caught:
        session.answer("evaluate", {"expression": "checkpoint['odd.pt']", "frameId": frame["id"]})
    assert "--unsafe-load" in caught.value.remedy
    unsafe = DeadSession(dead_job(run), unsafe=True)
    (frame, *_) = frames(unsafe, 1)
    arguments = {"expression": "checkpoint['odd.pt']['w'].sum()", "frameId": frame["id"]}
    assert unsafe.answer("evaluate", arguments)["result"] == "tensor(2.)"


# ---- whatever comes

# fmt: off
REFUSED = (
    "continue", "next", "stepIn", "stepOut", "stepBack", "reverseContinue", "pause", "goto", "gotoTargets",
    "stepInTargets", "restartFrame", "setVariable", "setExpression", "terminateThreads", "readMemory", "disassemble",
)
COMMANDS = (
    "threads", "stackTrace", "scopes", "variables", "exceptionInfo", "source", "setBreakpoints", "completions",
    "setFunctionBreakpoints", "breakpointLocations", "loadedSources", "modules", "evaluate", "cancel", "nonsense",
)
KEYS = (
    "threadId", "frameId", "variablesReference", "startFrame", "levels", "start", "count", "source", "filter",
    "sourceReference", "breakpoints", "lines", "text", "column", "expression", "context", "format",
)
# fmt: on
VALUES = st.none() | st.booleans() | st.integers(-2, 40) | st.sampled_from(["", "step", "rank"]) | st.just([{}])


@pytest.mark.parametrize("command", REFUSED)
def test_what_cannot_be_done_with_the_dead_is_refused_in_words(session: DeadSession, command: str) -> None:
    with pytest.raises(RaytrainDebugError, match=r"dead|kept"):
        session.answer(command, {"threadId": FAILED, "variablesReference": 1, "name": "x", "value": "1"})


def test_breakpoints_are_taken_and_will_not_be_hit(session: DeadSession, run: DeadRun) -> None:
    arguments = {
        "source": {"path": str(run.script)},
        "breakpoints": [{"line": 3}, {"line": RAISES}],
        "lines": [3, RAISES],
    }
    breakpoints = session.answer("setBreakpoints", arguments)["breakpoints"]
    assert [each["line"] for each in breakpoints] == [3, RAISES]
    assert all(not each["verified"] and "dead" in each["message"] for each in breakpoints)
    assert len(session.answer("setFunctionBreakpoints", {"breakpoints": [{"name": "f"}]})["breakpoints"]) == 1
    assert session.answer("setExceptionBreakpoints", {"filters": []}) == {"breakpoints": []}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> DeadSession:
    return look(DeadRun(tmp_path_factory.mktemp("dead")))


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(command=st.sampled_from(COMMANDS), arguments=st.dictionaries(st.sampled_from(KEYS), VALUES))
def test_any_arguments_get_a_body_or_words(shared: DeadSession, command: str, arguments: dict[str, Any]) -> None:
    try:
        answer: Any = shared.answer(command, arguments)
    except RaytrainDebugError as error:
        answer = {"error": str(error)}
    assert isinstance(answer, dict)
    assert answer.get("error") != ""


def test_a_core_with_an_exception_but_no_threads_shows_where_it_was_raised(tmp_path: Path) -> None:
    run = DeadRun(tmp_path)
    run.core(1, CoreRecord(START + 20, 0, GONE, exception()))
    session = look(run)
    stack = frames(session)
    assert [(frame["name"], frame["line"]) for frame in stack] == [("train_func", 88), ("train_func (last report)", 88)]
    assert evaluate(session, "__exception__.message", "train_func") == "'loss is nan'"
