"""Memory of half-open and of idle connections, in a node in its own process."""

import resource
from functools import partial

import pytest

from benchmarks.idle import HALF_OPEN, HELLO, LOGIN, NOOP, make_tls_options, measure_growth, open_connection, open_half
from benchmarks.process import run_penstock

pytestmark = pytest.mark.process

ALLOWED = 64 * 2**20 / 4096
"""Allowed bytes for a half-open connection."""

IDLE, IDLE_TLS = 16 * 1024, 64 * 1024
"""Allowed bytes for an idle connection that has logged in, plain and with TLS."""


@pytest.fixture
def node(tmp_path):
    with run_penstock("--vbuckets", 64, *make_tls_options(tmp_path)) as node:
        yield node


@pytest.fixture
def file_limit():
    """Raise this process's limit of open files, and yield it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


COUNTS = [400, pytest.param(4096, marks=pytest.mark.soak)]


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize(("port", "sent"), [row[1:] for row in HALF_OPEN], ids=[row[0] for row in HALF_OPEN])
def test_node_serves_many_half_open_connections(node, file_limit, port, sent, count):
    """A connection with a whole ClientHello costs more, and the node allows fewer of them."""
    growth_bytes, _ = measure_growth(node, count, partial(open_half, node.ready[port], sent))
    each = ALLOWED if count == 4096 or sent != HALF_OPEN[2][2] else 4 * ALLOWED
    assert growth_bytes / count < each


@pytest.mark.soak
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "TLS"])
def test_node_serves_ten_thousand_idle_connections(node, file_limit, tls):
    count = 10_000
    if file_limit < count + 500:
        pytest.skip(f"a process may open {file_limit} files here")
    port = node.ready["tls_port"] if tls else node.port
    growth_bytes, _ = measure_growth(node, count, partial(open_connection, port, [HELLO, LOGIN, NOOP], tls=tls))
    assert growth_bytes / count < (IDLE_TLS if tls else IDLE)
