"""New buckets with change history: each vbucket has a system event of its own, and still belongs to no node."""

from contextlib import ExitStack

import pytest

from penstock.client.cluster.cluster_file import BucketEntry, ClusterFile, NodeEntry
from penstock.client.cluster.orchestrator import Orchestrator
from penstock.client.cluster.replica_choice import parse_node_report
from penstock.errors import UsageError
from penstock.node import Node
from penstock.store.definition.bucket_settings import BucketSettings
from penstock.wire.messages.kv import Delete, Set
from tests.client.peer import in_loop
from tests.node.manifests import ALE, DEFAULT, make_beers, set_scopes
from tests.node.watch import run
from tests.node.wire_client import connected
from tests.patience import PATIENCE

VBUCKETS = 4


@pytest.fixture
def nodes():
    settings = BucketSettings(retention_seconds=60)
    with ExitStack() as stack:
        yield [stack.enter_context(Node.running(["beer"], VBUCKETS, settings=settings)) for _ in range(3)]


@in_loop
async def spread(*nodes):
    entries = [NodeEntry(url=f"couchbase://127.0.0.1:{node.kv_port}?retrySeconds={PATIENCE}") for node in nodes]
    bucket = BucketEntry(name="beer", vbuckets=VBUCKETS, replicas=1)
    orchestrator = Orchestrator(ClusterFile("lab.toml", tuple(entries), (bucket,)))
    await orchestrator.rebalance(lambda difference: None)
    assert {row.state for row in await orchestrator.read_rows(bucket)} == {"ok"}


def count_documents(node):
    return run(node, lambda: [each.changes.items for each in node.buckets["beer"].store.vbuckets])


def test_nodes_with_new_buckets_become_a_cluster(nodes):
    spread(*nodes)


def test_documents_of_one_node_are_kept(nodes):
    with connected(nodes[0], "beer") as client:
        assert client.status(Set(key=b"k", value=b"v", vbucket=2)) == 0
    spread(*nodes)
    assert sorted(count_documents(node)[2] for node in nodes) == [0, 1, 1]


def test_documents_of_two_nodes_are_refused(nodes):
    for node in nodes[:2]:
        with connected(node, "beer") as client:
            assert client.status(Set(key=b"k", value=b"v", vbucket=2)) == 0
    with pytest.raises(UsageError, match="changes of its own in vbuckets 2, which"):
        spread(*nodes)
    assert [count_documents(node)[2] for node in nodes] == [1, 1, 0]


def read_unused(node):
    with connected(node, "beer") as client:
        return parse_node_report(client.stats("vbucket-details")).unused


def test_vbucket_with_a_document_a_tombstone_or_a_collection_is_used(nodes):
    node = nodes[0]
    assert read_unused(node) == dict.fromkeys(range(VBUCKETS), 1)
    with connected(node, "beer") as client:
        assert client.status(Set(key=b"k", value=b"v", vbucket=0)) == 0
        assert client.status(Set(key=b"k", value=b"v", vbucket=1)) == 0
        assert client.status(Delete(key=b"k", vbucket=1)) == 0
        assert read_unused(node) == {0: 0, 1: 0, 2: 1, 3: 1}
        set_scopes(client, 9, DEFAULT, make_beers(ALE))
    assert read_unused(node) == dict.fromkeys(range(VBUCKETS), 0)


@pytest.mark.parametrize("message", [Set(key=b"k", value=b"v"), Delete(key=b"k")])
def test_first_change_of_a_bucket_without_history_is_no_event(message):
    with Node.running(["beer"], 1) as node, connected(node, "beer") as client:
        assert read_unused(node) == {0: 1}
        client.status(Set(key=b"k", value=b"v"))
        client.status(message)
        assert read_unused(node) == {0: 0}
