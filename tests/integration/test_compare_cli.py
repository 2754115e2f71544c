"""`compare` as people and scripts run it: its words, its JSON, and the exit code that CI looks at."""

import json
import math
import sys

import pytest
import torch

from raytrain_debug import cli
from raytrain_debug.run import layout
from tests.unit.made_runs import MadeRun


def strict(text):
    """The value of strict JSON: NaN and Infinity literals are errors."""

    def refuse(literal):
        raise AssertionError(f"{literal} is no JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.fixture
def command(tmp_path, capsys, monkeypatch):
    """Runs `compare` in `tmp_path` and returns (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path])

    def run(*arguments):
        try:
            code = cli.main(("compare", *arguments))
        except SystemExit as exit:  # argparse
            code = exit.code
        return code, *capsys.readouterr()

    return run


def job(tmp_path, odd_rank=None, reports=(0,), ranks=3):
    """A run whose ranks report equal checkpoints, but for `odd_rank`; "frozen" never changes, "w" always does."""
    made = MadeRun(tmp_path / layout.ROOT_NAME, world_size=ranks)
    for rank in range(ranks):
        made.started(rank)
        for index in reports:
            state = {"w": torch.full((2, 3), float(index)), "frozen": torch.ones(4)}
            if rank == odd_rank:
                state["w"][1, 2] = math.nan
            torch.save(state, made.snapshot(rank, index) / "model.pt")
            made.reported(rank, index, {"loss": 1.0 / (index + 1)}, made.kept(rank, index))
    made.write()
    return made


def test_replicas_that_agree_exit_with_0(tmp_path, command):
    job(tmp_path)
    code, out, err = command()
    assert (code, out, err) == (0, "At report 0, ranks 0-2 agree: 2 tensors and 1 metric.\n", "")


def test_replicas_that_differ_exit_with_3_and_say_where(tmp_path, command):
    job(tmp_path, odd_rank=1, reports=(5,))
    code, out, _ = command("--report", "5")
    assert code == 3
    assert out.startswith("At report 5, ranks 0-2 differ: 1 of 2 tensors.\n")
    assert "w       rank 1 from ranks 0,2    1 of 6        0         0  1 newly NaN or Inf" in out
    assert "frozen" not in out
    code, out, _ = command("--json")
    told = strict(out)
    (found,) = told["comparisons"]
    assert (code, told["differs"], found["kind"], found["changes"]) == (3, True, "ranks", None)
    weight = next(tensor for tensor in found["tensors"] if tensor["name"] == "w")
    assert [group["sides"] for group in weight["groups"]] == [[0, 2], [1]]
    assert weight["groups"][1]["difference"]["newly_bad"] == 1
    assert weight["groups"][1]["statistics"]["first_bad"] == [1, 2]
    assert [tensor["agrees"] for tensor in found["tensors"]] == [False, True]
    assert command("--rank", "0,2")[0] == 0
    assert command("--no-tensors")[0] == 0


def test_reports_of_a_rank_tell_the_frozen_from_the_trained(tmp_path, command):
    job(tmp_path, reports=(1, 3))
    code, out, _ = command("--reports", "1,3", "--rank", "2")
    assert code == 3
    assert out.startswith("Reports 1 and 3 of rank 2 differ: 1 of 2 tensors and 1 of 1 metric. Largest relative")
    assert "Largest relative change: 2 in w." in out
    assert "Unchanged tensors (frozen, or without a gradient)\n  frozen" in out
    assert "loss  report 1 0.5; report 3 0.25" in out
    (found,) = strict(command("--reports", "1,3", "--json")[1])["comparisons"]
    assert (found["rank"], found["changes"]["unchanged"], found["changes"]["changed"]) == (0, ["frozen"], ["w"])
    assert found["changes"]["largest"] == [2.0, "w"]
    assert [side["report"] for side in found["sides"]] == [1, 3]
    assert len(strict(command("--reports", "1,3", "--rank", "all", "--json")[1])["comparisons"]) == 1


def test_two_runs(tmp_path, command):
    first, second = job(tmp_path, reports=(2,)), job(tmp_path, odd_rank=0, reports=(2,))
    one, two = first.paths.id, str(second.paths.directory)
    code, out, _ = command(one, two)
    assert code == 3
    lines = out.split("\n")
    assert lines[0].startswith(
        f"Rank 0 of runs {one} (report 2) and {second.paths.id} (report 2) differ: 1 of 2 tensors."
    )
    assert f"Rank 1 of runs {one} (report 2) and {second.paths.id} (report 2) agree: 2 tensors and 1 metric." in lines
    assert command(one, two, "--rank", "1-2")[0] == 0
    told = strict(command(one, two, "--json")[1])
    assert [each["differs"] for each in told["comparisons"]] == [True, False, False]


def test_a_tolerance_is_for_ci(tmp_path, command):
    job(tmp_path, reports=(100, 101))
    assert command("--reports", "100,101")[0] == 3
    assert command("--reports", "100,101", "--rtol", "0.02")[0] == 0
    assert command("--reports", "100,101", "--atol", "0.5")[0] == 3


def test_what_is_gone_is_said_and_is_no_difference(tmp_path, command):
    made = job(tmp_path, ranks=2)
    made.reported(0, 1, {"loss": 0.5})
    made.reported(1, 1, {"loss": 0.5})
    code, out, _ = command("--report", "1")
    assert code == 0
    assert out.startswith("At report 1, ranks 0-1 agree: 1 metric.\nranks 0-1: report 1 came without a checkpoint\n")


@pytest.mark.parametrize("width", ["60", "100"])
def test_nothing_is_cut_off_in_a_narrow_terminal(tmp_path, command, monkeypatch, width):
    job(tmp_path, odd_rank=1)
    monkeypatch.setenv("COLUMNS", width)
    _, out, _ = command()
    assert max(map(len, out.split("\n"))) <= int(width)
    assert "newly NaN or Inf" in out
    assert "…" not in out


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("a", "b", "c"), 2, "3 runs are too many"),
        (("--reports", "3"), 2, "write them as 3,9"),
        (("--reports", "0,0"), 2, "the same as itself"),
        (("--reports", "0,1", "--report", "1"), 2, "exclude each other"),
        (("--reports", "0,7"), 2, "no report 7 of rank 0"),
        (("--report", "7"), 2, "reports go from 0 to 0"),
        (("--rank", "1"), 2, "only rank 1"),
        (("--rank", "9"), 2, "rank 9 is not in this job"),
        (("--rtol", "-1"), 2, "--rtol"),
        (("nope",), 1, "no run 'nope'"),
    ],
)
def test_mistakes_are_told_in_words(tmp_path, command, arguments, code, words):
    job(tmp_path)
    found, out, err = command(*arguments)
    assert (found, out) == (code, "")
    assert words in err
    assert "Traceback" not in err
