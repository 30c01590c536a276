"""The vbuckets of a node after a failover."""

import asyncio

from penstock.client.connect.address import parse_address
from penstock.client.replication.replicator import ReplicationOptions, Replicator
from penstock.node import Node
from penstock.node.agreement.acceptor_state import AcceptorState
from penstock.node.agreement.revisions import Revision
from penstock.node.membership.cluster_document import list_lost_vbuckets
from penstock.node.membership.document_replicas import apply_owners, list_replicas
from penstock.node.membership.member_file import StoredMember
from penstock.wire.codec.constants import VbucketState
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.kv import Set, SetVbucket
from tests.node.membership.failovers import make_state
from tests.node.membership.test_cluster_document import DOCUMENT
from tests.node.watch import run
from tests.node.wire_client import connected
from tests.patience import PATIENCE


def test_lost_vbuckets_of_a_node_become_dead_and_the_others_stay_active():
    before = DOCUMENT.with_map("beer", [("a",)] * 15 + [("b",)])
    after = before.with_map("beer", [("b",)] * 4 + [("a",)] * 12)
    (lost,) = list_lost_vbuckets(before, after, "a").values()
    assert lost == (0, 1, 2, 3)
    assert not list_lost_vbuckets(after, before.without_bucket("beer"), "a")
    known = dict.fromkeys(list_lost_vbuckets(before, after, "a"), (1, 12))
    assert list(list_lost_vbuckets(before, after, "a", known).values()) == [(0, 1, 2, 3)]
    assert list(list_lost_vbuckets(before, before, "a", dict.fromkeys(known, (1, 15))).values()) == [(15,)]
    with Node.running(["beer"], 16) as node:
        run(node, lambda: apply_owners(node.buckets["beer"], after, "a", lost))
        states = [vbucket.history.state for vbucket in node.buckets["beer"].store.vbuckets]
    assert states == [VbucketState.DEAD] * 4 + [VbucketState.ACTIVE] * 12


def follow(source, target, vbuckets):
    """Copy vbuckets of a node, up to now."""

    async def copy():
        options = ReplicationOptions(vbuckets=vbuckets, until_caught_up=True)
        async with Replicator(
            parse_address(source.url("beer")), parse_address(target.url("beer")), options
        ) as replicator:
            await replicator.run()

    asyncio.run(asyncio.wait_for(copy(), PATIENCE))


def list_reported(node, document, lost=None):
    """Return the vbuckets that a node reports as replicas of member `a`."""
    revision = Revision(2, ("a", "b"), {}, document.to_content())
    state = make_state(StoredMember("b", "", AcceptorState(revision), lost=lost or {}))
    return run(node, lambda: [each.vbucket for each in list_replicas(node.buckets, state, "a")["beer"]])


def test_replica_that_never_followed_is_not_reported():
    document = DOCUMENT.with_map("beer", [("a", "b")] * 16)
    with Node.running(["beer"], 16) as source, Node.running(["beer"], 16) as node:
        with connected(source, "beer") as client:
            assert client.status(Set(key=b"k", value=b"v", vbucket=1)) == Status.SUCCESS
        with connected(node, "beer") as client:
            for vbucket in range(16):
                assert client.status(SetVbucket(vbucket=vbucket, state=VbucketState.REPLICA)) == Status.SUCCESS
        assert list_reported(node, document) == []
        follow(source, node, [0, 1])
        assert list_reported(node, document) == [0, 1]


def test_active_vbucket_that_the_node_has_lost_is_not_reported():
    document = DOCUMENT.with_map("beer", [("a", "b")] * 16)
    with Node.running(["beer"], 16) as node:
        with connected(node, "beer") as client:
            for vbucket in (1, 2):
                assert client.status(Set(key=b"k", value=b"v", vbucket=vbucket)) == Status.SUCCESS
        assert list_reported(node, document) == [1, 2]
        assert list_reported(node, document, {document.get_bucket("beer").spec.uuid: (2,)}) == [1]
