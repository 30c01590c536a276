"""Change streams over real sockets: their starts and ends, nodes that restart, and readers that stop."""

import asyncio
import re
from contextlib import aclosing
from itertools import count

import pytest

from penstock import Node, connect
from penstock.client.documents.document import compute_vbucket
from penstock.client.feeds.stream_position import BEGINNING
from penstock.client.feeds.vbucket_stream import EndRule, StreamTarget
from penstock.errors import RemoteProtocolError, Unreachable, UsageError
from penstock.wire.columns.run_decoder import list_changes
from penstock.wire.columns.schema import CHANGE_SCHEMA, Event
from tests.client.peer import NodeProcess, documents, in_loop


class Table:
    """The rows that a reader has received: gives the current documents, and proves that no row came twice."""

    def __init__(self):
        self.rows = []

    def add(self, batch):
        self.rows += list_changes(batch)

    @property
    def identities(self):
        return [(row.vbucket, row.history, row.seqno) for row in self.rows if row.event != Event.ROLLBACK]

    @property
    def rollbacks(self):
        return [row for row in self.rows if row.event == Event.ROLLBACK]

    def current(self):
        assert len(set(self.identities)) == len(self.identities)
        cuts = [(row.vbucket, row.history, row.seqno) for row in self.rollbacks]
        kept = {}
        for row in sorted(self.rows, key=lambda row: (row.vbucket, row.history, row.seqno)):
            if any(vb == row.vbucket and row.history < history and row.seqno > cut for vb, history, cut in cuts):
                continue
            if row.event == Event.MUTATION:
                kept[row.key.decode()] = row.value
            elif row.event == Event.DELETION:
                kept.pop(row.key.decode(), None)
        return kept


async def read(bucket, *args, table=None, **options):
    """Read a stream to its end; return the table and the positions."""
    table = table or Table()
    async with await bucket.stream(*args, **options) as stream:
        async for batch in stream:
            assert batch.schema == CHANGE_SCHEMA
            table.add(batch)
    return table, stream.positions


# Starts and ends


@pytest.mark.parametrize("vbuckets", [1, 4, 1024])
@in_loop
async def test_stream_delivers_the_whole_bucket(vbuckets):
    with Node.running(["beer"], vbuckets=vbuckets) as node:
        async with connect(node.url("beer")) as bucket:
            await bucket.upsert_many(documents(0, 3000))
            await bucket.remove_many([f"k{number}" for number in range(0, 3000, 10)])
            table, positions = await read(bucket, "beginning", "now")
            assert table.current() == {key: value for key, value in documents(0, 3000) if int(key[1:]) % 10}
            assert {vb: each.seqno for vb, each in positions.items()} == await bucket.high_seqnos()
            assert all(each.is_complete for each in positions.values())
            table, positions = await read(bucket, positions, "now", table=table)
            assert len(table.rows) == 3000


@in_loop
async def test_stream_from_now_has_no_earlier_changes(running):
    async with connect(running.url()) as bucket:
        await bucket.upsert_many(documents(0, 100))
        async with await bucket.stream("now") as stream:
            changes = stream.changes()
            coming = asyncio.ensure_future(anext(changes))
            await bucket.upsert("new", b"value")
            assert (await coming).key == b"new"


@in_loop
async def test_stream_of_an_empty_bucket_ends_at_once(running):
    async with connect(running.url()) as bucket:
        for start in ("beginning", "now", dict.fromkeys(range(4), BEGINNING)):
            table, positions = await read(bucket, start, "now")
            assert not table.rows
            assert positions == dict.fromkeys(range(4), BEGINNING)


@in_loop
async def test_selected_vbuckets_are_read_up_to_their_seqnos(running):
    async with connect(running.url()) as bucket:
        await bucket.upsert_many(documents(0, 400))
        table, positions = await read(bucket, "beginning", {1: 10, 2: 0, 9: 4}, vbuckets=[1, 2, 3])
        assert {row.vbucket for row in table.rows} == {1}
        assert set(positions) == {1, 2}
        assert positions[1].seqno >= 10
        everything = [row.seqno for row in table.rows]
        assert everything == list(range(1, positions[1].seqno + 1))


@in_loop
async def test_end_in_the_future_is_waited_for(running):
    async with connect(running.url()) as bucket:
        key = next(f"k{number}" for number in count() if compute_vbucket(b"k%d" % number, 4) == 2)
        reading = asyncio.ensure_future(read(bucket, "beginning", {2: 3}))
        for number in range(3):
            await bucket.upsert(key, b"%d" % number)
        table, positions = await reading
        assert positions[2].seqno == 3
        assert table.current() == {key: b"2"}


@pytest.mark.parametrize("targets", [{4: StreamTarget()}, {-1: StreamTarget()}])
@in_loop
async def test_feed_of_an_impossible_vbucket_is_refused(running, targets):
    async with connect(running.url()) as bucket:
        with pytest.raises(UsageError, match="expected one below 4"):
            bucket.open_feed(targets)


@in_loop
async def test_an_exact_end_costs_no_whole_backfill(running):
    """Two documents of about 1,000, a window of 64 KiB: the stream is closed, its rest is not read and dropped."""
    async with connect(running.url(flowControlBytes=65536)) as bucket:
        await bucket.upsert_many(documents(0, 4000, size=5000))
        async with bucket.open_feed({1: StreamTarget(end_seqno=2)}, end_rule=EndRule.EXACT) as stream:
            found = [change.seqno async for change in stream.changes()]
        assert found == [1, 2]
        assert int((await bucket.stats())["ep_dcp_total_bytes"]) < 3_000_000


@in_loop
async def test_objects_and_batches_have_the_same_changes(running):
    async with connect(running.url()) as bucket:
        await bucket.upsert_many(documents(0, 200))
        changes = [change async for change in bucket.changes("beginning", "now")]
        batches = [batch async for batch in bucket.batches("beginning", "now")]
        assert sorted(changes) == sorted(change for batch in batches for change in list_changes(batch))


# Resumption


@in_loop
async def test_positions_resume_in_the_middle_of_a_snapshot(running):
    table = Table()
    async with connect(running.url(flowControlBytes=65536)) as bucket:
        await bucket.upsert_many(documents(0, 2000, size=1000))
        inside, positions = 0, dict.fromkeys(range(4), BEGINNING)
        for round_number in range(6):
            async with await bucket.stream(positions) as stream:
                async for batch in stream:
                    table.add(batch)
                    break
            positions = stream.positions
            inside += any(not each.is_complete for each in positions.values())
            await bucket.upsert_many(documents(100 * round_number, 100 * round_number + 50, size=1001))
        assert inside > 3
        table, positions = await read(bucket, positions, "now", table=table)
        assert not table.rollbacks
        assert table.current() == await read_documents(bucket, [key for key, _ in documents(0, 2000)])


@in_loop
async def test_slow_reader_bounds_the_bytes_in_memory(running):
    window, size = 65536, 1000
    async with connect(running.url(flowControlBytes=window)) as bucket:
        await bucket.upsert_many(documents(0, 5000, size=size))
        seen = 0
        async with await bucket.stream(stop="now") as stream:
            async for batch in stream:
                seen += batch.num_rows
                await bucket.get("k1")  # the producer has time to send, and the reader reads nothing
                assert stream.queued_bytes <= window + size + 200
        assert seen == 5000


async def read_documents(bucket, keys):
    found = await bucket.get_many(keys)
    return {key: document.value for key, document in zip(keys, found, strict=True) if document is not None}


@in_loop
async def test_node_that_lost_its_data_is_rolled_back_and_read_again(running):
    table = Table()
    async with connect(running.url(flowControlBytes=65536)) as bucket:
        await bucket.upsert_many(documents(0, 2000, size=500))
        async with await bucket.stream() as stream:
            batches = stream.batches()
            while len(table.rows) < 700:
                table.add(await anext(batches))
            await running.restart()
            await bucket.upsert_many(documents(1000, 1500, size=7))
            highs = await bucket.high_seqnos()
            while {vb: each.seqno for vb, each in stream.positions.items() if each.history} != highs:
                table.add(await anext(batches))
        assert sorted(row.vbucket for row in table.rollbacks) == [0, 1, 2, 3]
        assert {(row.seqno, row.history) for row in table.rollbacks} == {(0, 1)}
        assert table.current() == dict(documents(1000, 1500, size=7))


@pytest.mark.parametrize("again", [0, 100, 5000], ids=["less", "fewer", "more"])
@in_loop
async def test_read_up_to_now_ends_also_in_a_new_history(running, again):
    """A stream to "now" ends with any data of the restarted node, and its rows give the documents of the bucket."""
    table = Table()
    async with connect(running.url(flowControlBytes=65536)) as bucket:
        await bucket.upsert_many(documents(0, 2000, size=500))
        async with await bucket.stream(stop="now") as stream:
            batches = stream.batches()
            table.add(await anext(batches))
            await running.restart()
            await bucket.upsert_many(documents(0, again, size=9))
            async for batch in batches:
                table.add(batch)
        assert table.current() == dict(documents(0, again, size=9))


@pytest.mark.parametrize("again", [0, 50, 100, 300])
@in_loop
async def test_saved_positions_of_a_lost_history_are_rolled_back(running, again):
    """Also if the new history is as long as the old one: only the node can distinguish them."""
    async with connect(running.url()) as bucket:
        await bucket.upsert_many(documents(0, 100))
        table, positions = await read(bucket, "beginning", "now")
        await running.restart()
        await bucket.upsert_many(documents(0, again, size=3))
        table, positions = await read(bucket, positions, "now", table=table)
        assert len(table.rollbacks) == 4
        assert table.current() == dict(documents(0, again, size=3))
        assert {each.history for each in positions.values()} == {1}


@in_loop
async def test_a_rolled_back_vbucket_still_ends_at_its_seqno(running):
    key = next(f"k{number}" for number in count() if compute_vbucket(b"k%d" % number, 4) == 2)
    async with connect(running.url()) as bucket:
        await bucket.upsert_many([(key, b"old")] * 5)
        table, positions = await read(bucket, "beginning", {2: 5})
        await running.restart()
        reading = asyncio.ensure_future(read(bucket, positions, {2: 8}, table=table))
        for number in range(8):
            await bucket.upsert(key, b"new%d" % number)
        await reading
        assert [row.requested_seqno for row in table.rollbacks] == [0]
        assert table.current() == {key: b"new7"}


@pytest.mark.process
@in_loop
async def test_killed_node_is_followed_after_its_restart():
    process = await asyncio.to_thread(NodeProcess)
    try:
        table = Table()
        url = f"couchbase://127.0.0.1:{process.port}/beer?flowControlBytes=65536"
        async with connect(url) as bucket:
            await bucket.upsert_many(documents(0, 3000, size=500))
            async with await bucket.stream(stop="now") as stream:
                batches = stream.batches()
                table.add(await anext(batches))
                await asyncio.to_thread(process.kill)
                coming = asyncio.ensure_future(anext(batches))
                await asyncio.to_thread(process.start)
                await bucket.upsert_many(documents(500, 600))
                table.add(await coming)
                async for batch in batches:
                    table.add(batch)
            last, _ = await read(bucket, stream.positions, "now", table=table)
            assert last.current() == dict(documents(500, 600))
    finally:
        await asyncio.to_thread(process.kill)


@in_loop
async def test_node_that_stays_down_is_reported_in_one_sentence(running):
    async with connect(running.url(retrySeconds=0.3)) as bucket:
        await bucket.upsert("k", b"v")
        async with await bucket.stream() as stream:
            batches = stream.batches()
            await anext(batches)
            await asyncio.to_thread(running.stop)
            with pytest.raises(Unreachable) as caught:
                await anext(batches)
    sentence = r"couchbase://127.0.0.1:\d+/beer did not serve for [\d.]+ s \(limit 0.3 s\); last failure: [^\n]*"
    assert re.fullmatch(sentence, str(caught.value))
    running.start()


@in_loop
async def test_changed_number_of_vbuckets_is_an_error(running):
    async with connect(running.url()) as bucket:
        await bucket.upsert("k", b"v")
        async with await bucket.stream() as stream:
            batches = stream.batches()
            await anext(batches)
            running.vbuckets = 8
            await running.restart()
            with pytest.raises(RemoteProtocolError, match="/beer has 8 vbuckets now, it had 4"):
                await anext(batches)


@in_loop
async def test_two_streams_of_one_bucket_do_not_end_each_other(running):
    """A node closes the older of two connections with the same name."""
    async with connect(running.url()) as bucket, connect(running.url()) as other:
        await bucket.upsert("k", b"v")
        async with await bucket.stream() as first, await bucket.stream() as second, await other.stream() as third:
            for stream in (first, second, third):
                await anext(stream.batches())
            stats = await bucket.stats()
            assert stats["ep_dcp_producer_count"] == "3"
            assert stats["total_connections"] == "5"


# Readers that stop


async def wait_for_connections(bucket, many):
    """Wait until the node has this many connections. Each request for its statistics takes some time."""
    while int((await bucket.stats())["curr_connections"]) != many:
        pass


@in_loop
async def test_a_reader_that_stops_early_leaves_no_connection(running):
    async with connect(running.url()) as bucket:
        await bucket.upsert_many(documents(0, 100))
        async with aclosing(bucket.changes()) as changes:
            await anext(changes)
        await wait_for_connections(bucket, 1)
        batches = bucket.batches()
        await anext(batches)
        await batches.aclose()
        await wait_for_connections(bucket, 1)


@in_loop
async def test_a_cancelled_reader_leaves_no_connection(running):
    async with connect(running.url()) as bucket:
        reading = asyncio.ensure_future(read(bucket))
        await wait_for_connections(bucket, 2)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        await wait_for_connections(bucket, 1)


@in_loop
async def test_reader_can_be_cancelled_while_it_waits_for_the_next_attempt(running):
    async with connect(running.url()) as bucket:
        reading = asyncio.ensure_future(read(bucket))
        await wait_for_connections(bucket, 2)
        await asyncio.to_thread(running.stop)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(reading), 0.3)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
    running.start()


@in_loop
async def test_closed_stream_ends_for_its_reader(running):
    async with connect(running.url()) as bucket:
        await bucket.upsert("k", b"v")
        stream = await bucket.stream()
        batches = stream.batches()
        await anext(batches)
        coming = asyncio.ensure_future(anext(batches, None))
        await bucket.stats()
        await stream.close()
        assert await coming is None
        await wait_for_connections(bucket, 1)
        assert [batch async for batch in stream] == []
        await wait_for_connections(bucket, 1)
