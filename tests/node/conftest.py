import pytest

from penstock.node import Node
from penstock.wire.codec.constants import Feature
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.kv import Hello, pack_features
from tests.node.brewery import MANIFEST, set_manifest
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


@pytest.fixture
def modern(node):
    """Connect a client with collections to a bucket with some collections."""
    with connected(node) as client:
        client.ask(Hello(value=pack_features([Feature.COLLECTIONS, Feature.XERROR, Feature.JSON])))
        assert set_manifest(client, MANIFEST) == Status.SUCCESS
        yield client
