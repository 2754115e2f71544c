"""The prompt without a rank: how a line is understood, what the table holds, source text, and the history file."""

from __future__ import annotations

import ast
import os
import stat

import pytest

from raytrain_debug.cli.prompt.commands import BY_NAME, COMMANDS, parse
from raytrain_debug.cli.prompt.completion import complete
from raytrain_debug.cli.prompt.reader import lines_of, make_private_file
from raytrain_debug.cli.prompt.source import Function, Sources, first_line_of, function_at
from raytrain_debug.cli.prompt.view import CommandError, View, without_startup
from raytrain_debug.dap.model import Frame
from raytrain_debug.dap.session import Session

PDB_NAMES = "h help w where bt u up d down l list ll longlist p pp whatis a args n next s step r return c cont continue"
MORE_PDB_NAMES = "unt until j jump b break tbreak cl clear q quit exit"


@pytest.mark.parametrize(
    ("line", "name", "argument"),
    [
        ("n", "n", ""),
        ("next", "n", ""),
        ("  p  x + 1 ", "p", "x + 1"),
        ("p -x", "p", "-x"),
        ("p (a, b)", "p", "(a, b)"),
        ("l .", "l", "."),
        ("l 3, 5", "l", "3, 5"),
        ("b train.py:31, x > 3", "b", "train.py:31, x > 3"),
        ("!n", "!", "n"),
        ("! n = 3", "!", "n = 3"),
        ("?", "h", ""),
        ("bt", "w", ""),
        # About a variable that has a command's name, which pdb gets wrong.
        ("n = 3", "!", "n = 3"),
        ("n += 3", "!", "n += 3"),
        ("p == q", "!", "p == q"),
        ("n + 1", "!", "n + 1"),
        ("n.item()", "!", "n.item()"),
        ("a, b = 1, 2", "!", "a, b = 1, 2"),
        ("c[0]", "!", "c[0]"),
        ("loss", "!", "loss"),
        ("for i in range(3): print(i)", "!", "for i in range(3): print(i)"),
    ],
)
def test_a_line_is_a_command_or_a_statement(line, name, argument):
    command, rest = parse(line)
    assert (command.name, rest) == (name, argument)


@pytest.mark.parametrize("line", ["display", "display loss", "condition 1 loss > 3", "commands 1", "interact"])
def test_a_command_of_pdb_that_is_not_here_says_what_to_type_instead(line):
    command, rest = parse(line)
    assert command.name not in BY_NAME
    with pytest.raises(CommandError, match=f"'{line.split()[0]}' is not offered here: "):
        command.run(None, rest)
    assert parse(f"{line.split()[0]} = 3")[0].name == "!"


def test_pdb_s_names_are_all_there_and_none_has_two_meanings():
    names = [name for command in COMMANDS for name in (command.name, *command.aliases)]
    assert len(names) == len(set(names)) == len(BY_NAME)
    assert set(f"{PDB_NAMES} {MORE_PDB_NAMES}".split()) <= set(names)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_every_command_is_explained_in_a_line_that_fits(command):
    assert command.summary.endswith(".")
    assert len(command.summary) <= 60


SOURCE = '''\
import functools

@functools.cache
def outer(a, /, b, *rest, c=1, **options):
    """Say nothing."""

    def inner(x):
        return x
    return inner(a)

async def later():
    pass

one = lambda y: y
'''.splitlines()


@pytest.mark.parametrize(
    ("line", "function"),
    [
        (1, None),
        (3, Function(3, 9, ("a", "b", "rest", "c", "options"))),
        (7, Function(7, 8, ("x",))),
        (8, Function(7, 8, ("x",))),
        (9, Function(3, 9, ("a", "b", "rest", "c", "options"))),
        (12, Function(11, 12, ())),
        (14, None),
    ],
)
def test_the_innermost_function_around_a_line(line, function):
    assert function_at(SOURCE, line) == function


def test_text_that_is_not_python_has_no_functions():
    assert function_at(["def f(:"], 1) is None
    assert first_line_of(["def f(:"], "f") is None


def test_the_first_line_to_run_is_after_the_docstring():
    assert first_line_of(SOURCE, "outer") == 7
    assert first_line_of(SOURCE, "inner") == 8
    assert first_line_of(['def f():', '    "only this"'], "f") == 2  # fmt: skip
    assert first_line_of(SOURCE, "nobody") is None


def test_source_files_are_read_in_their_own_encoding_and_again_when_they_change(tmp_path):
    path = tmp_path / "latin.py"
    path.write_bytes(b"# -*- coding: latin-1 -*-\nname = '\xe9'\n")
    sources = Sources(Session("127.0.0.1", 1))
    assert sources.file(str(path)) == ["# -*- coding: latin-1 -*-", "name = 'é'"]
    path.write_text("changed = 1\n")
    os.utime(path, (1, 1))
    assert sources.file(str(path)) == ["changed = 1"]
    assert sources.file(str(tmp_path / "none.py")) is None


def test_start_up_frames_are_left_out_and_never_all_of_them():
    train, main = Frame(1, "train", "/w/train.py", 3), Frame(2, "<module>", "/w/train.py", 9)
    startup = [Frame(3, "_run_code", "<frozen runpy>", 88), Frame(4, "run", "/usr/lib/python3.10/runpy.py", 9)]
    assert without_startup([train, main, *startup]) == [train, main]
    assert without_startup(startup) == startup


def test_lines_of_commands():
    assert list(lines_of(["w", "", "p 1\np 2", "  "])) == ["w", "p 1", "p 2"]


def test_the_history_is_ours_alone_or_not_used(tmp_path):
    history = tmp_path / "history"
    before = os.umask(0)
    try:
        assert make_private_file(history)
    finally:
        os.umask(before)
    assert stat.S_IMODE(history.stat().st_mode) == 0o600
    history.chmod(0o644)
    assert make_private_file(history)
    assert stat.S_IMODE(history.stat().st_mode) == 0o600
    (tmp_path / "link").symlink_to(history)
    assert not make_private_file(tmp_path / "link")
    assert not make_private_file(tmp_path)
    assert not make_private_file(tmp_path / "none" / "history")


@pytest.fixture
def view(tmp_path):
    (tmp_path / "train.py").touch()
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_it.py").touch()
    (tmp_path / ".hidden.py").touch()
    (tmp_path / "notes.txt").touch()
    return View(Session("127.0.0.1", 1, "rank 0"), "rank 0", str(tmp_path))


def test_commands_and_files_complete_also_while_the_rank_runs(view):
    assert complete(view, "unt") == (3, ["unt", "until"])
    assert complete(view, "h tb") == (2, ["tbreak"])
    assert complete(view, "b t") == (1, ["tests/", "train.py:"])
    assert complete(view, "tbreak tests/te") == (8, ["tests/test_it.py:"])
    assert complete(view, "p lo") == (2, [])
    assert complete(view, "n ") == (0, [])


def test_what_is_sent_to_the_rank_is_python(view):
    from raytrain_debug.cli.prompt.view import _SHOW

    for show in _SHOW.values():
        ast.parse(show("x  # a comment", 80), mode="eval")
        assert eval(show("'a' * 3", 80)) in ("'aaa'", "aaa")
