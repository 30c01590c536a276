import pytest

from penstock.node import Node
from tests.node.wire_client import connected


@pytest.fixture
def node():
    with Node.running(["default", "beer"], vbuckets=16) as node:
        yield node


@pytest.fixture
def client(node):
    """Connect without selecting a bucket: the connection uses `default`."""
    with connected(node) as client:
        yield client


@pytest.fixture
def other(node):
    """Connect a second client in the same way."""
    with connected(node) as client:
        yield client


@pytest.fixture
def consumer(node):
    """Connect a DCP producer connection: OPEN was sent."""
    with connected(node) as client:
        yield client.open("consumer")
