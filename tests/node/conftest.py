import pytest

from penstock.node import Node
from tests.node.wire_client import connected


@pytest.fixture
def node():
    with Node.running(["default", "beer"], vbuckets=16) as node:
        yield node


@pytest.fixture
def client(node):
    """A connection that has selected no bucket, and so is in `default`."""
    with connected(node) as client:
        yield client


@pytest.fixture
def other(node):
    """Another such connection."""
    with connected(node) as client:
        yield client


@pytest.fixture
def consumer(node):
    """A second connection, with DCP OPEN done."""
    with connected(node) as client:
        yield client.open("consumer")
