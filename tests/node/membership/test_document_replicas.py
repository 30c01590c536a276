"""The vbuckets of a node after a failover."""

from penstock.node import Node
from penstock.node.membership.cluster_document import list_lost_vbuckets
from penstock.node.membership.document_replicas import apply_owners
from penstock.wire.codec.constants import VbucketState
from tests.node.membership.test_cluster_document import DOCUMENT
from tests.node.watch import run


def test_lost_vbuckets_of_a_node_become_dead_and_the_others_stay_active():
    before = DOCUMENT.with_map("beer", [("a",)] * 15 + [("b",)])
    after = before.with_map("beer", [("b",)] * 4 + [("a",)] * 12)
    (lost,) = list_lost_vbuckets(before, after, "a").values()
    assert lost == (0, 1, 2, 3)
    assert not list_lost_vbuckets(after, before.without_bucket("beer"), "a")
    with Node.running(["beer"], 16) as node:
        run(node, lambda: apply_owners(node.buckets["beer"], after, "a", lost))
        states = [vbucket.history.state for vbucket in node.buckets["beer"].store.vbuckets]
    assert states == [VbucketState.DEAD] * 4 + [VbucketState.ACTIVE] * 12
