"""The handling of a rollback in a stream and a consumer: deliver it, resume without a row, fail, or restart."""

import asyncio
from dataclasses import replace

import pytest

import penstock
from penstock.client.feeds.resume_policy import RESUME_POLICIES, Resumption, RollbackPolicy
from penstock.client.feeds.stream_position import Position, SnapshotEnd
from penstock.client.positions.file_positions import FilePositions
from penstock.errors import RolledBack, UsageError
from penstock.node import Node
from penstock.wire.messages.kv import FailoverEntry
from tests.patience import PATIENCE

LOG = (FailoverEntry(8, 10), FailoverEntry(7, 0))
AHEAD = Position(
    seqno=20, vbuuid=7, snap_start=20, snap_end=20, history=3, ends=(SnapshotEnd(5, 7), SnapshotEnd(20, 7))
)
SHARED = replace(AHEAD, seqno=5, snap_start=5, snap_end=5, ends=(SnapshotEnd(5, 7),))
ZERO = Position(history=3)


def decide_all(policy, position):
    """Return the decisions about a failover that kept the changes up to seqno 10."""
    return [
        policy.decide_on_rollback(position, 10),
        policy.decide_on_log(position, LOG),
        policy.decide_on_unknown_branch(position),
        policy.decide_on_flush(position),
    ]


def test_decisions_of_each_policy():
    assert RESUME_POLICIES.keys() == set(RollbackPolicy)
    followed = decide_all(RESUME_POLICIES[RollbackPolicy.DELIVER], AHEAD)
    assert followed == [Resumption(SHARED, 10), Resumption(SHARED, 10), Resumption(ZERO, 0), Resumption(ZERO, 0)]
    assert decide_all(RESUME_POLICIES[RollbackPolicy.RESUME], AHEAD) == followed
    assert decide_all(RESUME_POLICIES[RollbackPolicy.RESTART], AHEAD) == [Resumption(ZERO, 0)] * 4
    failing = RESUME_POLICIES[RollbackPolicy.FAIL]
    for decide, arguments in (
        (failing.decide_on_rollback, (AHEAD, 10)),
        (failing.decide_on_log, (AHEAD, LOG)),
        (failing.decide_on_unknown_branch, (AHEAD,)),
        (failing.decide_on_flush, (AHEAD,)),
    ):
        with pytest.raises(RolledBack, match="found a rollback from seqno 20 to"):
            decide(*arguments)


@pytest.mark.parametrize("policy", RollbackPolicy)
def test_positions_of_the_producers_branch_are_kept(policy):
    kept = replace(SHARED, vbuuid=8)
    decision = RESUME_POLICIES[policy].decide_on_log(SHARED, LOG)
    assert decision == Resumption(SHARED)
    assert RESUME_POLICIES[policy].decide_on_new_log(kept) == Resumption(kept)


async def store(url, *keys):
    async with penstock.connect(url) as bucket:
        await bucket.upsert_many((key, b"{}") for key in keys)


def lose_changes(read):
    """Read from a node, replace it by one that has lost its changes and has others, and read on; return the rest."""

    async def bounded(url, *arguments):
        async with asyncio.timeout(PATIENCE), penstock.connect(url) as bucket:
            return await read(bucket, *arguments)

    with Node.running(["beer"], vbuckets=1) as node:
        port = node.kv_port
        asyncio.run(store(node.url("beer"), "pale_ale", "stout"))
        first = asyncio.run(bounded(node.url("beer"), None))
    with Node.running(["beer"], vbuckets=1, port=port) as node:
        asyncio.run(store(node.url("beer"), "porter"))
        return asyncio.run(bounded(node.url("beer"), first))


@pytest.mark.parametrize("protocol", ["dcp", "upr"])
@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("deliver", ["rollback", "porter"]),
        ("resume", ["porter"]),
        ("restart", ["rollback", "porter"]),
    ],
)
def test_stream_goes_on_after_a_rollback(policy, expected, protocol):
    async def read(bucket, start):
        options = {"protocol": protocol, "rollback": policy}
        async with await bucket.stream("beginning" if start is None else start, "now", **options) as stream:
            found = [change.event if change.key is None else change.key.decode() async for change in stream.changes()]
            assert stream.positions[0].history == (start is not None)
            return stream.positions if start is None else found

    assert lose_changes(read) == expected


@pytest.mark.parametrize("protocol", ["dcp", "upr"])
def test_stream_fails_and_keeps_its_place(protocol):
    async def read(bucket, start):
        options = {"protocol": protocol, "rollback": "fail"}
        async with await bucket.stream("beginning" if start is None else start, "now", **options) as stream:
            if start is None:
                assert len([change async for change in stream.changes()]) == 2
                return stream.positions
            with pytest.raises(RolledBack):
                await anext(stream.changes())
            return stream.positions == start

    assert lose_changes(read)


@pytest.mark.parametrize("front", ["changes", "batches", "handle"])
@pytest.mark.parametrize(("policy", "expected"), [("deliver", [None, b"porter"]), ("resume", [b"porter"])])
def test_consumer_hides_rollbacks_only_to_resume(tmp_path, front, policy, expected):
    positions = FilePositions(tmp_path / "positions")

    async def read(bucket, start):
        if start is not None:
            saved = await positions.read()
            assert saved is not None
            await positions.write(replace(saved, uuid=""))  # the node has a new bucket with the same name
        keys: list[bytes | None] = []
        async with penstock.Consumer(bucket, positions, stop="now", rollback=policy) as consumer:
            if front == "changes":
                keys += [change.key async for change in consumer.changes()]
            elif front == "batches":
                async for batch in consumer.batches():
                    keys += batch.column("key").to_pylist()
            else:
                await consumer.handle(lambda change: keys.append(change.key), concurrency=1)
            assert consumer.positions[0].history == (start is not None)
        return keys

    assert lose_changes(read) == expected


@pytest.mark.parametrize("options", [{"rollback": "ignore"}, {"rollback": "resume", "protocol": "tap"}])
def test_unknown_policies_are_refused(options):
    async def main(url):
        async with penstock.connect(url) as bucket:
            with pytest.raises(UsageError, match="rollback is"):
                await bucket.stream(**options)

    with Node.running(["beer"], vbuckets=1) as node:
        asyncio.run(main(node.url("beer")))
