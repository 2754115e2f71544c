"""What `configure` makes of launch.json and tasks.json: the entries, and files of every kind that it finds."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raytrain_debug.editor import configurations, edits, files, jsonc, ownership
from raytrain_debug.editor.configurations import JobSpec
from raytrain_debug.editor.files import write_configurations
from raytrain_debug.errors import LaunchJsonError, UsageError
from tests.unit.jsonc_documents import VALUES, documents, unhurried

ATTACH = "Ray Train: attach to the running job"
POSTMORTEM = "Ray Train: post-mortem"


@pytest.fixture(autouse=True)
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty workspace folder, which is the working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def job(ranks: int | None = 2, program: str = "train.py", **more: Any) -> JobSpec:
    return JobSpec(program=program, nproc_per_node=ranks, python="python3", **more)


def read(workspace: Path, name: str) -> Any:
    return jsonc.parse((workspace / ".vscode" / name).read_text("utf-8")).value


def names_of(entries: list[Any]) -> list[Any]:
    return [each.get("name") for each in entries if isinstance(each, dict)]


def names(workspace: Path, part: str = "configurations") -> list[Any]:
    return names_of(read(workspace, "launch.json").get(part, []))


def labels(workspace: Path) -> list[str]:
    return [task["label"] for task in read(workspace, "tasks.json")["tasks"]]


def put(workspace: Path, name: str, text: str | bytes) -> Path:
    path = workspace / ".vscode" / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8"))
    return path


def entry(workspace: Path, name: str) -> dict[str, Any]:
    value = read(workspace, "launch.json")
    (found,) = [each for each in value["configurations"] + value.get("compounds", []) if each["name"] == name]
    return found  # type: ignore[no-any-return]


# ---- what is written


def test_a_torchrun_job_gets_an_attach_a_rank_a_compound_that_starts_it_and_one_that_takes_it_up(
    workspace: Path,
) -> None:
    write_configurations(job(2, args=("--lr", "0.1")), workspace)
    launch = read(workspace, "launch.json")
    attach = {"type": "debugpy", "request": "attach", "justMyCode": False, "subProcess": False}
    hidden = {"hidden": True, "group": "Ray Train"}
    ranks = ["Rank 0: train.py", "Rank 1: train.py"]
    assert launch == {
        "version": "0.2.0",
        "configurations": [
            {"name": ranks[0], **attach, "connect": {"host": "127.0.0.1", "port": 5678}, "presentation": hidden},
            {"name": ranks[1], **attach, "connect": {"host": "127.0.0.1", "port": 5679}, "presentation": hidden},
            {
                "name": "Ray Train: train.py (single process)",
                **attach,
                "connect": {"host": "127.0.0.1", "port": 5678},
                "preLaunchTask": "Ray Train: launch train.py (single process)",
                "presentation": {"group": "Ray Train", "order": 2},
            },
            {
                "name": POSTMORTEM,
                **attach,
                "connect": {"host": "127.0.0.1", "port": 5677},
                "preLaunchTask": POSTMORTEM,
                "internalConsoleOptions": "openOnSessionStart",
                "presentation": {"group": "Ray Train", "order": 4},
            },
        ],
        "compounds": [
            {
                "name": "Ray Train: train.py (2 ranks)",
                "configurations": ranks,
                "preLaunchTask": "Ray Train: launch train.py (2 ranks)",
                "stopAll": True,
                "presentation": {"group": "Ray Train", "order": 1},
            },
            {
                "name": ATTACH,
                "configurations": ranks,
                "stopAll": True,
                "presentation": {"group": "Ray Train", "order": 3},
            },
        ],
    }
    tasks = read(workspace, "tasks.json")
    assert tasks["version"] == "2.0.0"
    torchrun, single, postmortem = tasks["tasks"]
    start = ["-m", "raytrain_debug", "launch", "--wait", "all", "--stop-with-debugger", "--base-port", "5678"]
    assert torchrun["label"] == launch["compounds"][0]["preLaunchTask"]
    assert (torchrun["type"], torchrun["command"]) == ("process", "python3")
    assert torchrun["args"] == [*start, "--nproc-per-node", "2", "train.py", "--lr", "0.1"]
    assert torchrun["options"] == {"cwd": "${workspaceFolder}"}
    assert torchrun["isBackground"] is True
    assert single["label"] == launch["configurations"][2]["preLaunchTask"]
    assert single["args"] == [*start, "--no-torchrun", "train.py", "--lr", "0.1"]
    assert postmortem["label"] == POSTMORTEM
    assert postmortem["args"] == ["-m", "raytrain_debug", "postmortem", "--serve", "5677", "--once"]


def test_faithful_local_mode_is_told_to_every_task_that_launches(workspace: Path) -> None:
    write_configurations(job(2, faithful=True), workspace)
    torchrun, single, _postmortem = read(workspace, "tasks.json")["tasks"]
    assert torchrun["args"][-4:] == ["--faithful", "--nproc-per-node", "2", "train.py"]
    assert single["args"][-3:] == ["--faithful", "--no-torchrun", "train.py"]
    write_configurations(job(2), workspace)
    assert "--faithful" not in str(read(workspace, "tasks.json"))


def test_the_post_mortem_is_shared_by_all_scripts_and_looks_where_runs_are_recorded(workspace: Path) -> None:
    write_configurations(job(2), workspace)
    write_configurations(job(2, "eval.py", base_port=7000, torchrun_args=("--run-root", "/data/runs")), workspace)
    assert names(workspace).count(POSTMORTEM) == 1
    assert entry(workspace, POSTMORTEM)["connect"]["port"] == 6999
    (task,) = [each for each in read(workspace, "tasks.json")["tasks"] if each["label"] == POSTMORTEM]
    assert task["args"][3:] == ["--serve", "6999", "--once", "--run-root", "/data/runs"]
    assert "Ray Train: launch eval.py (2 ranks)" in labels(workspace)


def test_a_job_on_other_machines_leaves_the_post_mortem_as_it_is(workspace: Path) -> None:
    remote = job(2, "remote.py", nnodes=2, node_hosts=("a", "b"))
    write_configurations(remote, workspace)
    assert POSTMORTEM not in names(workspace)
    write_configurations(job(2), workspace)
    before = entry(workspace, POSTMORTEM)
    write_configurations(remote, workspace)
    assert entry(workspace, POSTMORTEM) == before


def test_the_post_mortem_has_a_port_also_where_there_is_none_below_the_ranks(workspace: Path) -> None:
    write_configurations(job(2, base_port=1), workspace)
    assert entry(workspace, POSTMORTEM)["connect"]["port"] == 3


def test_without_ranks_only_the_single_process_job_is_written(workspace: Path) -> None:
    write_configurations(job(None, base_port=7000), workspace)
    assert names(workspace) == ["Rank 0: train.py", "Ray Train: train.py (single process)", POSTMORTEM]
    assert names(workspace, "compounds") == [ATTACH]
    assert labels(workspace) == ["Ray Train: launch train.py (single process)", POSTMORTEM]
    assert entry(workspace, "Ray Train: train.py (single process)")["connect"]["port"] == 7000


def test_a_module_is_launched_with_dash_m(workspace: Path) -> None:
    spec = JobSpec(module="pkg.train", nproc_per_node=1, python="python3", torchrun_args=("--max-restarts", "2"))
    write_configurations(spec, workspace)
    assert names(workspace, "compounds") == ["Ray Train: pkg.train (1 rank)", ATTACH]
    args = read(workspace, "tasks.json")["tasks"][0]["args"]
    assert args[-6:] == ["--max-restarts", "2", "--nproc-per-node", "1", "-m", "pkg.train"]


def test_several_nodes_get_one_compound_with_hosts_mappings_and_token_and_no_task(workspace: Path) -> None:
    write_configurations(job(2, nnodes=2, node_hosts=("localhost", "10.0.0.2"), base_port=6000), workspace)
    entries = [entry(workspace, f"Rank {rank}: train.py") for rank in range(4)]
    assert [(each["connect"]["host"], each["connect"]["port"]) for each in entries] == [
        ("localhost", 6000),
        ("localhost", 6001),
        ("10.0.0.2", 6002),
        ("10.0.0.2", 6003),
    ]
    for local, remote in zip(entries[:2], entries[2:], strict=True):
        assert "raytrainDebugToken" not in local
        assert "pathMappings" not in local
        assert remote["raytrainDebugToken"] == "${env:RAYTRAIN_DEBUG_TOKEN}"
        assert remote["pathMappings"] == [{"localRoot": "${workspaceFolder}", "remoteRoot": "."}]
    compound = entry(workspace, "Ray Train: train.py (4 ranks)")
    assert compound["configurations"] == [each["name"] for each in entries]
    assert "preLaunchTask" not in compound
    assert not (workspace / ".vscode" / "tasks.json").exists()


def test_a_job_that_moves_to_several_nodes_and_back_loses_and_regains_its_tasks(workspace: Path) -> None:
    write_configurations(job(2), workspace)
    before = {path.name: path.read_text() for path in (workspace / ".vscode").iterdir()}
    write_configurations(job(2, nnodes=2, node_hosts=("a", "b")), workspace)
    assert labels(workspace) == [POSTMORTEM]
    assert "Ray Train: train.py (single process)" not in names(workspace)
    assert "preLaunchTask" not in entry(workspace, "Ray Train: train.py (4 ranks)")
    write_configurations(job(2), workspace)
    tasks = json.loads(before["tasks.json"])["tasks"]
    assert sorted(read(workspace, "tasks.json")["tasks"], key=str) == sorted(tasks, key=str)
    assert entry(workspace, "Ray Train: train.py (2 ranks)")["preLaunchTask"] in labels(workspace)


def test_paths_inside_the_workspace_are_written_relative_to_it_and_others_absolute(
    workspace: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    (workspace / ".venv" / "bin").mkdir(parents=True)
    (workspace / ".venv" / "bin" / "python").symlink_to("/usr/bin/env")
    (workspace / "examples").mkdir()
    monkeypatch.chdir(workspace / "examples")
    python = str(workspace / ".venv" / "bin" / "python")
    written = write_configurations(JobSpec(program="train.py", python=python), workspace)
    assert written.spec.program == "examples/train.py"
    assert written.spec.python == "${workspaceFolder}/.venv/bin/python"
    assert str(workspace) not in (workspace / ".vscode" / "tasks.json").read_text()
    outside = tmp_path_factory.mktemp("elsewhere") / "train.py"
    assert files.located(job(program=str(outside)), workspace).program == str(outside)
    link = outside.parent / "link"
    link.symlink_to(workspace)
    assert files.located(job(program=str(workspace / "a" / "train.py")), link).program == "a/train.py"


@pytest.mark.parametrize("python", ["python3", "${command:python.interpreterPath}", "/usr/bin/python3"])
def test_a_python_by_name_by_variable_or_elsewhere_is_written_as_given(workspace: Path, python: str) -> None:
    assert files.located(JobSpec(program="train.py", python=python), workspace).python == python


@pytest.mark.parametrize(
    ("parts", "what"),
    [
        ({}, "name a script"),
        ({"program": "a.py", "module": "a"}, "name a script"),
        ({"program": "a.py", "nproc_per_node": 0}, "--nproc-per-node 0"),
        ({"program": "a.py", "nnodes": 0, "node_hosts": ()}, "--nnodes 0"),
        ({"program": "a.py", "nnodes": 2, "node_hosts": ("a", "b")}, "how many ranks"),
        ({"program": "a.py", "nnodes": 2, "nproc_per_node": 1}, "2 node"),
        ({"program": "a.py", "base_port": 0}, "ports 0 to 0"),
        ({"program": "a.py", "base_port": 65535, "nproc_per_node": 2}, "ports 65535 to 65536"),
    ],
)
def test_a_job_that_cannot_be_is_refused_with_a_remedy(parts: dict[str, Any], what: str) -> None:
    with pytest.raises(UsageError, match=what) as caught:
        JobSpec(**parts)
    assert caught.value.remedy


def test_the_matcher_knows_the_launchers_lines() -> None:
    background = configurations.PROBLEM_MATCHER["background"]
    problem = configurations.PROBLEM_MATCHER["pattern"]
    assert isinstance(background, dict)
    assert isinstance(problem, dict)
    begins, ends, pattern = background["beginsPattern"], background["endsPattern"], problem["regexp"]
    assert re.search(begins, "raytrain_debug: starting")
    assert re.search(ends, "raytrain_debug: gateway ready on 127.0.0.1:5678-5681 (run 20260131-142501-3fa9)")
    faults = [
        "raytrain_debug: error: port 5678 is taken by nc -l 5678 (pid 17)",
        "python -m raytrain_debug launch: error: unrecognized arguments: --nproc",
        "/usr/bin/python3: No module named raytrain_debug",
    ]
    for line in faults:
        match = re.search(pattern, line)
        assert match is not None
        assert match.group(problem["file"]) == "raytrain_debug"
        assert match.group(problem["message"]) == line
        assert not re.search(ends, line)
    fine = ["raytrain_debug: rank 1 waits for a debugger", "ModuleNotFoundError: No module named 'x'", "error: 3"]
    assert not any(re.search(pattern, line) for line in fine)


# ---- running it again


def test_a_second_run_writes_nothing(workspace: Path) -> None:
    write_configurations(job(3), workspace)

    def files() -> dict[Path, tuple[int, int]]:
        found = {path: os.stat(path) for path in (workspace / ".vscode").iterdir()}
        return {path: (status.st_ino, status.st_mtime_ns) for path, status in found.items()}  # reading changes others

    before = files()
    written = write_configurations(job(3), workspace)
    assert not any(change.changed for change in written.changes)
    assert files() == before


def test_a_dry_run_writes_nothing_and_shows_the_difference(workspace: Path) -> None:
    written = write_configurations(job(1), workspace, dry_run=True)
    assert not (workspace / ".vscode").exists()
    assert '+            "name": "Rank 0: train.py",' in written.changes[1].diff()


def test_fewer_ranks_remove_what_was_generated_and_only_that(workspace: Path) -> None:
    write_configurations(job(4), workspace)
    path = workspace / ".vscode" / "launch.json"
    renamed = path.read_text().replace('"name": "Rank 3: train.py"', '"name": "My rank 3"', 1)
    theirs = [
        '{"name": "Rank 9: train.py", "type": "debugpy", "request": "attach"}, // by hand',
        '{"name": "Rank 3: other.py", "presentation": {"group": "Ray Train"}},',
        '{"name": "Rank 3b: train.py", "presentation": {"group": "Ray Train"}},',
    ]
    path.write_text(renamed.replace('"configurations": [', '"configurations": [ // mine\n' + "\n".join(theirs), 1))
    write_configurations(job(2), workspace)
    text = path.read_text()
    assert all(each in text for each in theirs)
    assert names(workspace) == [
        "Rank 9: train.py",
        "Rank 3: other.py",
        "Rank 3b: train.py",
        "Rank 0: train.py",
        "Rank 1: train.py",
        "My rank 3",
        "Ray Train: train.py (single process)",
        POSTMORTEM,
    ]
    assert names(workspace, "compounds") == ["Ray Train: train.py (2 ranks)", ATTACH]
    assert labels(workspace)[0] == "Ray Train: launch train.py (2 ranks)"
    assert "rank 2" not in text


def test_more_ranks_come_behind_the_ones_there_are_and_the_text_is_as_if_written_at_once(workspace: Path) -> None:
    write_configurations(job(2), workspace)
    write_configurations(job(3), workspace)
    grown = (workspace / ".vscode" / "launch.json").read_text()
    shutil.rmtree(workspace / ".vscode")
    write_configurations(job(3), workspace)
    assert read(workspace, "launch.json") == json.loads(grown)
    assert names(workspace)[2] == "Rank 2: train.py"


def test_what_the_user_made_of_our_entries_stays(workspace: Path) -> None:
    write_configurations(job(2), workspace)
    path = workspace / ".vscode" / "launch.json"
    text = path.read_text()
    text = text.replace('"justMyCode": false', '"justMyCode": true, // mine\n"showReturnValue": true', 1)
    text = text.replace('"hidden": true, ', "", 1).replace('"Rank 1: train.py"],', '"Rank 1: train.py", "Browser"],', 1)
    path.write_text(text.replace('"stopAll": true', '"stopAll": false', 1))
    tasks = workspace / ".vscode" / "tasks.json"
    tasks.write_text(tasks.read_text().replace('Folder}"},', 'Folder}", "env": {"A": "1"}},', 1))
    write_configurations(job(4, base_port=7000), workspace)
    rank = entry(workspace, "Rank 0: train.py")
    assert (rank["justMyCode"], rank["showReturnValue"]) == (True, True)
    assert rank["connect"]["port"] == 7000
    assert rank["presentation"] == {"group": "Ray Train"}
    assert '"justMyCode": true, // mine\n' in path.read_text()
    compound = entry(workspace, "Ray Train: train.py (4 ranks)")
    assert compound["stopAll"] is False
    assert compound["configurations"][3:] == ["Rank 3: train.py", "Browser"]
    task = read(workspace, "tasks.json")["tasks"][0]
    assert task["options"] == {"cwd": "${workspaceFolder}", "env": {"A": "1"}}
    assert "7000" in task["args"]


def test_scripts_of_the_same_name_keep_apart_in_whatever_order(workspace: Path) -> None:
    write_configurations(job(2, "a/train.py"), workspace)
    write_configurations(job(1, "b/train.py"), workspace)
    write_configurations(job(1, "train.py"), workspace)
    expected = [f"Ray Train: {name}" for name in ("train.py (2 ranks)", "b/train.py (1 rank)", "./train.py (1 rank)")]
    assert [name for name in names(workspace, "compounds") if name != ATTACH] == expected
    before = (workspace / ".vscode" / "tasks.json").read_bytes()
    for spec in (job(1, "train.py"), job(1, "b/train.py"), job(2, "a/train.py")):
        write_configurations(spec, workspace)
    assert (workspace / ".vscode" / "tasks.json").read_bytes() == before
    assert entry(workspace, ATTACH)["configurations"] == ["Rank 0: train.py", "Rank 1: train.py"]


# ---- files as they are found

FOREIGN = {
    "as VS Code makes it": """{
    // Use IntelliSense to learn about possible attributes.
    // For more information, visit: https://go.microsoft.com/fwlink/?linkid=830387
    "version": "0.2.0",
    "configurations": [
        {
            "name": "Python Debugger: Current File",
            "type": "debugpy",
            "request": "launch",
            "program": "${file}",
            "console": "integratedTerminal"
        }
    ]
}""",
    "tabs and trailing commas": '{\n\t"configurations": [\n\t\t{"name": "a",},\n\t\t/* b */\n\t],\n\t"inputs": [],\n}',
    "comments everywhere": (
        '/* 0 */ { // 1\n/* 2 */ "configurations" /* 3 */ : /* 4 */ [ // 5\n/* 6 */ { /* 7 */ "name" : "a" /* 8 */ }'
        " /* 9 */ // 10\n // 11\n ] /* 12 */ // 13\n} // 14\n/* 15 */"
    ),
    "one line": '{"version":"0.2.0","configurations":[{"name":"a","x":[1,2]}],"inputs":[]}',
    "two spaces": '{\n  "compounds": [\n    {\n      "name": "c",\n      "configurations": ["a"]\n    }\n  ]\n}\n',
    "hugging brackets": '{\n    "configurations": [{\n        "name": "a"\n    }, {\n        "name": "b"\n    }]\n}\n',
    "comma first": '{ "configurations":\n  [ {"name": "a"}\n  , {"name": "b"}\n  ]\n, "inputs": []\n}\n',
    "no array yet": '{\n    // nothing\n    "version": "0.2.0" // so far\n}\n',
    "an empty object": "{}",
    "duplicate keys": '{"configurations": [{"name": "dead"}],\n"configurations": [\n  {"name": "a"}\n]}',
    "odd entries": '{"configurations": [null, 1, "x", {"name": 5}, {"name": "a"}, {"name": "a"}]}',
}


@pytest.mark.parametrize("bom", ["", "\ufeff"], ids=["", "bom"])
@pytest.mark.parametrize("eol", ["\n", "\r\n"], ids=["lf", "crlf"])
@pytest.mark.parametrize("kind", FOREIGN)
def test_foreign_text_stays_to_the_byte_in_every_kind_of_file(workspace: Path, kind: str, eol: str, bom: str) -> None:
    text = bom + FOREIGN[kind].replace("\n", eol)
    path = put(workspace, "launch.json", text)
    value = jsonc.parse(text).value
    write_configurations(job(4), workspace)
    written = path.read_bytes().decode("utf-8")
    # Nothing of the old text is missing or in another order: it is a subsequence of the new.
    characters = iter(written)
    assert all(character in characters for character in text)
    assert "\r\n" not in text or "\n" not in written.replace("\r\n", "")
    now = read(workspace, "launch.json")
    foreign = value.get("configurations", [])
    assert now["configurations"][: len(foreign)] == foreign
    assert {key: now[key] for key in value if key not in ("configurations", "compounds")} == {
        key: value[key] for key in value if key not in ("configurations", "compounds")
    }
    assert now["compounds"][-1]["name"] == ATTACH
    assert not any(change.changed for change in write_configurations(job(4), workspace).changes)
    write_configurations(job(1), workspace)
    characters = iter(path.read_bytes().decode("utf-8"))
    assert all(character in characters for character in text)
    assert [each for each in names(workspace) if str(each).endswith(": train.py")] == ["Rank 0: train.py"]


@pytest.mark.parametrize("text", ["", "\ufeff", " \r\n\n", "// only this\n", "/* and */ // that"])
def test_a_file_without_value_counts_as_new_and_keeps_its_comments(workspace: Path, text: str) -> None:
    path = put(workspace, "launch.json", text)
    write_configurations(job(1), workspace)
    written = path.read_bytes().decode("utf-8")
    assert written.startswith(text.rstrip() if "/" in text else text[:1] if text == "\ufeff" else "{")
    assert read(workspace, "launch.json")["version"] == "0.2.0"
    assert names(workspace)


@pytest.mark.parametrize("name", ["launch.json", "tasks.json"])
@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("[]", "line 1, column 1: the file must hold an object"),
        ("\n  null", "line 2, column 3: the file must hold an object"),
        ('{"configurations": {}, "tasks": {}}', "must be an array"),
        ('{\n  "configurations": null,\n  "tasks": null\n}', "must be an array"),
        ('{\n  "a": 1\n  "b": 2\n}', "line 3, column 3: a comma or } is missing here"),
        (b'{\n "a": "\xff"}', "line 2, column 8: this is not UTF-8 text"),
        ("{}".encode("utf-16"), "line 1, column 1: this is not UTF-8 text"),
    ],
)
def test_a_file_that_cannot_be_edited_is_told_with_its_place_and_neither_file_is_touched(
    workspace: Path, name: str, text: str | bytes, where: str
) -> None:
    path = put(workspace, name, text)
    before = (path.read_bytes(), os.stat(path))
    with pytest.raises(LaunchJsonError, match=re.escape(where)) as caught:
        write_configurations(job(2), workspace)
    assert name in str(caught.value)
    assert caught.value.remedy
    assert (path.read_bytes(), os.stat(path)) == before
    assert os.listdir(path.parent) == [name]


def test_a_linked_file_is_written_where_it_lies_and_stays_linked(workspace: Path) -> None:
    (workspace / "shared").mkdir()
    target = workspace / "shared" / "vscode-launch.json"
    target.write_text("{}")
    target.chmod(0o640)
    (workspace / ".vscode").mkdir()
    link = workspace / ".vscode" / "launch.json"
    link.symlink_to("../shared/vscode-launch.json")
    write_configurations(job(1), workspace)
    assert link.is_symlink()
    assert not target.is_symlink()
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    assert names(workspace)
    assert os.listdir(target.parent) == [target.name]


def test_a_link_to_nothing_gets_its_target(workspace: Path) -> None:
    (workspace / ".vscode").mkdir()
    (workspace / ".vscode" / "launch.json").symlink_to("real.json")
    write_configurations(job(1), workspace)
    assert (workspace / ".vscode" / "real.json").is_file()
    assert names(workspace)


def test_a_link_into_a_directory_that_is_not_there_makes_none(workspace: Path, tmp_path: Path) -> None:
    (workspace / ".vscode").mkdir()
    (workspace / ".vscode" / "launch.json").symlink_to(tmp_path / "nowhere" / "launch.json")
    with pytest.raises(LaunchJsonError, match="No such file or directory"):
        write_configurations(job(1), workspace)
    assert not (tmp_path / "nowhere").exists()


def test_a_new_file_has_the_mode_that_the_umask_gives(workspace: Path) -> None:
    old = os.umask(0o027)
    try:
        write_configurations(job(1), workspace)
    finally:
        os.umask(old)
    assert stat.S_IMODE((workspace / ".vscode" / "launch.json").stat().st_mode) == 0o640


@pytest.mark.parametrize("name", ["launch.json", "tasks.json"])
def test_what_is_no_regular_file_is_refused_without_being_opened(workspace: Path, name: str) -> None:
    (workspace / ".vscode").mkdir()
    os.mkfifo(workspace / ".vscode" / name)
    with pytest.raises(LaunchJsonError, match="not a regular file"):
        write_configurations(job(1), workspace)


def test_a_file_in_place_of_the_folder_is_told(workspace: Path) -> None:
    (workspace / ".vscode").write_text("")
    with pytest.raises(LaunchJsonError, match="Not a directory"):
        write_configurations(job(1), workspace)


@contextmanager
def ordinary_user() -> Iterator[Path]:
    """A workspace, and the rights of a user whom file modes bind (root may write everywhere)."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o777)
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield folder
    finally:
        if root:
            os.seteuid(0)
        for path in folder.rglob("*"):
            path.chmod(0o700)
        shutil.rmtree(folder)


@pytest.mark.parametrize("locked", ["file", "folder"])
def test_what_may_not_be_written_is_told_with_the_remedy_and_stays(locked: str) -> None:
    with ordinary_user() as folder:
        path = put(folder, "launch.json", "{}")
        (path if locked == "file" else path.parent).chmod(0o444 if locked == "file" else 0o555)
        with pytest.raises(LaunchJsonError, match="cannot write") as caught:
            write_configurations(job(1), folder)
        assert "chmod u+w" in caught.value.remedy
        assert path.read_text() == "{}"
        assert not [name for name in os.listdir(path.parent) if name.startswith(".")]


def test_what_may_not_be_read_is_told() -> None:
    with ordinary_user() as folder:
        put(folder, "launch.json", "{}").chmod(0o200)
        with pytest.raises(LaunchJsonError, match="cannot read"):
            write_configurations(job(1), folder)


def test_a_file_that_changes_between_reading_and_writing_is_read_again(workspace: Path) -> None:
    path = put(workspace, "launch.json", '{"configurations": []}')
    calls = 0

    def transform(value: Any) -> Any:
        nonlocal calls
        calls += 1
        return ownership.updated_launch(value, job(1))

    change = files._planned(path, ("configurations",), transform)
    path.write_text('{"configurations": [\n  {"name": "typed meanwhile"}\n]}')
    files._written(change, ("configurations",), transform)
    assert calls == 2
    assert names(workspace)[:2] == ["typed meanwhile", "Rank 0: train.py"]
    assert os.listdir(path.parent) == ["launch.json"]


# ---- any file

ENTRIES = st.lists(
    st.fixed_dictionaries({"name": st.sampled_from(["mine", "other", "x"])}, optional={"env": VALUES, "args": VALUES})
    | st.integers(0, 2),
    max_size=4,
)
LAUNCH_FILES = st.fixed_dictionaries(
    {}, optional={"version": st.just("0.2.0"), "configurations": ENTRIES, "compounds": ENTRIES, "inputs": VALUES}
)


@unhurried
@given(documents(LAUNCH_FILES), st.lists(st.integers(1, 5), min_size=1, max_size=3))
def test_in_any_file_and_for_any_rank_counts_in_turn_foreign_text_stays(
    case: tuple[str, dict[str, Any]], counts: list[int]
) -> None:
    text, value = case
    original = jsonc.parse(text)
    for ranks in counts:
        before = jsonc.parse(text)
        wanted = ownership.updated_launch(before.value, job(ranks))
        planned = edits.plan(before, wanted)
        text = edits.apply(before.text, planned)
        after = jsonc.parse(text)
        assert edits.same(after.value, wanted)
        assert edits.plan(after, ownership.updated_launch(after.value, job(ranks))) == []
        assert foreign(after, value) == foreign(original, value)
        assert comments(after) == comments(original)
        assert names_of(after.value["configurations"]).count("Rank 0: train.py") == 1
        assert f"Rank {ranks - 1}: train.py" in names_of(after.value["configurations"])
        assert f"Rank {ranks}: train.py" not in names_of(after.value["configurations"])


def comments(document: jsonc.Document) -> list[str]:
    return [document.text[start:end] for start, end in document.comments]


def foreign(document: jsonc.Document, value: dict[str, Any]) -> list[str]:
    """The text of every entry and property that is not ours, in order."""
    assert document.root is not None
    texts = []
    for item in document.root.items:
        if item.key in ("configurations", "compounds"):
            texts += [
                document.text[part.start : part.end]
                for part in item.node.items
                if not (
                    isinstance(part.node.value, dict) and part.node.value["name"].startswith(("Ray Train: ", "Rank "))
                )
            ]
        elif item.key in value:
            texts.append(document.text[item.start : item.end])
    return texts
