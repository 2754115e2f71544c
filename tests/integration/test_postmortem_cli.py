"""`postmortem`, `runs` and `status` as people and scripts run them: on made runs, and on real jobs that die."""

import json
import math
import os
import shlex
import signal
import subprocess
import sys
import textwrap

import psutil
import pytest
import torch
from safetensors.torch import save_file

from raytrain_debug import cli
from raytrain_debug.run import layout
from tests.conftest import REPOSITORY, TARGETS, wait_for
from tests.unit.made_runs import GONE, SITE, START, MadeRun, exception, this_process_as_launcher

STEPS = TARGETS / "steps.py"


def strict(text):
    """The value of strict JSON: NaN and Infinity literals are errors."""

    def refuse(literal):
        raise AssertionError(f"{literal} is no JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.fixture
def command(tmp_path, capsys, monkeypatch):
    """Runs a command in `tmp_path` and returns (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path])  # --unsafe-load adds to it

    def run(*arguments):
        try:
            code = cli.main(arguments)
        except SystemExit as exit:  # argparse
            code = exit.code
        out, err = capsys.readouterr()
        return code, out, err

    return run


@pytest.fixture
def failed(tmp_path):
    """Rank 1 of 2 raised; both had reported checkpoints."""
    made = MadeRun(tmp_path / layout.ROOT_NAME)
    for rank in range(2):
        made.started(rank, pid=GONE + rank)
        weight = torch.full((2, 2), float(rank))
        weight[0, 1] = math.nan if rank else math.inf
        directory = made.snapshot(rank)
        torch.save({"net": {"w": weight}}, directory / "model.pt")
        save_file({"b": torch.tensor([1.0, 3.0])}, directory / "extra.safetensors")
        (directory / "readme.txt").write_text("x")
        made.reported(rank, 0, {"loss": 1.0}, made.kept(rank))
        made.reported(rank, 1, {"loss": math.nan if rank else 0.5})
    made.died(1, exception(), pid=GONE + 1)
    made.ended(1, 1, pid=GONE + 1)
    made.ended(0, None, "SIGTERM", caused=True, pid=GONE)
    made.write(exit_code=1, launcher=this_process_as_launcher(alive=False))
    return made


def test_postmortem_json_is_what_others_rely_on(failed, command):
    code, out, err = command("postmortem", "--json")
    assert (code, err) == (0, "")
    told = strict(out)
    assert told["run"] == failed.paths.id
    first = told["verdict"]["first_failure"]
    assert first == {
        "rank": 1,
        "kind": "exception",
        "exception": "ValueError: loss is nan",
        "signal": None,
        "exit_code": 1,
        "where": {"file": SITE.file, "line": 88, "function": "train_func"},
        "attempt": 0,
        "time": START + 20,
        "remedy": None,
    }
    zero, one = told["ranks"]
    assert [zero["outcome"], one["outcome"]] == ["ended with the job", "exception"]
    assert (one["rank"], one["reports"], one["last_report"]["index"]) == (1, 2, 1)
    assert one["last_report"]["metrics"] == {"loss": {"$float": "nan"}}
    checkpoint = one["checkpoint"]
    assert checkpoint["snapshot"] == str(failed.paths.rank(1).checkpoints / "0")
    assert {(file["path"], file["size"]) for file in checkpoint["files"]} >= {("readme.txt", 1)}
    tensors = {(each["file"], each["name"]): each for each in checkpoint["tensors"]}
    weight, bias = tensors["model.pt", "net.w"], tensors["extra.safetensors", "b"]
    assert (weight["shape"], weight["dtype"], weight["nan"], weight["inf"]) == ([2, 2], "float32", 1, 0)
    assert (weight["min"], weight["max"], weight["mean"], weight["first_bad"]) == (1.0, 1.0, 1.0, [0, 1])
    assert (bias["min"], bias["max"], bias["mean"], bias["nan"]) == (1.0, 3.0, 2.0, 0)
    assert zero["checkpoint"]["tensors"][1]["inf"] == 1
    assert checkpoint["unreadable"] == []


def test_postmortem_of_chosen_ranks_without_tensors(failed, command):
    code, out, _ = command("postmortem", failed.paths.id[:-1], "--rank", "0", "--no-tensors", "--json")
    (rank,) = strict(out)["ranks"]
    assert (code, rank["rank"], rank["checkpoint"]["tensors"]) == (0, 0, [])
    assert len(rank["checkpoint"]["files"]) == 3


def test_the_summary_and_a_report_of_an_index_are_in_the_json(failed, command):
    told = strict(command("postmortem", "--json", "--report", "0")[1])
    assert "loss is NaN on rank 1 since report 1." in told["verdict"]["summary"]
    one = told["ranks"][1]
    assert (one["report"]["index"], one["last_report"]["index"]) == (0, 1)
    assert one["report"]["metrics"] == {"loss": 1.0}
    assert one["bad_metrics"] == [{"metric": "loss", "since": 1, "value": {"$float": "nan"}}]
    assert (one["checkpoint"]["report"], one["checkpoint"]["health"]) == (0, "not finite")
    assert "1 NaN in net.w" in one["checkpoint"]["why"]
    histogram = one["checkpoint"]["tensors"][0]["histogram"]
    assert sum(histogram["counts"]) == 2
    told = strict(command("postmortem", "--json", "--report", "1")[1])
    assert [rank["checkpoint"] for rank in told["ranks"]] == [None, None]


def test_a_pipe_gets_whole_lines(failed, command):
    code, out, _ = command("postmortem")
    lines = out.split("\n")
    assert code == 0
    assert lines[0].startswith("Rank 1 failed first with ValueError: loss is nan at train.py:88 in train_func")
    assert "Rank 0 was ended by the launcher in consequence. Both ranks reported twice" in lines[0]
    assert any(line.endswith(str(failed.paths.rank(0).checkpoints / "0")) for line in lines)
    assert not any(line.endswith(" ") for line in lines)


def test_a_file_name_that_is_no_utf_8_breaks_nothing(tmp_path, command):
    made = MadeRun(tmp_path / layout.ROOT_NAME, world_size=1)
    made.started(0)
    directory = made.snapshot(0)
    try:
        (directory / os.fsdecode(b"odd\xff.txt")).write_text("x")
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    made.reported(0, checkpoint=made.kept(0))
    made.write()
    code, out, err = command("postmortem", "--json")
    (file,) = strict(out)["ranks"][0]["checkpoint"]["files"]
    assert (code, err, os.fsencode(file["path"])) == (0, "", b"odd\xff.txt")
    assert "odd\\udcff.txt" in command("postmortem")[1]


def test_a_refused_checkpoint_is_told_and_loaded_only_with_the_flag(tmp_path, command):
    # The class lies beside the script, as in a project; loading it leaves a trace.
    project = tmp_path / "project"
    project.mkdir()
    (project / "my_settings.py").write_text("class Settings:\n    pass\n")
    made = MadeRun(tmp_path / layout.ROOT_NAME, world_size=1)
    made.started(0)
    save = "import my_settings, torch, sys; torch.save({'w': torch.ones(2), 's': my_settings.Settings()}, sys.argv[1])"
    subprocess.run([sys.executable, "-c", save, made.snapshot(0) / "m.pt"], cwd=project, check=True, timeout=60)
    made.reported(0, checkpoint=made.kept(0))
    made.write()
    record = made.paths.record
    record.write_text(record.read_text().replace('"/home/me/project"', json.dumps(str(project))))

    code, out, _ = command("postmortem", "--json")
    checkpoint = strict(out)["ranks"][0]["checkpoint"]
    assert (code, checkpoint["tensors"]) == (0, [])
    (refused,) = checkpoint["unreadable"]
    assert (refused["file"], refused["globals"]) == ("m.pt", ["my_settings.Settings"])
    assert "--unsafe-load" in refused["remedy"]
    assert "my_settings" not in sys.modules
    _, out, _ = command("postmortem")
    assert "safe loading refuses it: it holds objects of my_settings.Settings" in out

    try:
        _, out, _ = command("postmortem", "--json", "--unsafe-load")
        checkpoint = strict(out)["ranks"][0]["checkpoint"]
        assert (checkpoint["tensors"][0]["name"], checkpoint["unreadable"]) == ("w", [])
    finally:
        sys.modules.pop("my_settings", None)


@pytest.mark.parametrize("zipped", [True, False])
def test_what_a_checkpoint_needs_of_the_script_itself_is_told_and_the_remedy_works(tmp_path, command, zipped):
    made = MadeRun(tmp_path / layout.ROOT_NAME, world_size=1)
    made.started(0)
    define = "class Settings:\n    pass\n"
    save = f"torch.save({{'w': torch.ones(2), 's': Settings()}}, sys.argv[1], _use_new_zipfile_serialization={zipped})"
    script = tmp_path / "train.py"
    script.write_text(f"import sys, torch\n{define}{save}\n")
    subprocess.run([sys.executable, script, made.snapshot(0) / "m.pt"], check=True, timeout=60)
    made.reported(0, checkpoint=made.kept(0))
    made.write()
    _, out, _ = command("postmortem", "--json", "--unsafe-load")
    (fault,) = strict(out)["ranks"][0]["checkpoint"]["unreadable"]
    assert fault["reason"].startswith("cannot be loaded: Settings: defined in the training script itself")
    (tmp_path / "parts.py").write_text(define)
    typed = fault["remedy"][fault["remedy"].index("python -c ") :].removeprefix("python ")
    done = subprocess.run(
        [sys.executable, *shlex.split(typed)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "cannot be loaded" not in done.stdout
    assert "w       float32  2" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("postmortem", "nope"), 1, "no run 'nope'"),
        (("postmortem", "--rank", "7"), 2, "rank 7 is not in this job of 2"),
        (("postmortem", "--rank", "x"), 2, "does not name ranks"),
        (("postmortem", "--report", "9"), 2, "reports go from 0 to 1"),
        (("status", "--run-root", "elsewhere"), 1, "no run is recorded in elsewhere"),
        (("runs", "--nonsense"), 2, "--nonsense"),
    ],
)
def test_mistakes_are_told_in_words(failed, command, arguments, code, words):
    found, out, err = command(*arguments)
    assert (found, out) == (code, "")
    assert words in err
    assert "Traceback" not in err


def test_runs_lists_all_the_newest_last_torn_ones_included(failed, tmp_path, command):
    first = failed.paths
    first.directory.rename(first.directory.parent / "20200101-000000-abcd")
    torn = MadeRun(tmp_path / layout.ROOT_NAME)
    torn.started(0)
    torn.paths.record.write_text('{"id": ')
    code, out, _ = command("runs", "--json")
    listed = strict(out)["runs"]
    assert code == 0
    assert [(run["run"], run["state"]) for run in listed] == [
        ("20200101-000000-abcd", "failed"),
        (torn.paths.id, "unknown"),
    ]
    assert listed[0]["first_failure"]["exception"] == "ValueError: loss is nan"
    assert listed[0]["size"] > 4096
    _, out, _ = command("runs")
    assert out.split("\n")[1].startswith("20200101-000000-abcd")
    assert "run.json is missing or damaged" in out.split("\n")[2]


def test_no_runs_is_said(command):
    code, out, _ = command("runs")
    assert (code, out.startswith("no run is recorded in ")) == (0, True)


def test_without_a_launcher_processes_tell_who_lives(tmp_path, command):
    """A script run without `launch`, or a launcher that was killed: pid and start time decide."""
    made = MadeRun(tmp_path / layout.ROOT_NAME)
    me = psutil.Process()
    made.started(0, pid=me.pid, create_time=me.create_time())
    made.started(1, pid=me.pid, create_time=me.create_time() - 3600)  # the pid now belongs to another process
    made.reported(0, 2)
    made.write(ended=False)
    code, out, _ = command("status", "--json")
    told = strict(out)
    assert (code, told["run"]) == (0, made.paths.id)
    zero, one = told["ranks"]
    assert {"rank", "state", "pid", "port", "reports", "last_report"} <= zero.keys()
    assert (zero["rank"], zero["state"], zero["pid"], zero["port"], zero["reports"]) == (0, "dormant", me.pid, None, 3)
    assert zero["last_report"]["metrics"] == {"loss": 0.5}
    assert (one["state"], one["port"], one["reports"], one["last_report"]) == ("lost", None, 0, None)
    _, out, _ = command("postmortem", "--no-tensors")
    assert out.startswith("The run is running. Its launcher is gone, but rank 0 lives on. Rank 1 was lost")


def test_a_zombie_is_not_alive(tmp_path, command):
    made = MadeRun(tmp_path / layout.ROOT_NAME, world_size=1)
    child = subprocess.Popen([sys.executable, "-c", ""])
    process = psutil.Process(child.pid)
    wait_for(lambda: process.status() == psutil.STATUS_ZOMBIE, 10, "a zombie")
    made.started(0, pid=child.pid, create_time=process.create_time())
    made.write(ended=False)
    _, out, _ = command("status", "--json")
    child.wait()
    assert strict(out)["ranks"][0]["state"] == "lost"


def test_a_real_job_lives_and_is_killed(launch, command):
    job = launch("--nproc-per-node", "2", STEPS, "1000", "0.1")
    live = job.wait_state("dormant", (0, 1))
    job.wait_output("rank 1 trains")
    code, out, _ = command("status", "--json")
    ranks = strict(out)["ranks"]
    assert code == 0
    assert [(rank["state"], rank["pid"], rank["port"]) for rank in ranks] == [
        ("dormant", live[0]["pid"], job.base_port),
        ("dormant", live[1]["pid"], job.base_port + 1),
    ]
    assert command("postmortem")[1].startswith("The run is running.")
    assert "running" in command("runs")[1]

    os.kill(live[1]["pid"], signal.SIGKILL)
    assert job.wait() != 0
    told = strict(command("postmortem", "--json")[1])
    first = told["verdict"]["first_failure"]
    assert (first["rank"], first["kind"], first["signal"], first["exit_code"]) == (1, "signal", "SIGKILL", None)
    assert told["ranks"][1]["outcome"] == "SIGKILL"
    ended = strict(command("status", "--json")[1])["ranks"]
    other = "failed" if told["ranks"][0]["outcome"] == "exception" else "stopped"  # whichever comes first
    assert [(rank["state"], rank["port"]) for rank in ended] == [(other, None), ("failed", None)]
    assert strict(command("runs", "--json")[1])["runs"][-1]["state"] == "failed"


def test_a_real_exception_is_told_with_its_line(launch, tmp_path, command):
    script = tmp_path / "train.py"
    script.write_text(
        textwrap.dedent(
            """
            import os, time
            if os.environ["RANK"] == "1":
                raise ValueError("bad batch 17")
            time.sleep(60)
            """
        )
    )
    job = launch("--nproc-per-node", "2", script)
    assert job.wait() == 1
    told = strict(command("postmortem", "--json")[1])
    first = told["verdict"]["first_failure"]
    assert (first["rank"], first["kind"], first["exception"]) == (1, "exception", "ValueError: bad batch 17")
    assert (first["where"]["file"], first["where"]["line"]) == (str(script), 4)
    assert [rank["outcome"] for rank in told["ranks"]] == ["ended with the job", "exception"]
    out = command("postmortem")[1]
    assert out.startswith("Rank 1 failed first with ValueError: bad batch 17 at train.py:4 in <module>")
    assert 'raise ValueError("bad batch 17")' in out


def test_a_rank_that_breaks_the_others_connections_before_it_dies_has_failed_first(launch, tmp_path, command):
    script = tmp_path / "train.py"
    script.write_text(
        textwrap.dedent(
            """
            import time, torch, torch.distributed as dist
            dist.init_process_group("gloo")
            try:
                if dist.get_rank() == 1:
                    raise ValueError("bad batch 17")
                dist.all_reduce(torch.ones(3))
            finally:
                if dist.get_rank() == 1:
                    dist.destroy_process_group()
                    time.sleep(0.3)  # the others are gone by now
            """
        )
    )
    job = launch("--nproc-per-node", "2", script)
    assert job.wait() == 1
    told = strict(command("postmortem", "--json")[1])
    assert told["verdict"]["first_failure"]["exception"] == "ValueError: bad batch 17"
    assert [rank["outcome"] for rank in told["ranks"]] == ["exception", "exception"]
    assert "Rank 0 lost its connection to rank 1 in consequence, and failed with that." in told["verdict"]["summary"]
