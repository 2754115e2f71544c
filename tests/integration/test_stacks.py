"""All ranks of real jobs at once: where they are, without stopping them and also when one of them cannot answer."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from raytrain_debug.across.ask import Address, ask_all
from raytrain_debug.across.stacks import read_sample
from raytrain_debug.dap.asking import ask_through_gateway
from raytrain_debug.errors import ControlError, DapError
from tests.conftest import REPOSITORY, TARGETS, wait_for
from tests.dormant import dormant_ranks
from tests.integration import test_nodes as nodes
from tests.integration.test_lifecycle import interpreter

two_nodes = nodes.two_nodes  # a fixture
STUCK = TARGETS / "stuck.py"
SLEEPS = "import time\nprint('here', flush=True)\ndef work():\n    time.sleep(1000)\nwork()\n"
HOLDS_THE_LOCK = "import ctypes\nprint('here', flush=True)\nctypes.PyDLL(None).sleep(1000)\n"
SPINS = "print('here', flush=True)\ndef spin():\n    n = 0\n    while True:\n        n += 1\nspin()\n"


def command(cwd, *arguments, check=True, python=sys.executable, **env):
    """What `python -m raytrain_debug ARGUMENTS` prints in the job's directory."""
    done = subprocess.run(
        [python, "-m", "raytrain_debug", *arguments],
        cwd=cwd,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert not check or done.returncode == 0, done.stderr
    return done.stdout if check else done


def line_of(text):
    """The number of the line of stuck.py that has `text`."""
    return next(number for number, line in enumerate(STUCK.read_text().splitlines(), 1) if text in line)


def stuck_job(launch, how, *options, ranks=3):
    job = launch("--nproc-per-node", str(ranks), *options, STUCK, how)
    for rank in range(ranks):
        job.wait_output(f"rank {rank} is stuck")
    return job


def test_one_rank_is_elsewhere_while_the_others_wait_in_a_collective(launch):
    job = stuck_job(launch, "load", "--hang-after", "2")

    def groups():
        found = json.loads(command(job.cwd, "stacks", "--json"))["groups"]
        return found if [group["waiting_in"] for group in found] == ["all_reduce", None] else None

    waiting, elsewhere = wait_for(groups, 20, "ranks 0 and 2 to wait in all_reduce")
    assert (waiting["ranks"], elsewhere["ranks"]) == ([0, 2], [1])
    assert [frame["function"] for frame in waiting["frames"]] == ["<module>", "train", "reduce_mean"]
    assert waiting["frames"][-1] == {
        "file": str(STUCK),
        "line": line_of("dist.all_reduce(value)"),
        "function": "reduce_mean",
    }
    assert elsewhere["frames"][-1]["function"] == "load_batch"

    tree = command(job.cwd, "stacks")
    assert f"├─ 0,2  train  {STUCK}:" in tree
    assert "waits in all_reduce" in tree
    assert "distributed_c10d.py" not in tree
    assert "raytrain_debug/shim" not in command(job.cwd, "stacks", "--library", "--threads")
    assert "distributed_c10d.py" in command(job.cwd, "stacks", "--library")
    assert all(len(line) <= 50 for line in command(job.cwd, "stacks", COLUMNS="50").splitlines())
    assert command(job.cwd, "stacks", "--ranks", "1").startswith("1  <module>")
    assert {rank["state"] for rank in job.status().values()} == {"dormant"}

    hang = json.loads(wait_for(lambda: job.paths.hang.exists() and job.paths.hang.read_text(), 20, "hang.json"))
    assert hang["verdict"] == (
        f"ranks 0, 2 wait in all_reduce at {STUCK}:{line_of('dist.all_reduce(value)')}; "
        f"rank 1 is in load_batch at {STUCK}:{line_of('time.sleep(1000)')}"
    )
    assert [group["ranks"] for group in hang["groups"]] == [[0, 2], [1]]
    job.wait_output("look closer: python -m raytrain_debug attach --rank 1", 10)
    time.sleep(1)
    assert job.output.count("no rank has moved") == 1
    assert "rank 1 has begun 4, ranks 0, 2 have begun 5" in job.output

    values = json.loads(command(job.cwd, "print", "loss.item()", "--json"))
    assert values["groups"][0] == {"ranks": [1], "value": {"$float": "nan"}}
    assert values["groups"][1] == {"ranks": [0, 2], "value": 0.25}
    assert values["errors"] == []
    at_the_top = json.loads(command(job.cwd, "print", "value", "--frame", "0", "--json"))
    assert at_the_top["errors"] == [{"ranks": [1], "error": "NameError: name 'value' is not defined"}]
    weights = json.loads(command(job.cwd, "print", "model.module.weight", "--json"))["groups"]
    assert [group["ranks"] for group in weights] == [[0, 1, 2]]
    assert weights[0]["value"]["shape"] == [10, 64]
    assert "values" not in weights[0]["value"]
    assert "▄×▄" in command(job.cwd, "print", "loss")
    nobody = command(job.cwd, "print", "nowhere", check=False)
    assert (nobody.returncode, "0-2  NameError" in nobody.stdout) == (1, True)
    late = command(job.cwd, "print", "__import__('time').sleep(60)", "--timeout", "0.3", check=False)
    assert "0-2  the expression did not end within 0.3 s" in late.stdout
    assert "is no expression" in command(job.cwd, "print", "loss =", check=False).stderr
    assert "0-2  None" in command(job.cwd, "print", "breakpoint()")
    assert "waits for a debugger" not in job.output

    session = job.session(1)
    try:
        assert json.loads(command(job.cwd, "print", "rank", "--json"))["how"]["1"] == "sampled"
    finally:
        session.disconnect()


def test_a_paused_rank_is_read_as_it_stands(launch):
    job = stuck_job(launch, "none", ranks=2)
    session = job.session(1)
    try:
        session.set_breakpoint(str(STUCK), line=line_of("return value / dist"))
        assert session.wait_for_stop(20) is not None
        found = json.loads(command(job.cwd, "stacks", "--json", "--ranks", "1"))["groups"]
        assert [(group["ranks"], group["waiting_in"]) for group in found] == [([1], "breakpoint")]
        assert [frame["function"] for frame in found[0]["frames"]] == ["<module>", "train", "reduce_mean"]
        assert found[0]["frames"][-1]["line"] == line_of("return value / dist")
        values = json.loads(command(job.cwd, "print", "float(value)", "--json"))
        assert values["how"] == {"0": "sampled", "1": "paused"}
        assert "rank 1 paused" in command(job.cwd, "print", "rank")
        # As from another machine: through the gateway, beside the one client of the rank.
        question = {"op": "evaluate", "expression": "[rank, loss.item()]"}
        answer = ask_through_gateway("127.0.0.1", job.base_port + 1, question, 5.0)
        assert (repr(answer["value"]), answer["state"]) == ("[1, nan]", "paused")
        for question, seconds in (({"op": "debug"}, 5.0), ({"op": "stacks"}, 1e9), ({"op": "stacks"}, 0)):
            with pytest.raises(DapError, match="raytrainDebugAsk needs"):
                ask_through_gateway("127.0.0.1", job.base_port + 1, question, seconds)
        assert job.status()[1]["state"] == "paused"
    finally:
        session.disconnect()


def test_backward_that_waits_for_gradients_of_others_is_named_for_its_collective(launch):
    job = stuck_job(launch, "backward", ranks=2)

    def label():
        found = json.loads(command(job.cwd, "stacks", "--json"))["groups"]
        return next((group["waiting_in"] for group in found if group["ranks"] == [0]), None)

    assert wait_for(label, 20, "rank 0 to wait in backward") == "all_reduce"
    native = command(job.cwd, "stacks", "--native", check=False)
    assert native.returncode == 0
    if "py-spy may not look" not in native.stderr:  # a container without the right to trace
        assert "c10d::" in native.stdout, native.stderr
    # The same without py-spy: another place for python, so that none lies beside it.
    python = job.cwd / "bin" / "python"
    python.parent.mkdir()
    python.symlink_to(sys.executable)
    without = command(
        job.cwd, "stacks", "--native", check=False, python=python, PATH="/nowhere", PYTHONPATH=os.pathsep.join(sys.path)
    )
    assert "no native frames: py-spy is not installed (pip install py-spy)" in without.stderr
    assert "waits in all_reduce" in without.stdout


def test_a_rank_that_cannot_answer_holds_up_no_other(tmp_path):
    with dormant_ranks(tmp_path, [SLEEPS, HOLDS_THE_LOCK, SPINS, SLEEPS]) as addresses:

        def settled():
            """What they answer once each has come to where it stays."""
            sample = read_sample(ask_all(addresses, {"op": "stacks"}, timeout=1.5))
            places = {rank: each.training.place for rank, each in sample.ranks.items()}
            functions = {rank: place.function for rank, place in places.items() if place}
            return sample if functions == {0: "work", 2: "spin", 3: "work"} else None

        sample = wait_for(settled, 30, "ranks 0, 2 and 3 to answer")
        assert sample.silent[1].startswith("no answer within 1.5 s: native code waits in it")
        assert [frame.function for frame in sample.ranks[0].training.frames] == ["<module>", "work"]


def test_ranks_that_are_gone_or_stopped_are_told_apart(tmp_path):
    with dormant_ranks(tmp_path, [SLEEPS, SLEEPS]) as addresses:
        os.kill(addresses[0].pid, signal.SIGSTOP)
        os.kill(addresses[1].pid, signal.SIGKILL)
        nowhere = Address(2, str(tmp_path / "nobody.sock"))
        ending = Address(3, str(tmp_path / "nobody.sock"), os.getpid())  # lives, and has no socket any more

        def silent():
            found = read_sample(ask_all([*addresses, nowhere, ending], {"op": "stacks"}, timeout=0.5)).silent
            return found if "stopped, by SIGSTOP" in found.get(0, "") and "has ended" in found.get(1, "") else None

        found = wait_for(silent, 10, "rank 0 to be stopped and rank 1 to be gone")
        assert "No such file" in found[2]
        assert "it is ending" in found[3]


def test_many_questions_to_a_rank_that_never_answers_do_not_block_the_asker(tmp_path):
    with dormant_ranks(tmp_path, [HOLDS_THE_LOCK, SLEEPS]) as addresses:
        wait_for(lambda: isinstance(ask_all(addresses[:1], {"op": "stacks"}, 0.3)[0], ControlError), 10, "the lock")
        many = [Address(rank, addresses[0].control, addresses[0].pid) for rank in range(10, 110)]
        answers = ask_all([*many, addresses[1]], {"op": "stacks"}, timeout=1.0)
        assert all(isinstance(answers[each.rank], ControlError) for each in many)
        assert not isinstance(answers[1], ControlError)


def test_watching_ends_with_the_job_and_prints_no_colours_into_a_pipe(launch):
    job = launch("--nproc-per-node", "2", TARGETS / "steps.py", "40", "0.2")
    job.wait_output("rank 0 trains")
    job.wait_output("rank 1 trains")
    watch = subprocess.Popen(
        [sys.executable, "-m", "raytrain_debug", "status", "--watch", "0.3"],
        cwd=job.cwd,
        env={**os.environ, "COLUMNS": "200"},  # room for all columns, however long the script's path is
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    stacks = command(job.cwd, "stacks", "--watch", "0.3", check=False)
    out, err = watch.communicate(timeout=60)
    assert watch.returncode == 0, err
    assert stacks.returncode == 0, stacks.stderr
    assert "ended" in stacks.stderr or "finished" in stacks.stderr
    assert "moves" in stacks.stdout
    assert "\x1b" not in out + stacks.stdout
    assert "collectives/s" in out, out
    assert any("0-1" in line and ("step at" in line or "all_reduce" in line) for line in out.splitlines()), out
    assert job.wait() == 0


def test_watching_a_job_with_a_stopped_rank_names_that_rank_and_says_of_none_that_it_moves(launch):
    job = stuck_job(launch, "load")
    stopped = job.status()[2]["pid"]
    os.kill(stopped, signal.SIGSTOP)

    def seen(enough, *arguments):
        """What the command prints until it is `enough`."""
        with (job.cwd / "seen.txt").open("w+") as out:
            watch = subprocess.Popen(
                [sys.executable, "-m", "raytrain_debug", *arguments],
                cwd=job.cwd,
                env={**os.environ, "COLUMNS": "250"},
                stdin=subprocess.DEVNULL,
                stdout=out,
            )
            try:
                wait_for(lambda: enough((job.cwd / "seen.txt").read_text()), 60, "what is watched")
            finally:
                watch.kill()
                watch.wait()
            return (job.cwd / "seen.txt").read_text()

    try:
        status = seen(lambda text: "others wait" in text, "status", "--watch", "0.5")
        stacks = seen(lambda text: text.count("here for") >= 4, "stacks", "--watch", "0.5", "--timeout", "0.5")
    finally:
        os.kill(stopped, signal.SIGCONT)
    blamed = [row for row in status.splitlines() if "others wait" in row]
    assert blamed
    assert all("no answer within 1 s: its process is stopped" in row for row in blamed), status
    assert "moves" not in stacks


def test_a_run_that_has_ended_is_said_so_with_the_remedy(launch):
    job = launch("--nproc-per-node", "1", TARGETS / "steps.py", "1", "0.01")
    assert job.wait() == 0
    for arguments in (["stacks"], ["print", "1"], ["stacks", "--watch"]):
        done = command(job.cwd, *arguments, check=False)
        assert done.returncode == 1
        assert "postmortem" in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize("version", ["3.10", "3.11", "3.12", "3.13"])
def test_frames_and_variables_are_read_on_every_python(version):
    done = subprocess.run(
        [interpreter(version), TARGETS / "looked_at.py"],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == "done\n", done.stderr


@pytest.mark.parametrize("arguments", [["stacks", "--ranks", "7"], ["stacks", "--ranks", "x"], ["print", "1 +"]])
def test_wrong_usage_is_exit_code_2(tmp_path, arguments):
    with dormant_ranks(tmp_path, [SLEEPS]):
        done = command(tmp_path, *arguments, check=False)
        assert done.returncode == 2, done.stderr
        assert "Traceback" not in done.stderr


@nodes.needs_namespaces
def test_ranks_of_other_nodes_answer_too_to_who_has_the_token(two_nodes):
    here, _ = two_nodes
    torchrun = ("--nnodes", "2", "--nproc-per-node", "2", "--rdzv-backend", "c10d")
    for node in two_nodes:
        own = ("--base-port", "6000", "--host", "0.0.0.0", "--rdzv-endpoint", "10.77.0.1:29400")
        node.launch(*own, *torchrun, TARGETS / "meet.py", "40", "0.05", "60")
    here.wait_output("rank 3 on node1 waits for a debugger at")

    def groups():
        found = json.loads(here.run("stacks", "--json").stdout)["groups"]
        return found if [group["waiting_in"] for group in found] == ["all_reduce", "breakpoint"] else None

    found = wait_for(groups, 20, "the other ranks to wait in all_reduce")
    assert [group["ranks"] for group in found] == [[0, 1, 2], [3]]
    values = json.loads(here.run("print", "step", "--json").stdout)
    assert values["groups"] == [{"ranks": [3], "value": 5}, {"ranks": [0, 1, 2], "value": 6}]
    assert values["how"]["3"] == "paused"
    refused = here.run("stacks", "--json", token="another secret")
    assert [group["ranks"] for group in json.loads(refused.stdout)["groups"]] == [[0, 1]]
    (error,) = json.loads(refused.stdout)["errors"]
    assert (error["ranks"], "wants a token" in error["error"]) == ([2, 3], True)
