"""A debugger on a rank of a real torchrun job, through the gateway."""

from tests.conftest import TARGETS, wait_for

STEPS = TARGETS / "steps.py"
IN_STEP = 14  # the line in step() after the collective


def test_rank_is_dormant_until_attached_and_dormant_again_after(launch):
    job = launch("--nproc-per-node", "2", STEPS, "100", "0.1")
    job.wait_state("dormant", (0, 1))
    session = job.session(1)
    session.set_breakpoint(str(STEPS), line=IN_STEP)
    stop = session.wait_for_stop(20)
    assert stop is not None
    frame = session.stack()[0]
    assert (frame.name, frame.line) == ("step", IN_STEP)
    assert session.evaluate("__rank__", frame).value == "1"
    assert job.status()[1]["state"] == "paused"
    assert job.status()[0]["state"] == "dormant"
    session.disconnect()
    wait_for(lambda: job.status()[1]["state"] == "dormant", 10, "rank 1 dormant")
    assert job.wait() == 0
    assert "rank 0 done 1.0" in job.output
    assert "rank 1 done 1.0" in job.output


def test_what_a_client_asked_for_is_gone_with_it(launch, tmp_path):
    job = launch("--no-torchrun", TARGETS / "loop.py")
    job.wait_state("dormant")
    there, elsewhere = str(TARGETS), str(tmp_path / "elsewhere")
    wishes = {
        "pathMappings": [{"localRoot": elsewhere, "remoteRoot": there}],
        "variablePresentation": {"all": "hide"},
        "stopAllThreadsOnSuspend": False,
    }
    seen = []
    for arguments in (wishes, {}):
        session = job.session(**arguments)
        session.set_function_breakpoint("scale")
        stop = session.wait_for_stop(20)
        assert stop.reason == "function breakpoint"
        frame = session.stack()[0]
        shown = {variable.name for scope in session.scopes(frame) for variable in session.variables(scope.reference)}
        seen.append((frame.path, "special variables" in shown))
        session.disconnect()
        job.wait_state("dormant")
    assert seen == [(f"{elsewhere}/loop.py", False), (f"{there}/loop.py", True)]
    (job.cwd / "stop").touch()
    assert job.wait() == 0


def test_code_is_not_reloaded_once_the_client_that_wanted_it_has_gone(launch, tmp_path):
    module, script = tmp_path / "words.py", tmp_path / "train.py"
    script.write_text("import words, time\nwhile True:\n    print(words.text(), flush=True)\n    time.sleep(0.1)\n")

    def edit(word):
        module.write_text(f"def text():\n    return {word!r}\n")

    edit("one")
    job = launch("--no-torchrun", script)
    job.wait_output("one")
    session = job.session(autoReload={"enable": True, "watchDirectories": [str(tmp_path)], "pollingInterval": 0.1})
    edit("second")
    job.wait_output("second")
    session.disconnect()
    job.wait_state("dormant")
    edit("the third")
    after = job.output.count("second")
    wait_for(lambda: job.output.count("second") > after + 30, 20, "more of the same")
    assert "third" not in job.output


def test_an_exception_that_nobody_catches_stops_where_it_was_raised_and_once(launch, tmp_path):
    script = tmp_path / "train.py"
    script.write_text("def step(i):\n    raise ValueError(f'planted {i}')\n\n\nstep(3)\n")
    job = launch("--no-torchrun", "--wait", "all", script)
    session = job.session()
    stop = session.wait_for_stop(30)
    assert (stop.reason, stop.text, stop.description) == ("exception", "ValueError", "planted 3")
    frame = session.stack()[0]
    assert (frame.name, frame.line) == ("step", 2)
    assert session.evaluate("i", frame).value == "3"
    session.resume()
    assert job.wait() == 1
    assert "ValueError: planted 3" in job.output
