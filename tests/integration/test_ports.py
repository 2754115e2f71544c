"""Ports of `launch`: taken ones, free ones, two runs side by side, and every name of this machine."""

import contextlib
import json
import os
import re
import socket
import subprocess
import sys

import pytest

from raytrain_debug.dap.session import Session
from tests.conftest import TARGETS, free_base_port

STEPS = TARGETS / "steps.py"

HOLD = """
import socket, sys
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
kept = socket.create_server((sys.argv[1], int(sys.argv[2])), family=family)
print("ready", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def held(host, port):
    """Another process listens on the port."""
    arguments = [sys.executable, "-c", HOLD, host, str(port)]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "ready\n"
        yield holder
        holder.stdin.close()


def command(cwd, *arguments):
    return subprocess.run(
        [sys.executable, "-m", "raytrain_debug", *map(str, arguments)],
        cwd=cwd,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=60,
    )


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "0.0.0.0"])
def test_a_taken_port_is_named_with_its_holder_and_nothing_is_started(tmp_path, host):
    base_port = free_base_port(2)
    (tmp_path / "train.py").write_text("open('started', 'w')\n")
    with held(host, base_port + 1) as holder:
        done = command(tmp_path, "launch", "--nproc-per-node", "2", "--base-port", base_port, "train.py")
    assert done.returncode == 1
    (line,) = re.findall(r"error: (port .*)\n", done.stderr)
    assert line.startswith(f"port {base_port + 1} is taken by {sys.executable} -c import socket, sys")
    assert line.endswith(f"(pid {holder.pid})")
    assert "choose other ports with --base-port PORT or --base-port auto" in done.stderr
    assert "Traceback" not in done.stderr
    assert os.listdir(tmp_path) == ["train.py"], "something was started or left behind"


def test_the_ports_of_a_run_are_refused_to_the_next_which_finds_others_with_auto(launch, tmp_path):
    first = launch("--nproc-per-node", "2", STEPS, "200", "0.1")
    first.wait_state("dormant", (0, 1))
    refused = command(tmp_path, "launch", "--nproc-per-node", "1", "--base-port", first.base_port, STEPS, "1")
    assert refused.returncode == 1
    assert f"port {first.base_port} is taken by " in refused.stderr
    assert f"raytrain_debug launch --base-port {first.base_port}" in refused.stderr
    assert f"(pid {first.process.pid})" in refused.stderr

    (tmp_path / "second").mkdir()
    second = launch("--base-port", "auto", "--nproc-per-node", "2", STEPS, "200", "0.1", cwd=tmp_path / "second")
    second.wait_state("dormant", (0, 1))
    ports = {
        job: {rank["rank"]: rank["port"] for rank in json.loads(command(job.cwd, "status", "--json").stdout)["ranks"]}
        for job in (first, second)
    }
    assert ports[first] == {0: first.base_port, 1: first.base_port + 1}
    assert ports[second][1] == ports[second][0] + 1
    assert ports[second][0] >= 25678, "5678 is left to a job that is to be found there"
    assert not set(ports[first].values()) & set(ports[second].values())
    assert f"gateway ready on 127.0.0.1:{ports[second][0]}-{ports[second][1]} " in second.output
    for job in (first, second):
        done = command(job.cwd, "attach", "--rank", "1", "-c", "p __rank__, __import__('os').getpid()")
        assert done.stdout == f"(1, {job.status()[1]['pid']})\n"


def test_a_rank_is_debugged_at_every_name_of_this_machine(launch):
    job = launch("--nproc-per-node", "1", STEPS, "200", "0.1")
    job.wait_state("dormant")
    for host in ("127.0.0.1", "::1", "localhost"):
        session = Session(host, job.base_port, "rank 0")
        session.attach(timeout=20)
        assert session.training_thread().name == "MainThread"
        session.disconnect()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--base-port", "65535"], "rank 1 would need port 65536"),
        (["--base-port", "many"], "--base-port many is no port"),
        (
            ["--host", "192.0.2.1", "--token", "x"],
            "cannot listen on 192.0.2.1 port 5678: Cannot assign requested address",
        ),
        (["--nnodes", "2", "--base-port", "65533"], "4 ranks have no ports from 65533 on"),
        (["--nnodes", "2", "--host", "192.0.2.1", "--token", "x"], "cannot listen on 192.0.2.1 port"),
        (["--host", "0.0.0.0"], "--host 0.0.0.0 lets other machines in"),
    ],
)
def test_a_port_or_host_that_cannot_be_is_a_mistake_in_words(tmp_path, arguments, words):
    done = command(tmp_path, "launch", "--nproc-per-node", "2", *arguments, STEPS, "1")
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert os.listdir(tmp_path) == []


def test_a_connection_of_its_own_does_not_take_a_port_from_the_run(tmp_path):
    # A socket that is merely connected from the port, as any outgoing connection may be, is no listener.
    base_port = free_base_port(1)
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        client.bind(("127.0.0.1", base_port))
        client.connect(server.getsockname())
        (tmp_path / "train.py").write_text("print('trained')\n")
        done = command(tmp_path, "launch", "--no-torchrun", "--base-port", base_port, "train.py")
    assert done.stdout == "trained\n"
    assert done.returncode == 0
