"""Whose debugger: other users of the machine get neither at ranks nor at records, whatever the umask."""

import itertools
import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from raytrain_debug.dap import framing
from raytrain_debug.run import layout
from tests.conftest import TARGETS, wait_for
from tests.gateway_rig import Rig

NOBODY = 65534
STEPS = TARGETS / "steps.py"
INITIALIZE = framing.encode({"seq": 1, "type": "request", "command": "initialize", "arguments": {}})

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be a second user")


def as_nobody(work):
    """What `work()` returns, or the name of the OSError it raises, in a process of another user."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            try:
                result = work()
            except OSError as error:
                result = type(error).__name__
            os.write(writing, json.dumps(result).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        result = json.loads(pipe.read())
    os.waitpid(child, 0)
    return result


def knock(port, family=socket.AF_INET, host="127.0.0.1"):
    """Connect as a debugger would and say how many bytes came back."""

    def work():
        with socket.socket(family) as knocking:
            knocking.settimeout(10)
            knocking.connect((host, port))
            try:
                knocking.sendall(INITIALIZE)
                return len(knocking.recv(100))
            except ConnectionError:
                return 0

    return work


@pytest.fixture
def open_directory():
    """A directory that every user may enter, unlike pytest's own."""
    directory = Path(tempfile.mkdtemp(prefix="open-", dir="/tmp"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


@needs_root
def test_another_users_debugger_is_refused_and_logged_and_the_rank_notices_nothing(launch, open_directory):
    job = launch("--nproc-per-node", "1", STEPS, "100", "0.1", cwd=open_directory)
    rank = job.wait_state("dormant")[0]
    assert as_nobody(knock(rank["port"])) == 0
    assert as_nobody(knock(rank["port"], socket.AF_INET6, "::1")) == 0
    name = "nobody"
    job.wait_output(f"refused a connection to rank 0 from user {name} of this machine", 10)
    assert job.status()[0] == rank

    # Nor through the sockets, nor by reading what the run records.
    launcher = job.run.record.launcher
    control = job.run.rank(0).process.control
    for path in (launcher.socket, control):
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
        assert stat.S_IMODE(os.stat(os.path.dirname(path)).st_mode) == 0o700
        assert as_nobody(lambda path=path: socket.socket(socket.AF_UNIX).connect(path)) == "PermissionError"
    assert as_nobody(lambda: os.listdir(open_directory)) != "PermissionError"
    assert as_nobody(lambda: os.listdir(open_directory / layout.ROOT_NAME)) == "PermissionError"

    session = job.session(0)
    assert session.threads()
    session.disconnect()


@needs_root
def test_a_stranger_is_refused_before_a_byte_of_it_is_read(tmp_path):
    rig = Rig(tmp_path, token="secret")
    try:
        rig.gateway.token = "secret"
        assert as_nobody(knock(rig.port)) == 0
        assert rig.notes == ["refused a connection to rank 0 from user nobody of this machine"]
        assert as_nobody(knock(rig.port)) == 0
        assert len(rig.notes) == 1, "the log can be flooded"
        # One's own process needs no token here: the kernel vouches for it.
        client = rig.client()
        assert client.attach()["success"]
        client.close()
    finally:
        rig.close()


@needs_root
def test_another_user_of_this_machine_gets_nowhere_even_with_the_token(tmp_path):
    addresses = [
        each.address
        for each in itertools.chain(*psutil.net_if_addrs().values())
        if each.family == socket.AF_INET and not each.address.startswith("127.")
    ]
    if not addresses:
        pytest.skip("this machine has no address but loopback")
    rig = Rig(tmp_path, address="0.0.0.0", token="secret")
    try:
        assert as_nobody(knock(rig.port, host=addresses[0])) == 0
        assert "from user nobody of this machine" in rig.notes[0]
        client = rig.client(host=addresses[0])
        assert client.attach()["success"]
        client.close()
    finally:
        rig.close()


TRAIN = """
import os, sys, tempfile
import ray.train
from ray.train import Checkpoint, ScalingConfig
from ray.train.torch import TorchTrainer

def train():
    for epoch in range(2):
        with tempfile.TemporaryDirectory() as directory:
            os.makedirs(os.path.join(directory, "deep"))
            for name in ("small", "deep/large"):
                with open(os.path.join(directory, name), "wb") as file:
                    file.write(b"x" * (20_000_000 if name.endswith("large") else 10))
            ray.train.report({"epoch": epoch}, checkpoint=Checkpoint.from_directory(directory))
    raise ValueError("planted")

TorchTrainer(train, scaling_config=ScalingConfig(num_workers=0)).fit()
"""


@pytest.mark.parametrize("umask", [0o000, 0o077], ids="umask {:03o}".format)
def test_everything_a_run_leaves_is_for_its_user_alone(launch, tmp_path, umask):
    (tmp_path / "train.py").write_text(TRAIN)
    before = os.umask(umask)
    try:
        job = launch("--no-torchrun", "--run-root", tmp_path / "new" / "root", "train.py")
    finally:
        os.umask(before)
    assert job.wait() == 1
    found = {}
    for directory, directories, files in os.walk(tmp_path / "new"):
        found[directory] = stat.S_IMODE(os.lstat(directory).st_mode)
        for name in files + [each for each in directories if os.path.islink(os.path.join(directory, each))]:
            status = os.lstat(os.path.join(directory, name))
            if not stat.S_ISLNK(status.st_mode):
                found[os.path.join(directory, name)] = stat.S_IMODE(status.st_mode)
    names = {os.path.basename(path) for path in found}
    assert {"run.json", "process.json", "reports.jsonl", "core.json", "small", "large", "deep"} <= names
    wrong = {path: oct(mode) for path, mode in found.items() if mode != (0o700 if os.path.isdir(path) else 0o600)}
    assert wrong == {}


def launch_refused(cwd, *arguments, env=None):
    (cwd / "train.py").write_text("open('started', 'w')\n")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "raytrain_debug",
            "launch",
            "--no-torchrun",
            "--base-port",
            "auto",
            *arguments,
            "train.py",
        ],
        cwd=cwd,
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=60,
    )
    assert not (cwd / "started").exists(), "the script was started"
    assert "Traceback" not in done.stderr
    assert done.returncode == 1
    return done.stderr


def test_a_run_root_that_is_a_symbolic_link_is_refused(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / layout.ROOT_NAME).symlink_to("elsewhere")
    said = launch_refused(tmp_path)
    assert f"{tmp_path / layout.ROOT_NAME} is a symbolic link\n  remove it, or choose another with --run-root" in said
    assert os.listdir(tmp_path / "elsewhere") == []
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "runs").symlink_to("../elsewhere")
    assert "own/runs is a symbolic link" in launch_refused(tmp_path, "--run-root", "own")
    assert os.listdir(tmp_path / "elsewhere") == []


@needs_root
def test_a_run_root_of_another_user_is_refused(tmp_path):
    root = tmp_path / layout.ROOT_NAME
    root.mkdir()
    os.chown(root, NOBODY, NOBODY)
    said = launch_refused(tmp_path)
    assert f"{root} belongs to user {NOBODY}, not to you" in said
    assert "--run-root" in said
    assert os.listdir(root) == []


@needs_root
def test_a_directory_for_sockets_that_another_user_has_made_is_refused(tmp_path, open_directory):
    theirs = open_directory / f"raytrain_debug-{os.geteuid()}"
    theirs.mkdir()
    os.chown(theirs, NOBODY, NOBODY)
    said = launch_refused(tmp_path, env={"TMPDIR": str(open_directory)})
    assert f"{theirs} belongs to user {NOBODY}, not to you" in said
    assert "set TMPDIR to a directory of your own" in said
    assert not (tmp_path / layout.ROOT_NAME).exists(), "a run that never was is recorded"


def test_a_directory_of_the_users_own_keeps_its_mode_and_content(launch, tmp_path):
    (tmp_path / "train.py").write_text("print('trained')\n")
    tmp_path.chmod(0o755)
    job = launch("--no-torchrun", "--run-root", tmp_path, "train.py")
    assert job.wait() == 0
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755
    assert not (tmp_path / ".gitignore").exists()
    assert stat.S_IMODE((tmp_path / "runs").stat().st_mode) == 0o700


def test_the_token_may_come_from_the_environment_and_ones_own_debugger_needs_none(launch):
    job = launch(
        "--nproc-per-node", "1", "--host", "0.0.0.0", STEPS, "100", "0.1", env={"RAYTRAIN_DEBUG_TOKEN": "secret"}
    )
    job.wait_state("dormant")
    session = job.session(0)
    assert session.threads()
    session.disconnect()
    wait_for(lambda: job.status()[0]["state"] == "dormant", 10, "rank 0 dormant")
    assert "secret" not in job.paths.record.read_text()
