"""Failovers of processes: their documents, replicas and owners."""

import asyncio
from dataclasses import replace

from penstock.client.connect.address import parse_address
from penstock.client.replication.map_publisher import MapPublisher
from penstock.client.replication.replicator import ReplicationOptions, Replicator
from penstock.node.agreement.serving_lease import ServingLease
from penstock.node.membership.member_file import MemberFile
from penstock.node.membership.member_state import MemberState
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.kv import Set
from tests.node.membership.member_process import wait_for
from tests.node.wire_client import connected
from tests.patience import PATIENCE

__all__ = [
    "DOCUMENTS",
    "VBUCKETS",
    "copy_vbuckets",
    "find_owner",
    "list_nodes",
    "make_address",
    "make_replicas",
    "make_state",
    "read_all",
    "wait_failed_over",
    "write_documents",
]

VBUCKETS = 4
DOCUMENTS = 40


class UnusedRevisions:
    """Uses no revision, as a member that ends before that."""

    def schedule(self, revision, lost):
        pass

    async def wait(self, number, seconds):
        pass


def make_state(member, file=None):
    """Return the state of a stored member that uses no revision."""
    return MemberState(member, file or MemberFile(None), UnusedRevisions(), ServingLease(lambda: 0.0))


def make_address(member):
    return parse_address(f"couchbase://127.0.0.1:{member.ports[0]}/default")


def list_nodes(member):
    return member.web.get_json("/pools/default")["nodes"]


def write_documents(member, numbers, value=b"%d"):
    """Write numbered documents to the owner of all vbuckets."""
    with connected(member.node, "default") as client:
        for number in numbers:
            request = Set(key=b"%d" % number, value=value % number, vbucket=number % VBUCKETS)
            wait_for(lambda r=request: client.status(r) == Status.SUCCESS, "a write")


def copy_vbuckets(source, target, vbuckets):
    """Copy vbuckets of a node to a target, up to now."""

    async def run():
        options = ReplicationOptions(vbuckets=vbuckets, overwrite=True, until_caught_up=True)
        async with Replicator(make_address(source), make_address(target), options) as replicator:
            await replicator.run()

    asyncio.run(asyncio.wait_for(run(), PATIENCE))


def make_replicas(first, others):
    """Copy all vbuckets of a node to the others, which its map lists as replicas then."""
    for member in others:
        copy_vbuckets(first, member, range(VBUCKETS))
    asyncio.run(asyncio.wait_for(publish_replicas(first, others), PATIENCE))


async def publish_replicas(first, others):
    """List the other nodes as replicas of all vbuckets of the first one.

    Args:
        first: the first member.
        others: the members in the order of the map, behind the first one.
    """
    publisher = MapPublisher(make_address(first))
    try:
        await publisher.load(("127.0.0.1", first.ports[0]))
        numbers = range(1, len(others) + 1)
        await publisher.publish(replace(publisher.layout, chains=((0, *numbers),) * VBUCKETS))
    finally:
        await publisher.close()


def find_owner(member, vbucket):
    """Return the number of the node that owns a vbucket. Maps do not list nodes that were failed over."""
    found = member.web.get_json("/pools/default/b/default")["vBucketServerMap"]
    port = int(found["serverList"][found["vBucketMap"][vbucket][0]].rpartition(":")[2])
    return [node["ports"]["direct"] for node in list_nodes(member)].index(port)


def read_all(members):
    """Return the values of all documents, each from the owner of its vbucket."""
    found = {}
    for vbucket in range(VBUCKETS):
        owner = members[find_owner(members[-1], vbucket)]
        with connected(owner.node, "default") as client:
            for number in range(vbucket, DOCUMENTS, VBUCKETS):
                found[number] = client.get(b"%d" % number, vbucket=vbucket).value
    return found


def wait_failed_over(lost, member):
    """Wait until a member shows the node with a number as failed over."""
    wait_for(lambda: list_nodes(member)[lost]["clusterMembership"] == "inactiveFailed", "the failover")
