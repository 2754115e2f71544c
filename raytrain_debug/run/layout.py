"""The one place that knows where things lie in a run directory, and that it is ours alone.

    .raytrain_debug/
      .gitignore
      latest -> runs/<run id>
      runs/<run id>/
        run.json                written by the launcher only
        errors.log              our own faults inside ranks and launcher, one paragraph each
        hang.json               the last hang that the launcher saw (launch --hang-after)
        storage/<name>/         checkpoints of all ranks as a cluster would keep them (launch --faithful)
        ranks/<world rank>/
          process.json reports.jsonl checkpoints/<index>/
          core.json core/         what was left at death: frames and locals; tensors and source files
          core-<attempt>.json     the same of an earlier attempt, without core/
          fault-<attempt>.txt     what Python's faulthandler wrote at a fatal signal; empty without one
          exceptions.jsonl        exceptions that ended a thread, but not the rank

Sockets do not lie here (a Unix socket's path is bounded at 107 bytes and network file systems refuse them) but in
`runtime_directory()`.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import socket
import stat
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from raytrain_debug.errors import RunNotFound, UnsafeDirectory

ROOT_NAME = ".raytrain_debug"
_OTHER_ROOT = "remove it, or choose another with --run-root"
_MAX_SOCKET_BASE = 40  # what the kernel's 107 bytes leave for it, with our names at their longest
_RUN_ID = re.compile(r"\d{8}-\d{6}-[0-9a-f]{4}")
_NAMED = 5  # runs named where many could be meant


@dataclass(frozen=True)
class RankPaths:
    """Paths of one rank in a run."""

    directory: Path

    @property
    def process(self) -> Path:
        return self.directory / "process.json"

    @property
    def reports(self) -> Path:
        return self.directory / "reports.jsonl"

    @property
    def checkpoints(self) -> Path:
        return self.directory / "checkpoints"

    @property
    def core(self) -> Path:
        return self.directory / "core.json"

    def earlier_core(self, attempt: int) -> Path:
        """The core of an attempt before the newest one that left a core."""
        return self.directory / f"core-{attempt}.json"

    @property
    def core_tensors(self) -> Path:
        return self.directory / "core" / "tensors.safetensors"

    @property
    def core_sources(self) -> Path:
        return self.directory / "core" / "sources"

    def fault(self, attempt: int) -> Path:
        """Where faulthandler writes in that attempt."""
        return self.directory / f"fault-{attempt}.txt"

    @property
    def exceptions(self) -> Path:
        return self.directory / "exceptions.jsonl"


@dataclass(frozen=True)
class RunPaths:
    """Paths of one run."""

    directory: Path

    @property
    def id(self) -> str:
        return self.directory.name

    @property
    def record(self) -> Path:
        return self.directory / "run.json"

    @property
    def errors(self) -> Path:
        return self.directory / "errors.log"

    @property
    def hang(self) -> Path:
        return self.directory / "hang.json"

    @property
    def storage(self) -> Path:
        """What a cluster has as `storage_path`, in faithful local mode."""
        return self.directory / "storage"

    @property
    def ranks(self) -> Path:
        return self.directory / "ranks"

    def rank(self, rank: int) -> RankPaths:
        return RankPaths(self.ranks / str(rank))


def default_root(cwd: str | os.PathLike[str] | None = None) -> Path:
    """`.raytrain_debug` in the working directory."""
    return Path(cwd or os.getcwd()) / ROOT_NAME


def create_run(root: Path, run_id: str | None = None) -> RunPaths:
    """Make a new, private run directory under `root` and point `latest` at it.

    A `root` that is already there, under another name than ours, keeps its mode: only what we put into it is private.
    Raises UnsafeDirectory when `root` is a symlink or somebody else's, OSError when it cannot be written.
    """
    if root.name == ROOT_NAME or not os.path.lexists(root):
        make_private(root)
        ignore = root / ".gitignore"
        if not ignore.exists():
            ignore.write_text("*\n")
            ignore.chmod(0o600)
    else:
        check_ours(root)
    make_private(root / "runs")
    run = _new_directory(root / "runs") if run_id is None else RunPaths(root / "runs" / run_id)
    make_private(run.directory)
    make_private(run.ranks)
    point_latest(run)
    return run


def new_run_id() -> str:
    """An id that sorts by start time: 20260131-142501-3fa9."""
    return time.strftime("%Y%m%d-%H%M%S") + "-" + secrets.token_hex(2)


def list_runs(root: Path) -> list[RunPaths]:
    """All runs under `root`, oldest first; empty when there is none."""
    try:
        names = sorted(os.listdir(root / "runs"))
    except OSError:
        return []
    return [RunPaths(root / "runs" / name) for name in names if _RUN_ID.fullmatch(name)]


def find_run(name: str | None = None, root: Path | None = None) -> RunPaths:
    """The run named by an id, a unique prefix of one, a path of a run directory, or (None) the newest.

    Raises RunNotFound.
    """
    root = root or default_root()
    if name is None or name == "latest":
        runs = list_runs(root)
        if not runs:
            raise RunNotFound(
                f"no run is recorded in {root}",
                "start one with: python -m raytrain_debug launch SCRIPT, or name a run directory",
            )
        latest = _read_latest(root)
        return latest if latest is not None else runs[-1]
    path = Path(name)
    try:
        if (path / "run.json").exists() or (path / "ranks").is_dir():
            return RunPaths(path.resolve())
        if (path / "runs").is_dir():
            return find_run(None, path)
    except (OSError, ValueError):
        pass  # no name that a file can have
    matches = [run for run in list_runs(root) if run.id.startswith(name)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        newest = ", ".join(run.id for run in matches[: -_NAMED - 1 : -1])
        more = f" or {len(matches) - _NAMED} older ones" if len(matches) > _NAMED else ""
        raise RunNotFound(f"{name!r} could be {newest}{more}", "type more of the run's id")
    raise RunNotFound(f"no run {name!r} in {root}", "list them with: python -m raytrain_debug runs")


def remove_run(root: Path, run: RunPaths) -> None:
    """Remove a run and all it holds; `latest` then names the newest that is left. Raises OSError."""
    hidden = run.directory.with_name(f".{run.id}.removed")
    os.rename(run.directory, hidden)  # at once: a reader sees a whole run or none
    if _read_latest(root) is None:
        left = list_runs(root)
        if left:
            point_latest(left[-1])
        else:
            (root / "latest").unlink(missing_ok=True)
    shutil.rmtree(hidden)


def finish_removals(root: Path) -> None:
    """Take away what a `remove_run` that was killed has left."""
    for hidden in (root / "runs").glob(".*.removed"):
        shutil.rmtree(hidden, ignore_errors=True)


def make_private(directory: Path, remedy: str = _OTHER_ROOT) -> None:
    """Make `directory` (mode 0700 under any umask), or check that it is ours; raises UnsafeDirectory or OSError."""
    if not directory.parent.exists():
        make_private(directory.parent, remedy)
    try:
        directory.mkdir(mode=0o700)
    except FileExistsError:
        pass
    check_ours(directory, remedy)
    if stat.S_IMODE(os.lstat(directory).st_mode) != 0o700:
        directory.chmod(0o700)


def check_ours(directory: Path, remedy: str = _OTHER_ROOT) -> None:
    """Raise UnsafeDirectory unless `directory` is one, not a symbolic link, and belongs to this user."""
    status = os.lstat(directory)
    if stat.S_ISLNK(status.st_mode):
        raise UnsafeDirectory(f"{directory} is a symbolic link", remedy)
    if not stat.S_ISDIR(status.st_mode):
        raise UnsafeDirectory(f"{directory} is not a directory", remedy)
    if status.st_uid != os.geteuid():
        raise UnsafeDirectory(f"{directory} belongs to user {status.st_uid}, not to you", remedy)


def runtime_directory() -> Path:
    """Where our sockets lie: a private directory with a short path. Raises UnsafeDirectory when it is not ours."""
    base = tempfile.gettempdir()
    if len(os.fsencode(base)) > _MAX_SOCKET_BASE:
        base = "/tmp"
    directory = Path(base) / f"raytrain_debug-{os.geteuid()}"
    make_private(directory, "remove it, or set TMPDIR to a directory of your own")
    return directory


def remove_dead_sockets() -> None:
    """Take away what killed processes have left in `runtime_directory()`: sockets on which nobody listens."""
    for path in runtime_directory().glob("*.sock"):
        if _is_new(path):
            continue  # bound, and about to be listened on
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.setblocking(False)
            try:
                connection.connect(os.fspath(path))
            except ConnectionRefusedError:
                path.unlink(missing_ok=True)
            except OSError:
                continue


def _is_new(path: Path, seconds: float = 5.0) -> bool:
    try:
        return time.time() - path.stat().st_mtime < seconds
    except OSError:
        return True


def socket_path(run_id: str, name: str) -> Path:
    """The socket of `name` ("launcher", "rank0-<pid>") in a run."""
    return runtime_directory() / f"{run_id}-{name}.sock"


def _new_directory(runs: Path) -> RunPaths:
    """A run directory that no other launcher has; several may start in one second, on nodes that share a disk."""
    while True:
        run = RunPaths(runs / new_run_id())
        try:
            run.directory.mkdir(mode=0o700)
            return run
        except FileExistsError:
            continue


def point_latest(run: RunPaths) -> None:
    """Make `run` the one that commands take when none is named."""
    root = run.directory.parent.parent
    temporary = root / f".latest-{run.id}-{os.getpid()}-{secrets.token_hex(2)}"
    os.symlink(os.path.join("runs", run.id), temporary)
    os.replace(temporary, root / "latest")


def _read_latest(root: Path) -> RunPaths | None:
    try:
        name = os.path.basename(os.readlink(root / "latest"))
    except OSError:
        return None
    run = RunPaths(root / "runs" / name)
    return run if _RUN_ID.fullmatch(name) and run.directory.is_dir() else None
