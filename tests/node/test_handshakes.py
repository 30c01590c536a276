"""What a connection with TLS costs, idle or not even there yet."""

import asyncio
import socket
import ssl
import tracemalloc
from contextlib import ExitStack
from datetime import UTC, datetime

import pytest

from penstock.node import Node, handshakes
from penstock.node.handshakes import TLS_BUFFER_BYTES
from penstock.node.login.certificates import make_certificates
from penstock.wire.constants import Status
from penstock.wire.kv import Noop
from tests.node.wire_client import SECONDS, connected

CONNECTIONS = 40


@pytest.fixture
def encrypted(tmp_path):
    """A node, and what its clients believe."""
    made = make_certificates([], "root", 2, datetime.now(UTC))
    for name, content in (("pem", made["server"].certificate), ("key", made["server"].key)):
        (tmp_path / name).write_bytes(content)
    context = ssl.create_default_context(cadata=made["ca"].certificate.decode())
    with Node.running(vbuckets=1, tls_port=0, certificate=tmp_path / "pem", key=tmp_path / "key") as node:
        yield node, context


def test_an_idle_connection_keeps_a_small_buffer(encrypted):
    node, context = encrypted
    with ExitStack() as stack:
        clients = [stack.enter_context(connected(node, tls=context))]
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            clients += [stack.enter_context(connected(node, tls=context)) for _ in range(CONNECTIONS)]
            for client in clients:
                assert client.status(Noop()) == Status.SUCCESS
            each = (tracemalloc.get_traced_memory()[0] - before) / CONNECTIONS
        finally:
            tracemalloc.stop()
    assert each < 4 * TLS_BUFFER_BYTES  # with the client's own part


def test_what_is_longer_than_the_buffer_arrives(encrypted):
    node, context = encrypted
    value = bytes(range(256)) * (TLS_BUFFER_BYTES // 16)
    with connected(node, tls=context) as client:
        assert client.set(b"k", value).specific == Status.SUCCESS
        assert client.get(b"k").value == value


def test_peers_that_say_nothing_cost_little(encrypted):
    """A peer's part is a socket; what is set aside for it is the node's."""
    node, context = encrypted
    with ExitStack() as stack, connected(node, tls=context) as client:
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            for _ in range(CONNECTIONS):
                stack.enter_context(socket.create_connection((node.host, node.tls_port), SECONDS))
            assert client.status(Noop()) == Status.SUCCESS
            with connected(node, tls=context) as last:
                assert last.status(Noop()) == Status.SUCCESS
            each = (tracemalloc.get_traced_memory()[0] - before) / CONNECTIONS
        finally:
            tracemalloc.stop()
    assert TLS_BUFFER_BYTES < each < 2 * TLS_BUFFER_BYTES


@pytest.mark.parametrize("port", ["tls_port", "https_port"])
def test_only_so_many_shake_hands_at_once(encrypted, monkeypatch, port):
    monkeypatch.setattr(handshakes, "MOST_HANDSHAKES", 3)
    node, context = encrypted
    with ExitStack() as stack:
        silent = [
            stack.enter_context(socket.create_connection((node.host, getattr(node, port)), SECONDS)) for _ in range(4)
        ]
        assert ended(silent[0])
        with connected(node, tls=context) as client:  # so the second is too many as well
            assert client.status(Noop()) == Status.SUCCESS
        assert ended(silent[1])
        silent[2].settimeout(0)
        with pytest.raises(BlockingIOError):
            silent[2].recv(1)


def ended(peer):
    try:
        return not peer.recv(1)
    except ConnectionResetError:
        return True


def test_a_node_that_stops_waits_for_no_handshake(encrypted):
    node, _ = encrypted
    peer = socket.create_connection((node.host, node.tls_port), SECONDS)
    asyncio.run_coroutine_threadsafe(node.stop(), node.loop).result(SECONDS)
    with peer:
        assert ended(peer)
