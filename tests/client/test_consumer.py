"""A consumer that commits its positions: the changes that come again after a crash, and the refused positions."""

import asyncio
import os
import signal
import subprocess
import sys
from contextlib import aclosing
from dataclasses import replace

import pytest

import penstock
from penstock.client.consumers.commit_policy import BY_HAND, CommitPolicy
from penstock.client.consumers.consumer import Consumer
from penstock.client.positions.document_positions import DocumentPositions
from penstock.client.positions.file_positions import FilePositions
from penstock.errors import PositionAhead, PositionOfOtherBucket, PositionsUnreadable, UsageError
from penstock.node import Node
from penstock.wire.columns.run_decoder import list_changes
from tests.client.test_collections import change as change_manifest
from tests.patience import PATIENCE

VBUCKETS = 4


@pytest.fixture
def url():
    with Node.running(["beer"], vbuckets=VBUCKETS) as node:
        yield node.url("beer")


@pytest.fixture
def store(tmp_path):
    return FilePositions(tmp_path / "positions.json")


def run(url, main):
    async def connected():
        async with penstock.connect(url) as bucket:
            return await main(bucket)

    return asyncio.run(connected())


async def write(bucket, first, end):
    await bucket.upsert_many([(f"k{number:05}", b"1") for number in range(first, end)])


async def read_rest(bucket, store, **options):
    async with Consumer(bucket, store, stop="now", **options) as consumer:
        return [change async for change in consumer.changes()]


class AnnouncingPositions(FilePositions):
    """Announces when the positions of all vbuckets together reach `total` seqnos."""

    def __init__(self, path, total):
        super().__init__(path)
        self.total = total
        self.reached = asyncio.Event()

    async def write(self, saved):
        await super().write(saved)
        if sum(each.seqno for each in saved.by_vbucket.values()) == self.total:
            self.reached.set()


def identify(changes):
    return {(change.vbucket, change.seqno) for change in changes}


def test_later_loop_goes_on_after_the_last_change_of_an_earlier_one(url, store):
    async def main(bucket):
        await write(bucket, 0, 300)
        seen = []
        async with Consumer(bucket, store, stop="now") as consumer:
            for count in (0, 1, 2, 40):
                async with aclosing(consumer.changes()) as changes:
                    for _ in range(count):
                        seen.append(await anext(changes))
            async with aclosing(consumer.batches()) as batches:
                seen += list_changes(await anext(batches))
            seen += [change async for change in consumer.changes()]
        assert sorted(change.key or b"" for change in seen) == [b"k%05d" % number for number in range(300)]
        assert await read_rest(bucket, store) == []

    run(url, main)


@pytest.mark.parametrize("taken", [0, 1, 2, 17, 299, 300])
@pytest.mark.parametrize("is_large", [False, True])
def test_exactly_the_changes_after_the_last_commit_come_again(url, store, taken, is_large):
    async def main(bucket):
        await write(bucket, 0, 3000 if is_large else 300)
        seen = []
        consumer = Consumer(bucket, store, stop="now", commit=BY_HAND)
        await consumer.open()
        if not taken:
            await consumer.commit()
        async for change in consumer.changes():
            seen.append(change)
            if len(seen) == taken:
                await consumer.commit()
        await consumer.close()  # without a commit, as after a crash
        rest = await read_rest(bucket, store)
        assert identify(rest) == identify(seen[taken:])
        assert len(rest) == len(seen) - taken

    run(url, main)


def test_commit_inside_a_delivery_resumes_in_the_branch_and_snapshot(url, store):
    """Each commit of an object-by-object reader gives the position that a stream up to there has."""

    async def main(bucket):
        for start in (0, 50, 90):
            await write(bucket, start, start + 60)  # overwrites some keys, so that snapshots have gaps
        async with Consumer(bucket, store, stop="now", commit=BY_HAND) as consumer:
            stream = await bucket.stream(stop="now")
            async for _ in stream:
                pass
            async for change in consumer.changes():
                position = consumer.positions[change.vbucket]
                assert position.seqno == change.seqno
                assert position.snap_start <= change.seqno <= position.snap_end
                assert position.vbuuid == stream.positions[change.vbucket].vbuuid
            assert consumer.positions == stream.positions

    run(url, main)


def test_batches_are_committed_as_a_whole(url, store):
    async def main(bucket):
        await write(bucket, 0, 3000)
        async with Consumer(bucket, store, stop="now", commit=BY_HAND) as consumer:
            async for batch in consumer.batches():
                received = batch.num_rows
                await consumer.commit()
                break
        rest = await read_rest(bucket, store)
        assert len(rest) == 3000 - received

    run(url, main)


def test_commits_by_count(url, store):
    async def main(bucket):
        await write(bucket, 0, 100)
        policy = CommitPolicy(changes=10, seconds=None)
        async with asyncio.timeout(PATIENCE):
            consumer = Consumer(bucket, store, stop="now", commit=policy)
            await consumer.open()
            seen = []
            async for change in consumer.changes():
                seen.append(change)
                if len(seen) == 35:
                    break
            await consumer.close()
        assert identify(seen[30:]) <= identify(rest := await read_rest(bucket, store))
        assert len(rest) == 70

    run(url, main)


def test_commits_by_time_while_nothing_arrives(url, store):
    async def main(bucket):
        await write(bucket, 0, 10)
        announcing = AnnouncingPositions(store.path, 10)
        consumer = Consumer(bucket, announcing, commit=CommitPolicy(changes=None, seconds=0.01))
        await consumer.open()

        async def follow():
            async for _ in consumer.changes():
                pass

        following = asyncio.ensure_future(follow())
        async with asyncio.timeout(PATIENCE):
            await announcing.reached.wait()
        following.cancel()
        await asyncio.wait([following])
        await consumer.close()
        assert await read_rest(bucket, store) == []

    run(url, main)


def test_block_commits_at_its_end_but_not_after_an_error(url, store):
    async def main(bucket):
        await write(bucket, 0, 10)

        async def fail():
            async with Consumer(bucket, store, stop="now") as consumer:
                async for _ in consumer.changes():
                    raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await fail()
        assert await store.read() is None
        assert len(await read_rest(bucket, store)) == 10
        assert await read_rest(bucket, store) == []

    run(url, main)


def test_start_now_is_saved_at_once(url, store):
    async def main(bucket):
        await write(bucket, 0, 10)
        async with Consumer(bucket, store, start="now"):
            pass
        await write(bucket, 10, 15)
        assert {change.key for change in await read_rest(bucket, store)} == {b"k%05d" % n for n in range(10, 15)}

    run(url, main)


def test_positions_in_the_bucket_are_not_delivered(url):
    async def main(bucket):
        await write(bucket, 0, 100)
        store = DocumentPositions(bucket, "indexer")
        policy = CommitPolicy(changes=5)
        assert len(await read_rest(bucket, store, commit=policy)) == 100
        assert await read_rest(bucket, store) == []
        await write(bucket, 100, 103)
        async with Consumer(bucket, store, stop="now") as consumer:
            batches = [batch async for batch in consumer.batches()]
        assert sum(batch.num_rows for batch in batches) == 3

    run(url, main)


def test_other_vbuckets_keep_their_positions(url, store):
    async def main(bucket):
        await write(bucket, 0, 100)
        first = await read_rest(bucket, store, vbuckets=[0, 1])
        second = await read_rest(bucket, store, vbuckets=[2, 3])
        assert len(first) + len(second) == 100
        assert await read_rest(bucket, store) == []

    run(url, main)


def test_positions_of_a_recreated_bucket_are_refused(url, store):
    run(url, lambda bucket: write(bucket, 0, 1))
    run(url, lambda bucket: read_rest(bucket, store))
    with Node.running(["beer"], vbuckets=VBUCKETS) as node, pytest.raises(PositionOfOtherBucket):
        run(node.url("beer"), lambda bucket: read_rest(bucket, store))


def test_running_consumer_saves_the_uuid_of_a_recreated_bucket(penstock_bucket, store):
    async def main(bucket):
        await write(bucket, 0, 10)
        old = (await bucket.cluster()).uuid
        async with Consumer(bucket, store) as consumer, asyncio.timeout(PATIENCE):
            changes = consumer.changes()
            for _ in range(10):
                await anext(changes)
            await asyncio.to_thread(penstock_bucket.recreate)
            assert (await anext(changes)).event == "rollback"
            await consumer.commit()
            await changes.aclose()
        return old

    old = run(penstock_bucket.url, main)
    assert old != asyncio.run(store.read()).uuid
    run(penstock_bucket.url, lambda bucket: read_rest(bucket, store))


def test_position_ahead_of_the_server_is_refused(url, store):
    async def main(bucket):
        await write(bucket, 0, 10)
        await read_rest(bucket, store)
        saved = await store.read()
        vbucket, position = next(iter(saved.by_vbucket.items()))
        ahead = replace(position, seqno=99, snap_start=99, snap_end=99)
        await store.write(replace(saved, by_vbucket={**saved.by_vbucket, vbucket: ahead}))
        with pytest.raises(PositionAhead, match=f"found seqno 99 of vbucket {vbucket}"):
            await read_rest(bucket, store)

    run(url, main)


def test_unreadable_positions_are_refused(url, store):
    store.path.write_text('{"penstock_positions": 7}')
    with pytest.raises(PositionsUnreadable, match="found version 7"):
        run(url, lambda bucket: read_rest(bucket, store))


def test_tap_has_no_positions(url, store):
    with pytest.raises(UsageError, match="TAP has no positions"):
        run(url, lambda bucket: read_rest(bucket, store, protocol="tap"))


@pytest.mark.parametrize("field", ["changes", "seconds", "idle_seconds"])
def test_policies_need_numbers_above_zero(field):
    with pytest.raises(UsageError, match=f"{field} of a commit policy is 0"):
        CommitPolicy(**{field: 0})


def test_manifest_uid_of_received_events_is_saved(store):
    with Node.running(["beer"], vbuckets=1) as node:
        change_manifest(node, lambda manifest: manifest.with_scope("shop"))
        run(node.url("beer"), lambda bucket: read_rest(bucket, store))
        (position,) = asyncio.run(store.read()).by_vbucket.values()
    assert position.manifest_uid > 0


CONSUMER = """
import asyncio, sys
import penstock
from penstock.client.consumers.commit_policy import CommitPolicy
from penstock.client.consumers.consumer import Consumer
from penstock.client.positions.file_positions import FilePositions

async def main(url, path):
    policy = CommitPolicy(changes=25)
    async with penstock.connect(url) as bucket, Consumer(bucket, FilePositions(path), commit=policy) as consumer:
        async for change in consumer.changes():
            print(change.vbucket, change.seqno, flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.process
def test_killed_consumers_see_every_change(url, store):
    """Each run is killed after some changes. Together they print every change, and each run begins at a commit."""
    total = 1000
    run(url, lambda bucket: write(bucket, 0, total))
    printed: set[tuple[int, ...]] = set()
    for lines in (1, 60, 130, 500, 700):
        command = [sys.executable, "-c", CONSUMER, url, store.path]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for _ in range(lines):
                if len(printed) < total:
                    printed.add(tuple(map(int, process.stdout.readline().split())))
            os.kill(process.pid, signal.SIGKILL)
            *complete, _ = process.stdout.read().split("\n")  # the last line may be incomplete
            printed |= {tuple(map(int, line.split())) for line in complete}
        saved = asyncio.run(store.read())
        committed = {} if saved is None else {vb: each.seqno for vb, each in saved.by_vbucket.items()}
        assert all((vb, seqno) in printed for vb, high in committed.items() for seqno in range(1, high + 1))
    rest = run(url, lambda bucket: read_rest(bucket, store))
    assert len(printed | identify(rest)) == total
