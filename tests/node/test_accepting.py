"""A node with few file descriptors: it logs a warning, keeps its connections, and accepts new ones later."""

import json
import os
import resource
import socket
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace

import pytest

from penstock.node import Node
from penstock.node.transport.acceptor import limit_connections
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.kv import Noop
from tests.node.wire_client import connected
from tests.patience import PATIENCE
from tests.waiting import wait_readable

S = Status

SERVE = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, tuple(map(int, sys.argv[1:3])))
from penstock.cli import main
sys.argv = ["penstock", "serve", "--port", "0", "--http-port", "0", "--vbuckets", "4", "--json"]
main()
"""


@contextmanager
def serve_with_file_limits(soft, hard):
    """Run `penstock serve` in a process with these limits of open files.

    Yields:
        The process, and the address of its node.
    """
    command = [sys.executable, "-c", SERVE, str(soft), str(hard)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert wait_readable([process.stdout], 60), "the node did not start in time"
            ready = json.loads(process.stdout.readline())
            yield process, SimpleNamespace(host="127.0.0.1", kv_port=ready["kv_port"])
        finally:
            process.terminate()


def stop(process):
    """Terminate a process and return its log."""
    process.terminate()
    _, log = process.communicate(timeout=PATIENCE)
    return log


def count_open_files(process):
    return len(os.listdir(f"/proc/{process.pid}/fd"))


@pytest.mark.process
def test_node_raises_soft_file_limit_and_logs_a_low_hard_limit():
    with serve_with_file_limits(64, 1000) as (process, node):
        assert resource.prlimit(process.pid, resource.RLIMIT_NOFILE) == (1000, 1000)
        with ExitStack() as stack:
            clients = [stack.enter_context(connected(node)) for _ in range(200)]
            assert {client.status(Noop()) for client in clients} == {S.SUCCESS}
        log = stop(process)
    assert "this process may open 1000 files: at most 500 connections instead of 60000" in log
    assert "Too many open files" not in log


@pytest.mark.process
def test_node_without_file_descriptors_keeps_connections_and_accepts_later():
    with serve_with_file_limits(1000, 1000) as (process, node), connected(node) as known, ExitStack() as stack:
        assert known.status(Noop()) == S.SUCCESS
        limit = count_open_files(process) + 5
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (limit, 1000))
        clients = [stack.enter_context(connected(node)) for _ in range(20)]
        for client in clients[:5]:
            assert client.status(Noop()) == S.SUCCESS
        for client in clients[5:]:
            client.send(Noop())
        # 1.5 s are longer than until the node's next attempt to accept.
        assert wait_readable([client.socket for client in clients[5:]], 1.5) == []
        assert known.set(b"k", b"v").specific == S.SUCCESS
        assert known.get(b"k").value == b"v"
        for client in clients[:15]:
            client.close()
        for client in clients[15:]:
            assert client.receive().specific == S.SUCCESS
        log = stop(process)
    assert log.count("no connection can be accepted: Too many open files") == 1
    assert len(log.splitlines()) < 10


@pytest.mark.parametrize(("wanted", "places"), [(100, 100), (5000, 5000)])
def test_connection_limit_follows_file_limit(wanted, places, caplog):
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[1] > 6000, "this machine lets a process open too few files"
    caplog.set_level("INFO")
    assert limit_connections(wanted) == places
    assert not caplog.records


def list_transports(node):
    # Copies, since the node's thread changes the sets meanwhile.
    over_http, over_kv = tuple(node.http.connections), tuple(node.connections.open_connections)
    return [*(one.transport for one in over_http), *(one._transport for one in over_kv)]


@pytest.mark.parametrize("port", ["kv_port", "http_port"])
def test_replies_do_not_wait_for_tcp_acknowledgements(port):
    with Node.running(vbuckets=1) as node, socket.create_connection((node.host, getattr(node, port))) as client:
        client.sendall(b"GET /pools HTTP/1.1\r\n" if port == "http_port" else Noop().encode()[:10])
        while not (transports := list_transports(node)):
            continue
        (transport,) = transports
        assert transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
