"""Callers that are cancelled at any await, and commits that are refused: nothing is lost, and nothing is poisoned."""

import asyncio
import sqlite3
from collections import Counter
from contextlib import aclosing, closing
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from penstock import BY_HAND, CommitPolicy, Consumer, DocumentPositions, FilePositions, HandlerRetry, SqlitePositions
from penstock.client.groups.group_positions import GroupPositions
from penstock.client.positions import sqlite_positions
from penstock.errors import PositionsLocked, Unreachable
from penstock.node import Node
from penstock.wire.codec.statuses import Status
from penstock.wire.columns.run_decoder import list_changes
from tests.client.cancellation import RefusingServer, cancel_at
from tests.client.peer import in_loop
from tests.examples import scaled
from tests.patience import PATIENCE
from tests.waiting import pass_turns, wait_until

VBUCKETS = 4
OFTEN = CommitPolicy(changes=3, seconds=0.001)
REFUSALS = [
    Status.ETMPFAIL,
    Status.ENOMEM,
    Status.LOCKED,
    Status.EBUSY,
    Status.NOT_INITIALIZED,
    Status.SYNC_WRITE_IN_PROGRESS,
    Status.BUCKET_PAUSED,
]


async def poll_changes(consumer, got):
    async for change in consumer.changes():
        got.append(change)
        await asyncio.sleep(0)


async def poll_closing(consumer, got):
    async with aclosing(consumer.changes()) as changes:
        async for change in changes:
            got.append(change)


async def poll_each(consumer, got):
    changes = consumer.changes()
    while True:
        got.append(await asyncio.wait_for(anext(changes), PATIENCE))


async def poll_batches(consumer, got):
    async for batch in consumer.batches():
        got += list_changes(batch)


async def poll_handler(consumer, got):
    async def handle(change):
        await asyncio.sleep(0)
        got.append(change)

    await consumer.handle(handle, concurrency=1, retry=HandlerRetry(attempts=1))


async def poll_handlers(consumer, got):
    async def handle(change):
        for _ in range(change.seqno % 3):
            await asyncio.sleep(0)
        got.append(change)

    await consumer.handle(handle, concurrency=4, retry=HandlerRetry(attempts=1))


FRONTS = [poll_changes, poll_closing, poll_each, poll_batches, poll_handler, poll_handlers]
REPEATING = {poll_handlers}
"""Fronts that hand out changes again, because an earlier one was not finished."""


class Follower:
    """A consumer whose calls are cancelled, and a record of the changes that it handed out.

    Attributes:
        got: all changes that were handed out.
        written: the number of documents that were written.
    """

    def __init__(self, bucket, make_store):
        self.bucket = bucket
        self.got = []
        self.written = 0
        self.consumer: Any = None
        self._make_store = make_store

    def make_consumer(self, **options):
        store = self._make_store()
        place = {"group": "g", "lease_seconds": 4 * PATIENCE} if store is None else {"store": store}
        return Consumer(self.bucket, **place, **{"commit": OFTEN, **options})

    async def write(self, count):
        await self.bucket.upsert_many([(f"k{self.written + number:05}", b"1") for number in range(count)])
        self.written += count

    async def read_saved(self):
        """Return the positions that another consumer would start at."""
        saved = await (self._make_store() or GroupPositions(self.bucket, "g")).read()
        return {} if saved is None else saved.by_vbucket

    async def check(self):
        """Check that committed positions have passed only changes that were handed out."""
        got = {(change.vbucket, change.seqno) for change in self.got if change.key}
        saved = await self.read_saved()
        committed = {(vb, seqno) for vb, each in saved.items() for seqno in range(1, each.seqno + 1)}
        async for change in self.bucket.changes(stop="now"):  # keys are never written twice
            place = change.vbucket, change.seqno
            assert place in got or place not in committed or change.key.startswith(b"_penstock:")

    def count_keys(self):
        return Counter(change.key for change in self.got if change.key)

    async def poll(self, front, at=-1, is_late=False):
        """Poll until the caller is cancelled at an await, or until all written documents were handed out."""
        polling = asyncio.create_task(cancel_at(front(self.consumer, self.got), at, is_late=is_late))
        waiting = asyncio.create_task(wait_until(lambda: len(self.count_keys()) == self.written))
        await asyncio.wait([polling, waiting], return_when=asyncio.FIRST_COMPLETED)
        polling.cancel()
        waiting.cancel()
        for ended in await asyncio.gather(polling, waiting, return_exceptions=True):
            if isinstance(ended, Exception):
                raise ended


def make_stores(kind, bucket, path):
    return {
        "file": lambda: FilePositions(path / "positions.json"),
        "sqlite": lambda: SqlitePositions(path / "positions.db"),
        "document": lambda: DocumentPositions(bucket, "indexer"),
        "group": lambda: None,
    }[kind]


@pytest.fixture
def node():
    with Node.running(["beer"], vbuckets=VBUCKETS) as node:
        yield node


@pytest.mark.long
@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize("kind", ["file", "document", "group"])
@pytest.mark.parametrize("front", FRONTS)
@in_loop
async def test_call_that_is_cancelled_at_any_await_loses_nothing(node, tmp_path, front, kind, is_late):
    async with penstock.connect(node.url("beer")) as bucket:
        follower = Follower(bucket, make_stores(kind, bucket, tmp_path))
        async with follower.make_consumer() as follower.consumer:
            for at in range(25):
                await follower.write(4)
                await follower.poll(front, at % 12, is_late=is_late)
                await follower.check()
            await follower.poll(front)
            await follower.consumer.commit()
            await follower.check()
            keys = follower.count_keys()
        assert len(keys) == follower.written
        assert front in REPEATING or set(keys.values()) == {1}
        async with follower.make_consumer() as follower.consumer:
            await follower.write(1)
            await follower.poll(front)
        assert follower.count_keys() - keys == Counter({b"k%05d" % (follower.written - 1): 1})


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize("kind", ["file", "sqlite", "document", "group"])
@in_loop
async def test_end_of_the_block_that_is_cancelled_leaves_positions_that_are_right(node, tmp_path, kind, is_late):
    async with penstock.connect(node.url("beer")) as bucket:
        follower = Follower(bucket, make_stores(kind, bucket, tmp_path))
        for at in range(12):
            await follower.write(3)
            follower.consumer = await follower.make_consumer(commit=CommitPolicy()).__aenter__()
            await follower.poll(poll_changes)
            await cancel_at(follower.consumer.__aexit__(None, None, None), at, is_late=is_late)
            await follower.consumer.close()
            await follower.check()
        async with follower.make_consumer() as follower.consumer:
            await follower.write(1)
            await follower.poll(poll_changes)
        assert len(follower.count_keys()) == follower.written


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize("kind", ["sqlite", "document", "group"])
@in_loop
async def test_begin_of_the_block_that_is_cancelled_can_be_repeated(node, tmp_path, kind, is_late):
    """A member that was cancelled while it joined leaves the group, or the next one would wait for its lease."""
    async with penstock.connect(node.url("beer")) as bucket:
        follower = Follower(bucket, make_stores(kind, bucket, tmp_path))
        for at in range(16):
            consumer = follower.make_consumer(start="now")
            await cancel_at(consumer.open(), at, is_late=is_late)
            await consumer.close()
        async with follower.make_consumer() as follower.consumer:
            await follower.write(3)
            await follower.poll(poll_changes)
        assert len(follower.count_keys()) == follower.written


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize("kind", ["sqlite", "document", "group"])
@in_loop
async def test_commit_that_is_cancelled_goes_on_and_later_ones_succeed(node, tmp_path, kind, is_late):
    async with penstock.connect(node.url("beer")) as bucket:
        follower = Follower(bucket, make_stores(kind, bucket, tmp_path))
        async with follower.make_consumer(commit=BY_HAND) as follower.consumer:
            for at in range(5):
                await follower.write(3)
                await follower.poll(poll_changes)
                await cancel_at(follower.consumer.commit(), at, is_late=is_late)
                await follower.check()
                await follower.consumer.commit()
                assert follower.consumer.positions.items() <= dict(await follower.read_saved()).items()


@pytest.mark.parametrize("status", REFUSALS)
@pytest.mark.parametrize("kind", ["document", "group"])
@pytest.mark.parametrize("at_exit", [False, True])
@in_loop
async def test_refused_write_of_positions_is_tried_again(node, tmp_path, kind, status, at_exit):
    with RefusingServer(node) as server:
        async with penstock.connect(server.url()) as bucket:
            follower = Follower(bucket, make_stores(kind, bucket, tmp_path))
            await follower.write(20)
            async with follower.make_consumer(commit=CommitPolicy() if at_exit else OFTEN) as follower.consumer:
                server.refusals = [] if at_exit else [status] * 2
                await follower.poll(poll_changes)
                server.refusals += [status] * 2 * at_exit
            assert not server.refusals
            await follower.check()
            async with follower.make_consumer() as follower.consumer:
                await follower.write(1)
                await follower.poll(poll_changes)
            assert set(follower.count_keys().values()) == {1}


@pytest.mark.parametrize("kind", ["document", "group"])
@in_loop
async def test_write_that_is_refused_for_too_long_ends_the_call_and_nothing_else(node, tmp_path, kind):
    with RefusingServer(node) as server:
        async with penstock.connect(server.url(retrySeconds=0.1)) as bucket:
            follower = Follower(bucket, make_stores(kind, bucket, tmp_path))
            await follower.write(20)
            async with follower.make_consumer(commit=BY_HAND) as follower.consumer:
                await follower.poll(poll_changes)
                server.refusals = [Status.ETMPFAIL] * 1000
                with pytest.raises(Unreachable, match="ETMPFAIL"):
                    await follower.consumer.commit()
                server.refusals = []
                await follower.consumer.commit()
                await follower.check()


def list_steps():
    polls = st.tuples(st.just("poll"), st.sampled_from(FRONTS), st.integers(0, 15), st.booleans())
    commits = st.tuples(st.just("commit"), st.integers(0, 4), st.booleans())
    writes = st.tuples(st.just("write"), st.integers(1, 6))
    refusals = st.tuples(st.just("refuse"), st.lists(st.sampled_from(REFUSALS), min_size=1, max_size=3))
    restarts = st.tuples(st.just("restart"), st.integers(0, 15), st.booleans())
    return st.lists(st.one_of(polls, writes, commits, refusals, restarts), min_size=4, max_size=20)


class Schedule(Follower):
    """Takes steps of a schedule."""

    def __init__(self, server, bucket, make_store):
        super().__init__(bucket, make_store)
        self._server = server

    async def begin(self):
        self.consumer = await self.make_consumer().__aenter__()

    async def commit(self, at, is_late):
        await cancel_at(self.consumer.commit(), at, is_late=is_late)

    async def refuse(self, statuses):
        self._server.refusals += statuses

    async def restart(self, at, is_late):
        await cancel_at(self.consumer.__aexit__(None, None, None), at, is_late=is_late)
        await self.consumer.close()
        await self.check()
        await self.begin()


@pytest.mark.long
@pytest.mark.parametrize("kind", ["sqlite", "document", "group"])
@settings(max_examples=scaled(24), deadline=None)
@given(steps=list_steps())
def test_no_schedule_of_cancellations_and_refusals_loses_a_change(tmp_path_factory, kind, steps):
    path = tmp_path_factory.mktemp("schedule")

    @in_loop
    async def main():
        with Node.running(["beer"], vbuckets=2) as node, RefusingServer(node) as server:
            async with penstock.connect(server.url()) as bucket:
                schedule = Schedule(server, bucket, make_stores(kind, bucket, path))
                await schedule.begin()
                for name, *arguments in [*steps, ("write", 3), ("poll", poll_changes, -1)]:
                    await getattr(schedule, name)(*arguments)
                    await schedule.check()
                await schedule.consumer.commit()
                await schedule.check()
                await schedule.consumer.close()
                assert len(schedule.count_keys()) == schedule.written

    main()


async def poll_stream_changes(stream, got):
    async for change in stream.changes():
        got.append(change)
        await asyncio.sleep(0)


async def poll_stream_each(stream, got):
    changes = stream.changes()
    while True:
        got.append(await anext(changes))


async def poll_stream_batches(stream, got):
    async for batch in stream:
        got += list_changes(batch)


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize("front", [poll_stream_changes, poll_stream_each, poll_stream_batches])
@pytest.mark.parametrize("options", [{}, {"mitigate_rollback": True}, {"protocol": "tap"}, {"filter_key": "[02468]$"}])
@in_loop
async def test_stream_of_a_cancelled_caller_loses_nothing(node, front, options, is_late):
    step = 2 if "filter_key" in options else 1
    async with penstock.connect(node.url("beer")) as bucket, await bucket.stream(**options) as stream:
        follower = Follower(bucket, None)
        follower.consumer = stream
        for at in range(12):
            await bucket.upsert_many([(f"k{12 * at + number:05}", b"1") for number in range(0, 12)])
            follower.written += 12 // step
            await follower.poll(front, at % 6, is_late=is_late)
        await follower.poll(front)
        keys = follower.count_keys()
    assert len(keys) == follower.written
    assert set(keys.values()) == {1}


@in_loop
async def test_positions_of_a_stream_are_before_the_batch_of_a_cancelled_caller(node):
    async with penstock.connect(node.url("beer")) as bucket, await bucket.stream() as stream:
        coming = asyncio.create_task(anext(stream.batches()))
        await wait_until(lambda: stream.is_connected, coming)
        coming.cancel()
        await asyncio.gather(coming, return_exceptions=True)
        await bucket.upsert("k", b"1")
        await wait_until(lambda: stream.queued_bytes > 0)
        await pass_turns(5)
        assert not any(position.seqno for position in stream.positions.values())
        assert (await anext(stream.batches())).column("key").to_pylist() == [b"k"]
        assert any(position.seqno for position in stream.positions.values())


@in_loop
async def test_iterator_goes_on_after_a_timeout_and_ends_beside_a_waiting_task(node, tmp_path):
    async with penstock.connect(node.url("beer")) as bucket:
        async with Consumer(bucket, FilePositions(tmp_path / "p")) as consumer, aclosing(consumer.changes()) as changes:
            for number in range(3):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(anext(changes), 0.001)
                await bucket.upsert(f"k{number}", b"1")
                assert (await anext(changes)).key == b"k%d" % number
            waiting = asyncio.create_task(anext(changes))
            await pass_turns(3)
        with pytest.raises(StopAsyncIteration):
            await waiting


@in_loop
async def test_locked_database_is_tried_again(node, tmp_path, monkeypatch):
    monkeypatch.setattr(sqlite_positions, "_BUSY_SECONDS", 0.0)
    store = SqlitePositions(tmp_path / "p.db")
    async with penstock.connect(node.url("beer")) as bucket:
        await bucket.upsert("k", b"1")
        async with Consumer(bucket, store, stop="now", commit=BY_HAND) as consumer:
            assert [change.key async for change in consumer.changes()] == [b"k"]
            with closing(sqlite3.connect(store.path, isolation_level=None)) as other:
                other.execute("BEGIN EXCLUSIVE")
                committing = asyncio.create_task(consumer.commit())
                with pytest.raises(PositionsLocked, match="database is locked"):
                    await store.read()
                assert not committing.done()
                other.execute("COMMIT")
            await committing
        saved = await store.read()
        assert saved is not None
        assert sum(position.seqno for position in saved.by_vbucket.values()) == 1
