"""A snapshot equals what was reported, whatever happens afterwards to the reported directory."""

import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import psutil
import pyarrow.fs
import pytest
import torch

from raytrain_debug.run import layout
from raytrain_debug.shim import keeper, links
from raytrain_debug.shim.guard import Guard
from raytrain_debug.shim.snapshot import Snapshots

BIG = links.MIN_TOTAL + 1
LEASES = sys.platform == "linux"


@dataclass
class Checkpoint:
    """What `take` reads of a ray.train.Checkpoint."""

    path: str
    filesystem: object = None


@pytest.fixture
def paths(tmp_path):
    run = layout.create_run(tmp_path / layout.ROOT_NAME)
    layout.make_private(run.rank(0).directory)
    return run.rank(0)


@pytest.fixture
def snapshots(paths):
    return Snapshots(paths, 2, Guard(errors_of(paths)))


@pytest.fixture
def temporary(tmp_path):
    """A directory like the one of Ray's own guide, on the run's file system."""
    with tempfile.TemporaryDirectory(dir=tmp_path) as directory:
        yield Path(directory)


@pytest.fixture
def kept(tmp_path):
    directory = tmp_path / "kept"
    directory.mkdir()
    return directory


@pytest.fixture(autouse=True)
def no_keeper_stays():
    yield
    wait_until(lambda: not keepers())


def errors_of(paths):
    return paths.directory.parent.parent / "errors.log"


def keepers():
    """Process ids of keepers that this process started."""
    return [child.pid for child in psutil.Process().children() if is_keeper(child)]


def is_keeper(process):
    try:
        return any("keeper.py" in argument for argument in process.cmdline())
    except psutil.Error:
        return False


def wait_until(condition, seconds=20.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.01)


def contents(directory):
    return {
        str(path.relative_to(directory)): path.read_bytes() for path in Path(directory).rglob("*") if path.is_file()
    }


def fill(directory, size=BIG):
    """A checkpoint of a big file, a small one, and one in a subdirectory; what it holds by name."""
    (directory / "model.pt").write_bytes(os.urandom(1024) * (size // 1024 + 1))
    (directory / "small.json").write_text('{"epoch": 1}')
    (directory / "shards" / "empty").mkdir(parents=True)
    (directory / "shards" / "0.bin").write_bytes(os.urandom(links.MIN_FILE))
    return contents(directory)


def rewrite(path):
    with open(path, "wb") as file:
        file.write(b"the next epoch")


def overwrite_in_place(path):
    with open(path, "r+b") as file:
        file.seek(100)
        file.write(b"garbage")


def append(path):
    with open(path, "ab") as file:
        file.write(b"more")


def truncate(path):
    os.truncate(path, 10)


def rewrite_through_a_hard_link(path):
    os.link(path, f"{path}.link")
    rewrite(f"{path}.link")


def move_away_and_rewrite(path):
    os.rename(path, path.parent.parent / "moved")
    rewrite(path.parent.parent / "moved")


def rewrite_in_a_child(path):
    subprocess.run([sys.executable, "-c", f"open({str(path)!r}, 'wb').write(b'child')"], check=True)


def save_again(path):
    torch.save({"next": torch.zeros(100)}, path)  # opens the file in C++, with the interpreter lock held


LATER = [
    rewrite,
    overwrite_in_place,
    append,
    truncate,
    rewrite_through_a_hard_link,
    move_away_and_rewrite,
    rewrite_in_a_child,
    save_again,
    os.unlink,
]


@pytest.mark.parametrize("later", LATER, ids=lambda later: later.__name__)
@pytest.mark.parametrize("where", ["temporary", "kept"])
def test_nothing_done_to_the_reported_files_changes_the_snapshot(request, where, later, paths, snapshots):
    directory = request.getfixturevalue(where)
    expected = fill(directory)
    record = snapshots.take(Checkpoint(str(directory)), 0)
    later(directory / "model.pt")
    later(directory / "small.json")
    if later is save_again:
        assert torch.load(directory / "model.pt")["next"].shape == (100,)
    assert contents(paths.checkpoints / "0") == expected
    assert record.kept == ("hard links" if where == "temporary" and LEASES else "copy")
    shutil.rmtree(directory)
    assert contents(paths.checkpoints / "0") == expected
    directory.mkdir()  # for the fixture to remove
    wait_until(lambda: not keepers())
    assert contents(paths.checkpoints / "0") == expected


def test_a_file_that_the_script_still_writes_is_copied_as_it_is_at_the_report(paths, snapshots, temporary):
    with open(temporary / "model.pt", "wb") as file:
        file.write(b"x" * BIG)
        file.flush()
        record = snapshots.take(Checkpoint(str(temporary)), 0)
        file.write(b"y")
    assert record.kept == "copy"
    assert (paths.checkpoints / "0" / "model.pt").read_bytes() == b"x" * BIG


def test_a_file_mapped_for_writing_is_copied(paths, snapshots, temporary):
    import mmap

    (temporary / "model.pt").write_bytes(b"x" * BIG)
    with open(temporary / "model.pt", "r+b") as file:
        memory = mmap.mmap(file.fileno(), 0)
    record = snapshots.take(Checkpoint(str(temporary)), 0)
    memory[0:3] = b"yyy"
    memory.close()
    assert record.kept == "copy"
    assert (paths.checkpoints / "0" / "model.pt").read_bytes() == b"x" * BIG


def test_the_same_directory_reported_again_and_again_gives_each_its_own_snapshot(paths, snapshots, temporary):
    for index in range(4):
        torch.save({"w": torch.full((BIG // 4,), float(index))}, temporary / "model.pt")
        snapshots.take(Checkpoint(str(temporary)), index)
        snapshots.prune()
    assert sorted(os.listdir(paths.checkpoints)) == ["2", "3"]
    for index in (2, 3):
        assert torch.load(paths.checkpoints / str(index) / "model.pt")["w"].unique().tolist() == [index]


def test_a_linked_snapshot_ends_up_ours_alone_and_private(paths, snapshots, tmp_path):
    with tempfile.TemporaryDirectory(dir=tmp_path) as directory:
        fill(Path(directory))
        assert snapshots.take(Checkpoint(directory), 0).kept == "hard links"
    wait_until(lambda: not keepers())
    for path in (paths.checkpoints / "0").rglob("*"):
        status = path.stat()
        assert stat.S_IMODE(status.st_mode) == (0o700 if path.is_dir() else 0o600)
        assert path.is_dir() or status.st_nlink == 1


def test_linking_does_not_show_in_the_scripts_files(snapshots, temporary):
    fill(temporary)
    os.chmod(temporary / "model.pt", 0o644)
    snapshots.take(Checkpoint(str(temporary)), 0)
    wait_until(lambda: not keepers())  # it stayed its time and copied
    status = os.stat(temporary / "model.pt")
    assert (stat.S_IMODE(status.st_mode), status.st_nlink) == (0o644, 1)


def test_a_killed_keeper_leaves_the_snapshot_right_or_removed(paths, snapshots, temporary):
    expected = fill(temporary)
    snapshots.take(Checkpoint(str(temporary)), 0)
    for pid in keepers():
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not keepers())
    wait_until(lambda: os.stat(temporary / "model.pt").st_nlink == 1)  # another has copied in its stead
    rewrite(temporary / "model.pt")
    assert contents(paths.checkpoints / "0") == expected


def test_a_rewrite_that_nobody_guarded_against_removes_the_snapshot(tmp_path):
    (tmp_path / "0").mkdir()
    (tmp_path / "source").write_bytes(b"reported")
    os.link(tmp_path / "source", tmp_path / "0" / "model.pt")
    status = os.stat(tmp_path / "source")
    (tmp_path / "source").write_bytes(b"rewritten")
    with pytest.raises(keeper.Changed):
        keeper.settle(str(tmp_path / "0"), [keeper.Linked("model.pt", status.st_size, status.st_mtime_ns)])
    assert not (tmp_path / "0").exists()


def test_a_keeper_outlives_the_death_of_its_process_only_to_finish(tmp_path, paths):
    code = f"""
import os, signal, sys, tempfile
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from tests.unit.test_snapshot import *
from raytrain_debug.run.layout import RankPaths
directory = Path(tempfile.TemporaryDirectory(dir={str(tmp_path)!r}, delete=False).name) if sys.version_info >= (3, 12) \
    else Path((hold := tempfile.TemporaryDirectory(dir={str(tmp_path)!r})).name)
paths = RankPaths(Path({str(paths.directory)!r}))
fill(directory)
Snapshots(paths, 2, Guard(errors_of(paths))).take(Checkpoint(str(directory)), 0)
print(directory, *keepers(), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    directory, *pids = child.stdout.split()
    expected = contents(directory)
    wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids))
    rewrite(Path(directory) / "model.pt")
    assert contents(paths.checkpoints / "0") == expected


def test_only_directories_about_to_be_deleted_are_linked(tmp_path, temporary):
    (temporary / "inner").mkdir()
    assert links.will_be_deleted(str(temporary))
    assert links.will_be_deleted(str(temporary / "inner"))
    (tmp_path / "symlink").symlink_to(temporary)
    assert links.will_be_deleted(str(tmp_path / "symlink"))
    assert not links.will_be_deleted(str(tmp_path))
    assert not links.will_be_deleted(str(temporary) + "x")
    made = tempfile.mkdtemp(dir=tmp_path)
    assert not links.will_be_deleted(made)


def test_small_checkpoints_are_copied_without_another_process(snapshots, temporary):
    (temporary / "model.pt").write_bytes(b"x" * 100_000)
    assert snapshots.take(Checkpoint(str(temporary)), 0).kept == "copy"
    assert not keepers()


def test_another_file_system_is_copied(snapshots, paths):
    if not os.path.isdir("/dev/shm") or os.stat("/dev/shm").st_dev == os.stat(paths.directory).st_dev:
        pytest.skip("no second file system")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        expected = fill(Path(directory))
        assert snapshots.take(Checkpoint(directory), 0).kept == "copy"
    assert contents(paths.checkpoints / "0") == expected


def test_the_record_lists_the_files_with_their_sizes(snapshots, kept):
    expected = fill(kept, 100)
    record = snapshots.take(Checkpoint(str(kept)), 7)
    assert record.source == str(kept)
    assert record.snapshot == "checkpoints/7"
    assert {file.path: file.size for file in record.files} == {name: len(data) for name, data in expected.items()}
    assert record.skipped == ()


def test_a_relative_path_is_recorded_absolute(snapshots, kept, monkeypatch):
    fill(kept, 100)
    monkeypatch.chdir(kept.parent)
    assert snapshots.take(Checkpoint("kept"), 0).source == str(kept)


def test_symbolic_links_inside_stay_links_and_ones_to_elsewhere_become_their_contents(paths, snapshots, kept, tmp_path):
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / "a").write_bytes(b"blob")
    (kept / "model.pt").write_bytes(b"model")
    (kept / "best.pt").symlink_to(kept / "model.pt")
    (kept / "blob.bin").symlink_to(tmp_path / "blobs" / "a")
    (kept / "blobs").symlink_to(tmp_path / "blobs")
    (kept / "dangling").symlink_to("nothing")
    (kept / "loop").symlink_to(kept)
    snapshots.take(Checkpoint(str(kept)), 0)
    shutil.rmtree(kept)
    shutil.rmtree(tmp_path / "blobs")
    snapshot = paths.checkpoints / "0"
    assert (snapshot / "best.pt").is_symlink()
    assert (snapshot / "best.pt").read_bytes() == b"model"
    assert (snapshot / "blob.bin").read_bytes() == (snapshot / "blobs" / "a").read_bytes() == b"blob"
    assert os.readlink(snapshot / "dangling") == "nothing"


def test_a_big_file_behind_a_symbolic_link_to_elsewhere_is_not_linked(paths, snapshots, temporary, kept):
    (kept / "weights").write_bytes(b"x" * BIG)
    (temporary / "weights").symlink_to(kept / "weights")
    snapshots.take(Checkpoint(str(temporary)), 0)
    rewrite(kept / "weights")
    assert (paths.checkpoints / "0" / "weights").read_bytes() == b"x" * BIG


def test_special_files_are_left_out_with_the_reason(paths, snapshots, kept):
    os.mkfifo(kept / "pipe")
    (kept / "model.pt").write_bytes(b"m")
    record = snapshots.take(Checkpoint(str(kept)), 0)
    assert record.skipped == ("pipe: not a regular file",)
    assert os.listdir(paths.checkpoints / "0") == ["model.pt"]


@pytest.fixture
def nobody():
    """A directory in which this process works as an ordinary user: root may read everything."""
    with tempfile.TemporaryDirectory() as directory:
        if os.geteuid() == 0:
            os.chown(directory, 65534, 65534)
            os.seteuid(65534)
        yield Path(directory)
        if os.getuid() == 0:
            os.seteuid(0)


def test_unreadable_files_and_directories_are_left_out_with_the_reason(nobody):
    run = layout.create_run(nobody / layout.ROOT_NAME)
    layout.make_private(run.rank(0).directory)
    kept = nobody / "kept"
    (kept / "locked").mkdir(parents=True)
    for name in ("model.pt", "secret"):
        (kept / name).write_bytes(b"m")
    for name in ("secret", "locked"):
        os.chmod(kept / name, 0)
    record = Snapshots(run.rank(0), 2, Guard(run.errors)).take(Checkpoint(str(kept)), 0)
    os.chmod(kept / "locked", 0o700)
    assert sorted(record.skipped) == ["locked: Permission denied", "secret: Permission denied"]
    assert [file.path for file in record.files] == ["model.pt"]


def test_the_run_directory_is_not_copied_into_itself(paths, snapshots, tmp_path):
    (tmp_path / "model.pt").write_bytes(b"m")
    record = snapshots.take(Checkpoint(str(tmp_path)), 0)
    assert [file.path for file in record.files] == ["model.pt"]
    assert record.skipped == (f"{layout.ROOT_NAME}: the run directory",)


def test_a_remote_checkpoint_is_named_and_not_fetched(snapshots, kept):
    remote = pyarrow.fs.SubTreeFileSystem("/", pyarrow.fs.LocalFileSystem())
    record = snapshots.take(Checkpoint("bucket/path", remote), 0)
    assert (record.source, record.snapshot, record.kept) == ("subtree:bucket/path", None, "remote")
    assert snapshots.take(Checkpoint(str(kept), pyarrow.fs.LocalFileSystem()), 1).kept == "copy"


def test_a_missing_directory_is_a_failure_in_words_and_not_an_exception(paths, snapshots, tmp_path, capsys):
    record = snapshots.take(Checkpoint(str(tmp_path / "gone")), 0)
    assert (record.snapshot, record.kept) == (None, "failed: No such file or directory")
    assert "training goes on" in capsys.readouterr().err
    assert "FileNotFoundError" in errors_of(paths).read_text()


def test_an_odd_checkpoint_object_is_a_failure_in_words(snapshots):
    assert snapshots.take(SimpleNamespace(), 0).kept.startswith("failed: ")


def test_the_last_k_are_kept(paths, snapshots, kept):
    for index in (8, 9, 10, 11):
        (kept / "model.pt").write_text(str(index))
        snapshots.take(Checkpoint(str(kept)), index)
        snapshots.prune()
    assert sorted(os.listdir(paths.checkpoints)) == ["10", "11"]


def test_none_are_kept_with_k_0_but_the_files_are_listed(paths, kept):
    fill(kept, 100)
    record = Snapshots(paths, 0, Guard(errors_of(paths))).take(Checkpoint(str(kept)), 0)
    assert (record.snapshot, record.kept, len(record.files)) == (None, "off", 3)
    assert not paths.checkpoints.exists()


def test_what_killed_attempts_left_is_tidied(paths, snapshots, kept):
    (kept / "model.pt").write_bytes(b"m")
    snapshots.take(Checkpoint(str(kept)), 3)
    for leftover in (".4-99.tmp", "4"):
        (paths.checkpoints / leftover).mkdir()
        (paths.checkpoints / leftover / "half").write_bytes(b"h")
    snapshots.tidy(next_index=4)
    assert os.listdir(paths.checkpoints) == ["3"]


def full_disk(directory, code):
    """Run `code` where `directory` is a 20 MiB disk of its own; skip where the system does not let us make one."""
    command = f"mount -t tmpfs -o size=20m tmpfs {directory} && exec {sys.executable} -c {code!r}"
    done = subprocess.run(["unshare", "-rm", "sh", "-c", command], capture_output=True, text=True)
    if "unshare" in done.stderr or "mount:" in done.stderr:
        pytest.skip(f"no mount namespace: {done.stderr}")
    return done


def test_a_full_disk_is_a_failure_in_words_and_leaves_nothing_half_done(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "model.pt").write_bytes(b"x" * (30 << 20))
    root = Path(__file__).parents[2]
    code = (
        f"import sys; sys.path.insert(0, {str(root)!r}); "
        f"from tests.unit.test_snapshot import on_full_disk; on_full_disk({str(tmp_path)!r})"
    )
    done = full_disk(tmp_path / "disk", code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["failed: No space left on device", "[]"]


def on_full_disk(tmp_path):
    """In the child of the test above."""
    run = layout.create_run(Path(tmp_path, "disk", layout.ROOT_NAME))
    layout.make_private(run.rank(0).directory)
    record = Snapshots(run.rank(0), 2, Guard(run.errors)).take(Checkpoint(os.path.join(tmp_path, "kept")), 0)
    print(record.kept, os.listdir(run.rank(0).checkpoints), sep="\n")


def test_a_run_directory_that_was_deleted_is_a_failure_in_words(paths, snapshots, kept):
    (kept / "model.pt").write_bytes(b"m")
    shutil.rmtree(paths.directory.parent.parent)
    assert snapshots.take(Checkpoint(str(kept)), 0).kept == "failed: No such file or directory"
    assert not paths.directory.exists()


def test_a_kill_while_copying_leaves_no_snapshot_that_counts(paths, kept):
    (kept / "model.pt").write_bytes(b"x" * (64 << 20))
    code = f"""
import sys
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from tests.unit.test_snapshot import *
from raytrain_debug.run.layout import RankPaths
paths = RankPaths(Path({str(paths.directory)!r}))
snapshots = Snapshots(paths, 2, Guard(errors_of(paths)))
for index in range(1000):
    snapshots.take(Checkpoint({str(kept)!r}), index)
    snapshots.prune()
    print(index, flush=True)
"""
    for delay in (0.0, 0.01, 0.02):
        child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
        child.stdout.readline()
        time.sleep(delay)
        child.kill()
        child.wait()
        child.stdout.close()
        for name in os.listdir(paths.checkpoints):
            whole = (paths.checkpoints / name / "model.pt").exists() and name.isdecimal()
            assert not whole or (paths.checkpoints / name / "model.pt").stat().st_size == 64 << 20
        shutil.rmtree(paths.checkpoints)
