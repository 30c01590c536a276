"""The cost of half-open and of idle connections, for a node in a process of its own."""

import resource
from functools import partial

import pytest

from benchmarks.idle import HALF_OPEN, HELLO, LOGIN, NOOP, certified, connect, growth, half_open
from benchmarks.process import penstock

pytestmark = pytest.mark.process

ALLOWED = 64 * 2**20 / 4096
"""Bytes of a half-open connection."""

IDLE, IDLE_TLS = 16 * 1024, 64 * 1024
"""Bytes of an idle connection that has logged in."""


@pytest.fixture
def node(tmp_path):
    with penstock("--vbuckets", 64, *certified(tmp_path)) as node:
        yield node


@pytest.fixture
def files():
    """Let this process have a connection to each of many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


COUNTS = [400, pytest.param(4096, marks=pytest.mark.soak)]


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize(("port", "sent"), [row[1:] for row in HALF_OPEN], ids=[row[0] for row in HALF_OPEN])
def test_node_serves_many_half_open_connections(node, files, port, sent, count):
    """Those of a whole ClientHello cost more, but there may be fewer of them."""
    more, _ = growth(node, count, partial(half_open, node.ready[port], sent))
    each = ALLOWED if count == 4096 or sent != HALF_OPEN[2][2] else 4 * ALLOWED
    assert more / count < each


@pytest.mark.soak
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "TLS"])
def test_node_serves_ten_thousand_idle_connections(node, files, tls):
    count = 10_000
    if files < count + 500:
        pytest.skip(f"a process may open {files} files here")
    port = node.ready["tls_port"] if tls else node.port
    more, _ = growth(node, count, partial(connect, port, [HELLO, LOGIN, NOOP], tls=tls))
    assert more / count < (IDLE_TLS if tls else IDLE)
