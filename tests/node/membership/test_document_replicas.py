"""The vbuckets of a node after a failover, by the document of the cluster."""

from msgspec.structs import replace

from penstock.node import Node
from penstock.node.membership.document_replicas import apply_owners
from penstock.wire.codec.constants import VbucketState
from tests.node.membership.test_cluster_document import DOCUMENT
from tests.node.watch import run


def test_node_that_was_failed_over_has_no_active_vbuckets():
    lost = tuple(replace(node, failed=node.id == "a") for node in DOCUMENT.nodes)
    document = replace(DOCUMENT, nodes=lost).with_map("beer", [("b",)] * 16)
    with Node.running(["beer"], 16) as node:
        run(node, lambda: apply_owners(node.buckets["beer"], document, "a"))
        states = {vbucket.history.state for vbucket in node.buckets["beer"].store.vbuckets}
    assert states == {VbucketState.DEAD}
