"""Durable writes of the client: durability levels, and waiting for replicas and disks."""

import json
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock.client.documents.mutation_tokens import MutationToken
from penstock.client.documents.write_observer import is_reached
from penstock.errors import (
    DurabilityImpossible,
    NotSupported,
    OperationTimeout,
    SyncWriteAmbiguous,
    UsageError,
    WriteLost,
)
from penstock.node import Node
from penstock.wire.codec.constants import VbucketState
from penstock.wire.codec.statuses import Status as S
from penstock.wire.messages.cluster import SetClusterConfig
from penstock.wire.messages.kv import Observed
from tests.client.old_server import COUCHBASE_3_1, OldServer
from tests.client.peer import in_loop
from tests.node.frame_proxy import replicating
from tests.node.replication_chains import set_states
from tests.node.wire_client import connected
from tests.patience import PATIENCE

VBUCKETS = 4
ALL = range(VBUCKETS)
PATIENT = f"?operationTimeout={PATIENCE}"


def publish_map(active, replica, row=(0, 1), revision=2**50):
    """Let both nodes serve a map with a row for each vbucket: the active node, and the replica."""
    servers = [f"127.0.0.1:{node.kv_port}" for node in (active, replica)]
    places = [{"services": {"kv": node.kv_port}, "hostname": "127.0.0.1"} for node in (active, replica)]
    config = {
        "rev": revision,
        "revEpoch": 1,
        "name": "beer",
        "nodeLocator": "vbucket",
        "nodesExt": places,
        "vBucketServerMap": {"serverList": servers, "vBucketMap": [row] * VBUCKETS, "numReplicas": 1},
    }
    for node in (active, replica):
        with connected(node, "beer") as client:
            request = SetClusterConfig(key=b"beer", epoch=1, revision=revision, value=json.dumps(config).encode())
            assert client.status(request) == S.SUCCESS


@contextmanager
def running_pair(tmp_path=None):
    """Yield an active node and its replica, which are not connected yet. The map names both."""
    places = [{} if tmp_path is None else {"data_dir": tmp_path / name} for name in ("a", "b")]
    with Node.running(["beer"], VBUCKETS, **places[0]) as a, Node.running(["beer"], VBUCKETS, **places[1]) as b:
        set_states(b, VbucketState.REPLICA, "a", "b")
        set_states(a, VbucketState.ACTIVE, "a", "b")
        publish_map(a, b)
        yield a, b


@pytest.mark.parametrize("level", ["majority", "majorityAndPersistActive", "persistToMajority"])
@in_loop
async def test_durable_writes_are_on_the_replica(tmp_path, level):
    with running_pair(tmp_path) as (active, replica), replicating(active, replica, "beer", ALL, consumer_name="b"):
        async with penstock.connect(active.url("beer") + PATIENT) as bucket:
            await bucket.upsert("a", b"1", durability=level)
            await bucket.insert("b", b"2", durability=level)
            cas = await bucket.upsert("c", b"3", durability=level)
            await bucket.replace("c", b"4", cas=cas, durability=level)
            await bucket.upsert_many([(f"many-{number}", b"5") for number in range(40)], durability=level)
            await bucket.remove("b", durability=level)
            await bucket.wait_for(bucket.tokens(), replicas=1, persisted=1)
        with connected(replica, "beer") as client:
            details = client.stats("vbucket-details")
            assert sum(int(details[f"vb_{vbucket}:num_items"]) for vbucket in ALL) == 42


@in_loop
async def test_durable_write_without_enough_nodes_is_refused():
    with Node.running(["beer"], VBUCKETS) as node:
        set_states(node, VbucketState.ACTIVE, "a", None)
        async with penstock.connect(node.url("beer")) as bucket:
            with pytest.raises(DurabilityImpossible):
                await bucket.insert("a", b"1", durability="majority")
            with pytest.raises(UsageError, match="durability 'most', expected majority, "):
                await bucket.upsert("a", b"1", durability="most")  # type: ignore[arg-type]
            assert await bucket.get_many(["a"]) == [None]


@in_loop
async def test_undecided_write_is_ambiguous():
    with running_pair() as (active, _):
        async with penstock.connect(active.url("beer") + "?operationTimeout=0.5") as bucket:
            with pytest.raises(SyncWriteAmbiguous):
                await bucket.insert("a", b"1", durability="majority")


@in_loop
async def test_old_server_has_no_durable_writes():
    with Node.running(["beer"]) as node, OldServer(node, COUCHBASE_3_1) as server:
        async with penstock.connect(server.url()) as bucket:
            with pytest.raises(NotSupported, match="has no durable writes"):
                await bucket.upsert("a", b"1", durability="majority")


@in_loop
async def test_wait_needs_the_copies_of_the_map():
    with Node.running(["beer"], VBUCKETS) as node:
        async with penstock.connect(node.url("beer")) as bucket:
            cas = await bucket.upsert("a", b"1")
            cases: tuple[Any, ...] = (cas, [cas])
            for wrong in cases:
                with pytest.raises(UsageError, match=rf"token {cas}, expected .* bucket.tokens\(\)"):
                    await bucket.wait_for(wrong, persisted=1)
            await bucket.wait_for(bucket.tokens(), persisted=1)
            with pytest.raises(UsageError, match="has 1 copies in the cluster map, expected 2"):
                await bucket.wait_for(bucket.tokens(), replicas=1)
            with pytest.raises(UsageError, match="replicas -1"):
                await bucket.wait_for(bucket.tokens(), replicas=-1)


@in_loop
async def test_wait_for_a_replica_that_is_behind_times_out():
    with running_pair() as (active, replica):
        async with penstock.connect(active.url("beer") + PATIENT) as bucket:
            await bucket.upsert("a", b"1")
            (token,) = bucket.tokens()
            with pytest.raises(OperationTimeout, match="not on 1 replicas"):
                await bucket.wait_for(token, replicas=1, timeout=0.2)
            with replicating(active, replica, "beer", ALL):
                await bucket.wait_for(token, replicas=1, persisted=2)


@in_loop
async def test_wait_for_a_write_that_a_failover_has_lost_fails():
    with running_pair() as (active, replica):
        async with penstock.connect(active.url("beer") + PATIENT) as bucket:
            await bucket.upsert("a", b"1")
            with replicating(active, replica, "beer", ALL):
                await bucket.wait_for(bucket.tokens(), replicas=1)
            await bucket.upsert("a", b"2")
            (lost,) = bucket.tokens()
        set_states(replica, VbucketState.ACTIVE, "b")
        publish_map(active, replica, (1, -1), 2**50 + 1)
        async with penstock.connect(replica.url("beer") + PATIENT) as bucket:
            with pytest.raises(WriteLost, match="was rolled back"):
                await bucket.wait_for(lost, persisted=1)


SEQNOS = st.integers(0, 6)
COPIES = st.lists(
    st.none() | st.builds(Observed, st.just(0), st.just(1), SEQNOS, SEQNOS, st.none(), st.none()),
    min_size=1,
    max_size=4,
)


@given(COPIES, st.integers(1, 5), st.integers(0, 3), st.integers(0, 3))
def test_enough_copies_are_counted(copies, seqno, replicas, persisted):
    token = MutationToken(0, 1, seqno)
    holding = sum(copy is not None and copy.current_seqno >= seqno for copy in copies[1:])
    stored = sum(copy is not None and copy.persisted_seqno >= seqno for copy in copies)
    expected = holding >= replicas and stored >= persisted
    assert is_reached(token, copies, replicas=replicas, persisted=persisted) == expected


def test_write_behind_the_end_of_its_branch_is_lost():
    ended = Observed(0, 2, 9, 9, old_vbuuid=1, last_seqno_of_old=4)
    assert is_reached(MutationToken(0, 1, 4), [ended], replicas=0, persisted=1)
    with pytest.raises(WriteLost, match="at seqno 5 was rolled back; its branch ends at 4"):
        is_reached(MutationToken(0, 1, 5), [ended], replicas=0, persisted=0)
