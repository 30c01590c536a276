"""Couchbase's Python SDK uses a cluster of the pytest plugin, while nodes are restarted and failed over."""

from datetime import timedelta

import pytest

from tests.compat.installed import require_package
from tests.node.serve_process import wait_for

require_package("couchbase")

from couchbase.exceptions import CouchbaseException
from couchbase.options import GetOptions, UpsertOptions

KEYS = [f"key-{number}" for number in range(64)]
TIMEOUT = timedelta(seconds=5)


@pytest.fixture
def cluster(penstock_cluster):
    return penstock_cluster(3, bucket="beer")


@pytest.fixture
def collection(cluster, connect_cluster):
    return connect_cluster(cluster.url).bucket("beer").default_collection()


def write_all(collection, value):
    """Write each document until that succeeds: a client may meet a node that is just being replaced."""

    def write(key):
        try:
            collection.upsert(key, value, UpsertOptions(timeout=TIMEOUT))
        except CouchbaseException:
            return False
        return True

    for key in KEYS:
        wait_for(lambda key=key: write(key), f"a write of {key}")


def read_all(collection):
    """Read each document until that succeeds, and return the values."""
    found = {}

    def read(key):
        try:
            found[key] = collection.get(key, GetOptions(timeout=TIMEOUT)).value
        except CouchbaseException:
            return False
        return True

    for key in KEYS:
        wait_for(lambda key=key: read(key), f"a read of {key}")
    return found


def find_owners(cluster):
    return {cluster.bucket.find_owner(vbucket) for vbucket in range(cluster.bucket.vbuckets)}


def test_client_goes_on_through_a_restart_and_a_failover(cluster, collection):
    assert find_owners(cluster) == {0, 1, 2}
    write_all(collection, "one")
    assert read_all(collection) == dict.fromkeys(KEYS, "one")
    cluster.nodes[1].restart()
    assert read_all(collection) == dict.fromkeys(KEYS, "one")
    write_all(collection, "two")
    cluster.bucket.replicate()
    cluster.nodes[2].stop()
    assert not cluster.bucket.fail_over(2).is_reachable
    assert find_owners(cluster) == {0, 1}
    assert read_all(collection) == dict.fromkeys(KEYS, "two")
    write_all(collection, "three")
    assert read_all(collection) == dict.fromkeys(KEYS, "three")
