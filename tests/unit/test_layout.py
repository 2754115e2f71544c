"""Where a run lies, who may look into it, and how runs are found by name."""

import os
import stat

import pytest

from raytrain_debug.errors import RunNotFound, UnsafeDirectory
from raytrain_debug.run import layout


@pytest.fixture(params=[0o000, 0o022, 0o777], ids="umask {:03o}".format)
def any_umask(request):
    before = os.umask(request.param)
    yield
    os.umask(before)


def mode(path):
    return stat.S_IMODE(os.stat(path).st_mode)


def test_a_run_is_private_under_any_umask(tmp_path, any_umask):
    root = tmp_path / layout.ROOT_NAME
    run = layout.create_run(root)
    for directory in (root, root / "runs", run.directory, run.ranks):
        assert mode(directory) == 0o700
    assert mode(root / ".gitignore") == 0o600
    assert (root / ".gitignore").read_text() == "*\n"


def test_latest_follows_the_newest_run(tmp_path):
    root = tmp_path / layout.ROOT_NAME
    first = layout.create_run(root, "20260101-000000-aaaa")
    second = layout.create_run(root, "20260101-000000-bbbb")
    assert os.readlink(root / "latest") == f"runs/{second.id}"
    assert layout.find_run(None, root) == second
    assert layout.list_runs(root) == [first, second]


def test_a_dangling_latest_does_not_hide_the_other_runs(tmp_path):
    root = tmp_path / layout.ROOT_NAME
    run = layout.create_run(root, "20260101-000000-aaaa")
    os.unlink(root / "latest")
    os.symlink("runs/20260102-000000-bbbb", root / "latest")
    assert layout.find_run(None, root) == run


def test_ids_sort_by_time_and_differ(tmp_path):
    ids = {layout.new_run_id() for _ in range(50)}
    assert len(ids) > 40
    for run_id in ids:
        layout.create_run(tmp_path / layout.ROOT_NAME, run_id)
    assert [run.id for run in layout.list_runs(tmp_path / layout.ROOT_NAME)] == sorted(ids)


def test_a_run_is_found_by_id_by_prefix_and_by_path(tmp_path, monkeypatch):
    root = tmp_path / layout.ROOT_NAME
    run = layout.create_run(root, "20260101-000000-aaaa")
    layout.create_run(root, "20260102-000000-bbbb")
    monkeypatch.chdir(tmp_path)
    for name in (run.id, "20260101", str(run.directory), f".raytrain_debug/runs/{run.id}"):
        assert layout.find_run(name) == run
    assert layout.find_run(str(root)).id == "20260102-000000-bbbb"


@pytest.mark.parametrize("name", ["2026", "2027", "nothing", None])
def test_no_run_or_several_is_an_error_with_a_remedy(tmp_path, name):
    root = tmp_path / layout.ROOT_NAME
    if name is not None:
        layout.create_run(root, "20260101-000000-aaaa")
        layout.create_run(root, "20260102-000000-bbbb")
    with pytest.raises(RunNotFound) as caught:
        layout.find_run(name, root)
    assert caught.value.remedy


def test_a_symlink_a_file_and_somebody_elses_directory_are_refused(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "file").write_text("")
    (tmp_path / "theirs").mkdir()
    refused = ["link", "file"]
    if os.geteuid() == 0:
        os.chown(tmp_path / "theirs", 12345, 12345)
        refused.append("theirs")
    for name in refused:
        with pytest.raises(UnsafeDirectory) as caught:
            layout.create_run(tmp_path / name)
        assert "--run-root" in caught.value.remedy
    assert not list((tmp_path / "real").iterdir())


def test_a_directory_that_others_may_read_is_closed(tmp_path):
    root = tmp_path / "open"
    root.mkdir(mode=0o755)
    layout.make_private(root)
    assert mode(root) == 0o700


def test_socket_paths_fit_into_a_unix_address_however_long_tmpdir_is(tmp_path, monkeypatch):
    deep = tmp_path / ("x" * 100)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    path = layout.socket_path("20260131-142501-3fa9", "rank1048576-4194304")
    assert len(os.fsencode(path)) < 108
    assert mode(path.parent) == 0o700


def test_of_many_runs_that_could_be_meant_the_newest_are_named(tmp_path):
    for number in range(9):
        (tmp_path / "runs" / f"20260101-00000{number}-abcd").mkdir(parents=True)
    with pytest.raises(RunNotFound, match=r"could be 20260101-000008-abcd, .*000004-abcd or 4 older ones$"):
        layout.find_run("2026", tmp_path)
