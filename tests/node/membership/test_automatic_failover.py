"""Processes that are killed and failed over by the others."""

import asyncio
from dataclasses import replace

import pytest

from penstock.client.connect.address import parse_address
from penstock.client.replication.map_publisher import MapPublisher
from penstock.client.replication.replicator import ReplicationOptions, Replicator
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.kv import Set
from tests.node.membership.clusters import BUCKETS
from tests.node.membership.member_process import run_members, wait_for
from tests.node.wire_client import connected
from tests.patience import PATIENCE

VBUCKETS = 4
DOCUMENTS = 40


def make_address(member):
    return parse_address(f"couchbase://127.0.0.1:{member.ports[0]}/default")


def list_nodes(member):
    return member.web.get_json("/pools/default")["nodes"]


async def copy_to(first, others):
    """Copy all vbuckets of a node to the others, which its map lists as replicas then."""
    for member in others:
        options = ReplicationOptions(vbuckets=range(VBUCKETS), overwrite=True, until_caught_up=True)
        async with Replicator(make_address(first), make_address(member), options) as replicator:
            await replicator.run()
    publisher = MapPublisher(make_address(first))
    try:
        await publisher.load(("127.0.0.1", first.ports[0]))
        numbers = range(1, len(others) + 1)
        await publisher.publish(replace(publisher.layout, chains=((0, *numbers),) * VBUCKETS))
    finally:
        await publisher.close()


def find_owner(member, vbucket):
    """Return the number of the node that owns a vbucket."""
    return member.web.get_json("/pools/default/b/default")["vBucketServerMap"]["vBucketMap"][vbucket][0]


def read_all(members):
    """Return the values of all documents, each from the owner of its vbucket."""
    found = {}
    for vbucket in range(VBUCKETS):
        owner = members[find_owner(members[-1], vbucket)]
        with connected(owner.node, "default") as client:
            for number in range(vbucket, DOCUMENTS, VBUCKETS):
                found[number] = client.get(b"%d" % number, vbucket=vbucket).value
    return found


@pytest.mark.process
def test_killed_node_is_failed_over_and_comes_back(tmp_path):
    with run_members(tmp_path, 3, "--lease-seconds", 2, "--auto-failover-seconds", 4) as members:
        first, second, third = members
        with connected(first.node, "default") as client:
            for number in range(DOCUMENTS):
                request = Set(key=b"%d" % number, value=b"%d" % number, vbucket=number % VBUCKETS)
                wait_for(lambda r=request: client.status(r) == Status.SUCCESS, "a write")
        asyncio.run(asyncio.wait_for(copy_to(first, members[1:]), PATIENCE))
        settings = second.web.get_json("/settings/autoFailover")
        assert settings == {"enabled": True, "timeout": 4.0, "maxCount": 1, "count": 0}

        first.kill()
        wait_for(lambda: list_nodes(third)[0]["clusterMembership"] == "inactiveFailed", "the failover")
        wait_for(lambda: find_owner(second, 0) == find_owner(third, 0) != 0, "the map")
        expected = {number: b"%d" % number for number in range(DOCUMENTS)}
        wait_for(lambda: read_all(members) == expected, "the documents on the new owners")
        owner = members[find_owner(third, 0)]
        with connected(owner.node, "default") as client:
            assert client.stats("failovers 0")["vb_0:num_entries"] == "2"
            wait_for(lambda: client.status(Set(key=b"new", value=b"v")) == Status.SUCCESS, "a write")
        assert third.web.get_json("/settings/autoFailover")["count"] == 1

        first.start()
        with connected(first.node, "default") as client:
            wait_for(lambda: client.stats("lease")["lease_state"] == "excluded", "the node learns its failover")
            assert client.get(b"0").specific == Status.NOT_MY_VBUCKET
            assert first.web.post("/settings/autoFailover/resetCount").status == 200
            name = list_nodes(third)[0]["otpNode"]
            assert third.web.post("/controller/reAddNode", otpNode=name).status == 200
            wait_for(lambda: client.stats("lease")["lease_serves_documents"] == "true", "the node is a member again")
            assert client.get(b"0").specific == Status.NOT_MY_VBUCKET
        assert list_nodes(third)[0]["clusterMembership"] == "inactiveAdded"
        assert third.web.post("/controller/reAddNode", otpNode=name).status == 400
        assert third.web.post(BUCKETS, name="wine", ramQuota=100).status == 202
