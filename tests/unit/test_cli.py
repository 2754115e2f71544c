"""The command line as a whole: mistakes told in words, by the command that was meant."""

import pytest

from raytrain_debug.cli import COMMANDS, main


def test_an_unknown_option_is_refused_by_its_command(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["runs", "--bogus"])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "raytrain_debug runs" in said
    assert "unrecognized arguments: --bogus" in said


@pytest.mark.parametrize("name", [command.name for command in COMMANDS])
def test_every_command_has_help(capsys, name):
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    assert "usage: python -m raytrain_debug" in capsys.readouterr().out


def test_a_crash_is_not_held_for_less_than_no_time(capsys):
    assert main(["launch", "--hold-on-crash=-1", "--no-torchrun", "train.py"]) == 2
    assert "--hold-on-crash" in capsys.readouterr().err


@pytest.mark.parametrize(("mode", "said"), [("--no-torchrun", "one process"), ("--ray", "num_workers")])
@pytest.mark.parametrize("count", ["--nproc-per-node=2", "--nnodes=2"])
def test_a_number_of_ranks_without_torchrun_is_refused_in_words(capsys, mode, said, count):
    assert main(["launch", mode, count, "train.py"]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("options", [[], ["--no-torchrun"], ["--ray"]])
def test_a_script_that_is_not_there_makes_no_run(capsys, tmp_path, monkeypatch, options):
    monkeypatch.chdir(tmp_path)
    assert main(["launch", *options, "nowhere.py"]) == 2
    assert "there is no script nowhere.py" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["postmortem", "status", "stacks"])
def test_a_run_s_name_that_no_file_can_have_is_told(capsys, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    arguments = ["--run", "x" * 300] if command == "stacks" else ["x" * 300]
    assert main([command, *arguments]) == 1
    assert "error: no run 'xxx" in capsys.readouterr().err


def test_a_working_directory_that_was_removed_is_told(capsys, tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert main(["runs"]) == 2
    assert "the working directory has been removed" in capsys.readouterr().err
