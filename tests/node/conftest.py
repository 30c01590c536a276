import pytest

from penstock.node import Node
from penstock.wire.codec.constants import Feature
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.kv import Hello, pack_features
from tests.node.brewery import MANIFEST, set_manifest
from tests.node.manifests import ALE, DEFAULT, LAGER, make_beers, set_scopes
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


@pytest.fixture
def beer_writer(node):
    """Connect a client with collections, and create a scope with two collections: seqnos 1 to 3 of each vbucket."""
    with connected(node) as client:
        client.hello(Feature.COLLECTIONS)
        set_scopes(client, 1, DEFAULT, make_beers(ALE, LAGER))
        yield client


@pytest.fixture
def beer_consumer(node, beer_writer):
    """Connect a consumer with collections."""
    with connected(node) as client:
        client.hello(Feature.COLLECTIONS).open("modern")
        client.control("enable_noop", "true")
        yield client
