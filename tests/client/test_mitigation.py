"""Rollback mitigation: changes that a failover can make void are not delivered."""

import asyncio
from contextlib import aclosing

import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock.client.topology.observed_copies import judge_copies
from penstock.client.topology.persisted_seqnos import HeldSeqno, PersistedSeqno
from penstock.errors import Unreachable, UnsupportedServer, UsageError
from penstock.node import Node
from penstock.wire.codec.constants import VbucketState
from penstock.wire.codec.statuses import Status as S
from penstock.wire.messages.kv import FailoverEntry, Observed, SetVbucket
from penstock.wire.messages.observe import StartPersistence, StopPersistence
from tests.client.old_server import COUCHBASE_3_1, OldServer
from tests.client.peer import in_loop
from tests.client.replicated import create_bucket
from tests.client.test_durable_writes import ALL, VBUCKETS, publish_map, running_pair
from tests.node.frame_proxy import replicating
from tests.node.replication_chains import set_states
from tests.node.wire_client import connected
from tests.patience import PATIENCE

PATIENT = f"?retrySeconds={PATIENCE}&mitigateRollback=true"


def make_keys(name):
    return {f"{name}-{number}".encode() for number in range(20)}


async def write(node, name):
    """Write documents to a node; return their keys and the tokens of the writes."""
    async with penstock.connect(node.url("beer")) as bucket:
        await bucket.upsert_many([(key.decode(), b"v") for key in make_keys(name)])
        return make_keys(name), bucket.tokens()


async def read(url, until=None, arrived=None, **options):
    """Return the changes of a bucket up to now, or until these keys have come. `arrived` learns of a lost key."""
    changes = []
    missing = set(until or ())
    async with (
        asyncio.timeout(PATIENCE),
        penstock.connect(url) as bucket,
        aclosing(bucket.changes(stop="now" if until is None else None, **options)) as found,
    ):
        async for change in found:
            changes.append(change)
            if arrived is not None and not arrived.done() and (change.key or b"").startswith(b"lost"):
                arrived.set_result(None)
            missing.discard(change.key)
            if until is not None and not missing:
                break
    return changes


@in_loop
async def test_changes_wait_for_the_replica():
    with running_pair() as (active, replica):
        keys, _ = await write(active, "key")
        with pytest.raises(Unreachable, match=r"its changes are not on disk after 0\.2 s"):
            await read(active.url("beer") + "?retrySeconds=0.2", mitigate_rollback=True)
        assert {change.key for change in await read(active.url("beer"))} == keys
        waiting = asyncio.create_task(read(active.url("beer") + PATIENT))
        with replicating(active, replica, "beer", ALL, consumer_name="b"):
            assert {change.key for change in await waiting} == keys


@in_loop
async def test_changes_out_of_order_have_no_position_to_compare():
    with running_pair() as (active, _), pytest.raises(UsageError, match="mitigateRollback and outOfOrder"):
        await read(active.url("beer") + "?mitigateRollback=true&outOfOrder=true")


@in_loop
async def test_changes_wait_for_the_disk(tmp_path):
    with Node.running(["beer"], VBUCKETS, data_dir=tmp_path) as node, connected(node, "beer") as client:
        for vbucket in ALL:
            client.status(StopPersistence(vbucket=vbucket))
        keys, _ = await write(node, "key")
        with pytest.raises(Unreachable, match="not on disk"):
            await read(node.url("beer") + "?retrySeconds=0.2&mitigateRollback=true")
        waiting = asyncio.create_task(read(node.url("beer") + PATIENT))
        client.status(StartPersistence())
        assert {change.key for change in await waiting} == keys


@in_loop
async def test_failover_voids_no_delivered_change():
    with running_pair() as (active, replica):
        with replicating(active, replica, "beer", ALL, consumer_name="b"):
            kept, tokens = await write(active, "kept")
            async with penstock.connect(active.url("beer")) as bucket:
                await bucket.wait_for(tokens, replicas=1, timeout=PATIENCE)
        await write(active, "lost")
        arrived = asyncio.get_running_loop().create_future()
        wanted = kept | make_keys("new")
        safe = asyncio.create_task(read(active.url("beer") + PATIENT, wanted))
        plain = asyncio.create_task(read(active.url("beer"), wanted, arrived))
        await asyncio.wait_for(arrived, PATIENCE)
        with connected(active, "beer") as client:
            for vbucket in ALL:
                assert client.status(SetVbucket(vbucket=vbucket, state=VbucketState.DEAD)) == S.SUCCESS
        set_states(replica, VbucketState.ACTIVE, "b")
        publish_map(active, replica, row=(1,), revision=2**50 + 1)
        await write(replica, "new")
        assert sorted(change.key for change in await safe) == sorted(wanted)  # each once, and no rollback
        assert {change.event.name for change in await plain} >= {"ROLLBACK"}


@in_loop
async def test_bucket_without_a_disk_counts_copies_in_memory():
    with Node.running(["beer"], VBUCKETS) as node:
        create_bucket(node, "ale", bucketType="ephemeral")
        async with penstock.connect(node.url("ale")) as bucket:
            await bucket.upsert("a", b"1")
        assert [change.key for change in await read(node.url("ale") + "?mitigateRollback=true")] == [b"a"]


@in_loop
async def test_other_dialects_and_older_servers_are_refused():
    with Node.running(["beer"], VBUCKETS) as node, OldServer(node, COUCHBASE_3_1) as server:
        with pytest.raises(UsageError, match="mitigateRollback with protocol upr, expected dcp"):
            await read(node.url("beer") + "?mitigateRollback=true", protocol="upr")
        await write(node, "key")
        with pytest.raises(UnsupportedServer, match="has no OBSERVE_SEQNO"):
            await read(server.url() + "?mitigateRollback=true")


HELD = HeldSeqno(vbuuid=7, seqno=5)
LOG_WITHOUT = (FailoverEntry(8, 3), FailoverEntry(6, 0))
LOG_WITH = (FailoverEntry(8, 9), FailoverEntry(7, 0))


@pytest.mark.parametrize(
    ("copies", "log", "expected"),
    [
        ([None, Observed(0, 7, 9, 9)], (), None),  # no answer of the active node
        ([None, Observed(0, 7, 9, 9)], LOG_WITH, None),
        ([None, Observed(0, 7, 9, 9)], LOG_WITHOUT, PersistedSeqno(8, 0, 0)),  # it has another history
        ([Observed(0, 8, 9, 9, 7, 4), None], (), PersistedSeqno(8, 9, 0)),  # a failover lost the change
        ([Observed(0, 8, 9, 9, 7, 5), None], (), None),
        ([Observed(0, 8, 9, 9, 7, 5), Observed(0, 8, 8, 9, 7, 5)], (), PersistedSeqno(7, 9, 5)),
        ([Observed(0, 7, 9, 9), Observed(0, 7, 3, 6)], (), PersistedSeqno(7, 9, 3)),
    ],
)
def test_copies_are_judged_by_the_least(copies, log, expected):
    assert judge_copies(HELD, copies, log, in_memory=False) == expected


observed = st.builds(Observed, st.just(0), st.just(7), st.integers(0, 9), st.integers(0, 9)) | st.builds(
    Observed, st.just(0), st.just(8), *[st.integers(0, 9)] * 2, st.just(7), st.integers(0, 9)
)


@given(st.lists(observed | st.none(), min_size=1, max_size=4), st.booleans())
def test_change_is_safe_only_where_every_copy_keeps_it(copies, in_memory):
    judged = judge_copies(HELD, copies, (), in_memory=in_memory)
    is_safe = judged is not None and judged.vbuuid == HELD.vbuuid and judged.persisted_seqno >= HELD.seqno

    def keeps(copy):
        end = copy.current_seqno if in_memory else copy.persisted_seqno
        return min(end, end if copy.last_seqno_of_old is None else copy.last_seqno_of_old) >= HELD.seqno

    assert is_safe == all(copy is not None and keeps(copy) for copy in copies)
