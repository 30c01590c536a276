"""Couchbase's Python SDK on a cluster that nodes join and leave."""

from contextlib import ExitStack

import pytest

from tests.compat.installed import require_package

require_package("couchbase")

from couchbase.management.buckets import BucketType, CreateBucketSettings

from tests.node.membership.clusters import run_cluster

KEYS = [f"key{number}" for number in range(64)]


@pytest.fixture
def nodes():
    with ExitStack() as stack:
        yield stack.enter_context(run_cluster(stack, 2))


def create_bucket(cluster, name):
    """Create a bucket and return it."""
    settings = CreateBucketSettings(
        name=name, bucket_type=BucketType.COUCHBASE, ram_quota_mb=100, num_replicas=0, flush_enabled=True
    )
    cluster.buckets().create_bucket(settings)
    return cluster.bucket(name)


def count_on(web, bucket):
    """Return the number of documents on one node."""
    return web.get_json(f"/pools/default/buckets/{bucket}")["basicStats"]["itemCount"]


def test_documents_go_to_both_nodes(nodes, connect_cluster):
    cluster = connect_cluster(f"couchbase://127.0.0.1:{nodes[1].node.kv_port}")
    bucket = create_bucket(cluster, "wine")
    documents = bucket.default_collection()
    for key in KEYS:
        documents.upsert(key, {"key": key})
    assert all(documents.get(key).content_as[dict] == {"key": key} for key in KEYS)
    counts = [count_on(web, "wine") for web in nodes]
    assert sum(counts) == len(KEYS)
    assert all(counts)
    manager = bucket.collections()
    manager.create_scope("cellar")
    manager.create_collection("cellar", "red")
    red = bucket.scope("cellar").collection("red")
    for key in KEYS:
        red.upsert(key, "red")
    assert {key: red.get(key).value for key in KEYS} == dict.fromkeys(KEYS, "red")
    cluster.buckets().flush_bucket("wine")
    assert [count_on(web, "wine") for web in nodes] == [0, 0]
    cluster.buckets().drop_bucket("wine")
    assert {one.name for one in cluster.buckets().get_all_buckets()} == {"beer"}


def test_connected_client_uses_the_bucket_while_nodes_leave(nodes, connect_cluster):
    cluster = connect_cluster(f"couchbase://127.0.0.1:{nodes[0].node.kv_port}")
    documents = cluster.bucket("beer").default_collection()
    documents.upsert("before", 1)
    assert nodes[0].post("/controller/ejectNode", otpNode=nodes.names[1]).status == 200
    documents.upsert("after", 2)
    assert [documents.get(key).value for key in ("before", "after")] == [1, 2]
