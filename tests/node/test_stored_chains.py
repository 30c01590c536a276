"""The replication chains of processes that are killed: durable writes wait for the same nodes after a restart."""

import asyncio
import json
from dataclasses import replace

import pytest

from penstock.client.cluster.map_publisher import MapPublisher
from penstock.client.cluster.node_failover import fail_over
from penstock.wire.codec.constants import DurabilityLevel, Feature, VbucketState
from penstock.wire.codec.flags import Datatype
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.frame_info import Durability, RequestInfos, pack_request_infos
from penstock.wire.messages.kv import DelVbucket, SeqnoPersistence, Set, SetVbucket
from tests.node.serve_process import VBUCKETS, copy_vbuckets, make_address, run_processes
from tests.node.wire_client import connected
from tests.patience import PATIENCE

DURABLE = pack_request_infos(RequestInfos(durability=Durability(DurabilityLevel.MAJORITY, 1)))


@pytest.fixture
def process(tmp_path):
    """A node that stands alone, with 4 vbuckets."""
    with run_processes(tmp_path, 1) as (started,):
        yield started


def set_chain(client, vbucket, *chain):
    client.hello(Feature.JSON)
    value = json.dumps({"topology": [chain]}).encode()
    request = SetVbucket(vbucket=vbucket, state=VbucketState.ACTIVE, value=value, datatype=Datatype.JSON)
    assert client.status(request) == Status.SUCCESS


def write_durably(client, vbucket):
    """Return the status of a durable write that waits for 1 ms."""
    return client.status(Set(key=b"durable", value=b"new", vbucket=vbucket, framing=DURABLE))


def wait_until_persisted(client, vbucket):
    """Wait until a vbucket is on disk, with everything that was done before."""
    assert client.status(Set(key=b"last", value=b"one", vbucket=vbucket)) == Status.SUCCESS
    assert client.status(SeqnoPersistence(vbucket=vbucket, seqno=1)) == Status.SUCCESS


@pytest.mark.process
def test_killed_node_waits_for_the_chain_that_it_had(process):
    with connected(process.node, "default") as client:
        for vbucket in range(3):
            set_chain(client, vbucket, "a", "b")
        set_chain(client, 1, "a", None)
        assert client.status(DelVbucket(vbucket=2)) == Status.SUCCESS
        assert client.status(SetVbucket(vbucket=2, state=VbucketState.ACTIVE)) == Status.SUCCESS
        wait_until_persisted(client, 3)
    for _ in range(2):  # the second start reads the notes of the first one
        process.kill()
        process.start()
        with connected(process.node, "default") as client:
            stats = client.stats("durability-monitor 0")
            assert stats["vb_0:replication_chain_0"] == '["a", "b"]'
            assert write_durably(client, 0) == Status.SYNC_WRITE_AMBIGUOUS
            assert client.get(b"durable").specific == Status.KEY_ENOENT
            assert write_durably(client, 1) == Status.DURABILITY_IMPOSSIBLE
            assert write_durably(client, 2) == Status.SUCCESS
            wait_until_persisted(client, 0)


async def fail_over_first(first, second):
    """Publish a map with the second node as the replica of the first, kill the first node, and fail it over."""
    publisher = MapPublisher(make_address(second))
    endpoints = [("127.0.0.1", process.ports[0]) for process in (first, second)]
    try:
        for endpoint in endpoints:
            await publisher.load(endpoint)
        chain = tuple(map(publisher.layout.require_node, endpoints))
        await publisher.publish(replace(publisher.layout, chains=(chain,) * VBUCKETS))
        first.kill()
        await fail_over(publisher, endpoints[0], make_address(second))
    finally:
        await publisher.close()


@pytest.mark.process
def test_new_owner_that_is_killed_refuses_durable_writes_without_its_replica(tmp_path):
    with run_processes(tmp_path / "first", 1) as (first,), run_processes(tmp_path / "second", 1) as (second,):
        with connected(first.node, "default") as client:
            wait_until_persisted(client, 0)
        copy_vbuckets(first, second, range(VBUCKETS))
        asyncio.run(asyncio.wait_for(fail_over_first(first, second), PATIENCE))
        with connected(second.node, "default") as client:
            assert write_durably(client, 0) == Status.DURABILITY_IMPOSSIBLE
            assert client.status(Set(key=b"more", value=b"one")) == Status.SUCCESS
            assert client.status(SeqnoPersistence(seqno=2)) == Status.SUCCESS
        second.kill()
        second.start()
        with connected(second.node, "default") as client:
            assert client.get(b"last").value == b"one"
            assert write_durably(client, 0) == Status.DURABILITY_IMPOSSIBLE
