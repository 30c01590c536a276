"""The checks of a rebalance, and whether a cluster needs one."""

import pytest
from msgspec.structs import replace

from penstock.errors import UsageError
from penstock.node.buckets.bucket_spec import BucketSpec
from penstock.node.membership.cluster_document import ClusterDocument, ClusterNode
from penstock.node.rebalance.rebalance_request import (
    MismatchedNodes,
    NoNodesLeft,
    RebalanceRequest,
    begin_rebalance,
    end_rebalance,
    is_balanced,
)

NODES = tuple(ClusterNode(id=name, host="host", kv=number + 1) for number, name in enumerate("abc"))
ALL = frozenset({"ns_a@host", "ns_b@host", "ns_c@host"})
SPEC = BucketSpec(name="beer", vbuckets=4, uuid="1" * 32, replicas=1)
DOCUMENT = ClusterDocument(uuid="1", nodes=NODES).with_bucket(SPEC)


@pytest.mark.parametrize(
    ("known", "ejected", "error"),
    [
        (ALL - {"ns_c@host"}, (), MismatchedNodes),
        (ALL | {"ns_d@host"}, (), MismatchedNodes),
        ((), (), MismatchedNodes),
        (ALL, {"ns_d@host"}, MismatchedNodes),
        (ALL, ALL, NoNodesLeft),
    ],
)
def test_request_names_all_nodes_and_leaves_one(known, ejected, error):
    with pytest.raises(error, match="expected"):
        begin_rebalance(DOCUMENT, RebalanceRequest(frozenset(known), frozenset(ejected)), "a")


def test_one_member_at_a_time_runs_a_rebalance():
    request = RebalanceRequest(ALL, frozenset())
    running = begin_rebalance(DOCUMENT, request, "a")
    with pytest.raises(UsageError, match="ns_a@host runs a rebalance already"):
        begin_rebalance(running, request, "b")
    assert end_rebalance(running, "b") == running
    assert end_rebalance(running, "a") == DOCUMENT
    failed = running.with_nodes((replace(NODES[0], failed=True), *NODES[1:]))
    assert begin_rebalance(failed, request, "b").rebalancing == "b"


def test_keys_of_a_plain_cache_cannot_leave_a_node():
    cache = DOCUMENT.with_bucket(BucketSpec(name="cache", kind="memcached", uuid="2" * 32))
    with pytest.raises(UsageError, match="'cache' is a plain cache"):
        begin_rebalance(cache, RebalanceRequest(ALL, frozenset({"ns_b@host"})), "a")


@pytest.mark.parametrize(
    ("chains", "expected"),
    [
        ([("a", "b"), ("b", "c"), ("c", "a"), ("a", "c")], True),
        ([("a", "b"), ("b", "c"), ("c", "a"), ("a", None)], False),
        ([("a", "b"), ("b", "c"), ("c", "a"), (None, "c")], False),
        ([("a", "b"), ("b", "a"), ("b", "a"), ("a", "b")], False),
        ([("a",), ("b",), ("c",), ("a",)], False),
        ([("a", "b", "c"), ("b", "c"), ("c", "a"), ("a", "c")], False),
    ],
)
def test_balanced_cluster_has_all_copies_and_even_owners(chains, expected):
    assert is_balanced(DOCUMENT.with_map("beer", chains)) is expected


def test_cluster_with_a_failed_node_is_not_balanced():
    document = ClusterDocument(uuid="1", nodes=NODES)
    assert is_balanced(document)
    assert not is_balanced(document.with_nodes((replace(NODES[0], failed=True), *NODES[1:])))
