"""Who is at the other end of a local connection, by the kernel's word and by its tables; who holds a port."""

import os
import socket
import subprocess
import sys

import pytest

from raytrain_debug.launcher import peers, ports
from tests.conftest import wait_for


@pytest.fixture(params=["the kernel", "its tables"])
def source(request, monkeypatch):
    if request.param == "its tables":

        def unsupported(*endpoints):
            raise OSError("no such thing here")

        monkeypatch.setattr(peers, "_ask_kernel", unsupported)


def connection(server_host, client_host=None):
    """A listening socket, a client connected to it, and the accepted end."""
    family = socket.AF_INET6 if ":" in server_host else socket.AF_INET
    listener = socket.create_server((server_host, 0), family=family)
    client_host = client_host or server_host
    client = socket.socket(socket.AF_INET6 if ":" in client_host else socket.AF_INET)
    client.connect((client_host, listener.getsockname()[1]))
    accepted, _ = listener.accept()
    return listener, client, accepted


def find(accepted):
    return peers.find_peer(accepted.getsockname()[:2], accepted.getpeername()[:2])


@pytest.mark.parametrize(
    ("server", "client"),
    [("127.0.0.1", "127.0.0.1"), ("::1", "::1"), ("127.0.0.1", "::ffff:127.0.0.1"), ("127.0.0.2", "127.0.0.2")],
)
def test_the_owner_of_a_local_connection_is_found(source, server, client):
    _, ours, accepted = connection(server, client)
    peer = find(accepted)
    assert peer == peers.Peer(os.geteuid(), os.fstat(ours.fileno()).st_ino)
    assert peers.is_ours(peer)


def test_a_connection_that_nobody_has_open_any_more_is_nobodys(source):
    _, client, accepted = connection("127.0.0.1")
    client.close()
    assert not peers.is_ours(find(accepted))


def test_what_is_not_on_this_machine_is_not_found(source):
    assert peers.find_peer(("127.0.0.1", 5678), ("192.0.2.1", 40000)) is None
    assert peers.find_peer(("::1", 5678), ("2001:db8::1", 40000)) is None
    assert not peers.is_ours(None)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user")
def test_another_users_connection_is_told_from_ours(source):
    listener = socket.create_server(("127.0.0.1", 0))
    command = (
        "import os, socket, sys; os.setuid(65534); "
        "kept = socket.socket(); kept.connect(('127.0.0.1', int(sys.argv[1]))); sys.stdin.read()"
    )
    listener.settimeout(10)
    port = str(listener.getsockname()[1])
    with subprocess.Popen([sys.executable, "-c", command, port], stdin=subprocess.PIPE) as stranger:
        accepted, _ = listener.accept()
        peer = find(accepted)
        assert peer is not None
        assert peer.uid == 65534
        assert not peers.is_ours(peer)
        stranger.stdin.close()


def test_loopback_addresses():
    for address in ("127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"):
        assert peers.is_loopback(address)
    for address in ("0.0.0.0", "::", "10.0.0.1", "fe80::1%eth0", "localhost", ""):
        assert not peers.is_loopback(address)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "0.0.0.0"])
def test_the_holder_of_a_port_is_named_by_command_and_pid(host):
    command = (
        "import socket, sys; "
        "family = socket.AF_INET6 if ':' in sys.argv[1] else socket.AF_INET; "
        "kept = socket.create_server((sys.argv[1], 0), family=family); "
        "print(kept.getsockname()[1], flush=True); sys.stdin.read()"
    )
    arguments = [sys.executable, "-c", command, host, "the holder"]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        text = peers.describe_port_holder(int(holder.stdout.readline()))
        assert text.endswith(f"(pid {holder.pid})")
        assert text.startswith(sys.executable)
        holder.stdin.close()


def test_a_port_that_was_let_go_of_is_said_to_be():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert peers.describe_port_holder(port) == "a process that has just let go of it"


def listening(bound):
    return sorted(each.getsockname()[0] for each in bound)


@pytest.mark.parametrize(
    ("host", "addresses"),
    [
        ("127.0.0.1", ["127.0.0.1", "::1"]),
        ("localhost", ["127.0.0.1", "::1"]),
        ("::1", ["127.0.0.1", "::1"]),
        ("127.0.0.2", ["127.0.0.2"]),
        ("0.0.0.0", ["0.0.0.0", "::1"]),
        ("::", ["0.0.0.0", "::"]),
    ],
)
def test_loopback_is_always_listened_on_in_both_families(host, addresses):
    _, bound = ports.bind_free_ports(host, [3])
    try:
        assert listening(bound[3]) == addresses
        assert len({each.getsockname()[1] for each in bound[3]}) == 1
    finally:
        ports.close_all(bound)


def test_free_ports_are_in_a_row_and_two_takers_get_different_ones():
    first, one = ports.bind_free_ports("127.0.0.1", [0, 1])
    second, other = ports.bind_free_ports("127.0.0.1", [2, 3])
    try:
        numbers = [[each[0].getsockname()[1] for each in bound.values()] for bound in (one, other)]
        assert numbers == [[first, first + 1], [second + 2, second + 3]]
        assert not set(numbers[0]) & set(numbers[1])
    finally:
        ports.close_all(one)
        ports.close_all(other)


def test_ports_that_were_bound_are_let_go_of_when_a_later_one_is_taken():
    base_port, bound = ports.bind_free_ports("127.0.0.1", [0, 1])
    for each in bound.pop(0):
        each.close()
    try:
        with pytest.raises(ports.PortTaken) as caught:
            ports.bind_ports("127.0.0.1", base_port, [0, 1])
        assert f"port {base_port + 1} is taken by" in str(caught.value)
        assert f"(pid {os.getpid()})" in str(caught.value)
        assert "--base-port auto" in caught.value.remedy
        wait_for(lambda: ports.bind_ports("127.0.0.1", base_port, [0]), what="port 0 to be free again")
    finally:
        ports.close_all(bound)


@pytest.mark.parametrize(("host", "base_port"), [("192.0.2.1", 20000), ("no.such.host.invalid", 20000), ("::1", 65535)])
def test_a_host_or_port_that_cannot_be_is_a_mistake_in_words(host, base_port):
    with pytest.raises(ports.UsageError) as caught:
        ports.bind_ports(host, base_port, [0, 1])
    assert caught.value.remedy
