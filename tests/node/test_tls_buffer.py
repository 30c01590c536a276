"""What a connection with TLS costs while it is idle."""

import ssl
import tracemalloc
from contextlib import ExitStack
from datetime import UTC, datetime

import pytest

from penstock.node import Node
from penstock.node.login.certificates import make_certificates
from penstock.node.tls_buffer import TLS_BUFFER_BYTES
from penstock.wire.constants import Status
from penstock.wire.kv import Noop
from tests.node.wire_client import connected

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
