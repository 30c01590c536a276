"""Pooled connections, which outlive a stream."""

import asyncio

import pytest

from penstock.client.bucket import Bucket
from penstock.client.connect.address import parse_address
from penstock.client.connect.handshake import Purpose
from penstock.client.feeds.collection_selection import StreamContent
from penstock.client.feeds.feed import Feed
from penstock.client.feeds.vbucket_stream import EndRule, StreamTarget
from penstock.client.streams.change_stream import ChangeStream
from penstock.client.streams.session_pool import SessionPool
from penstock.wire.codec.constants import Dialect
from penstock.wire.codec.layout import decode_frame
from penstock.wire.codec.opcodes import Magic, Opcode
from penstock.wire.messages.dcp import DcpNoop
from tests.client.peer import Script, in_loop
from tests.client.producer import accept, marker, mutations
from tests.client.test_nodes import assign_vbuckets, make_two_scripts

VBUCKETS = 4
FOR_EVER = 3600.0


class Reader:
    """Reads a bucket up to its current end, over pooled connections."""

    def __init__(self, bucket: Bucket, pool: SessionPool, *, values: bool = True, dialect: Dialect = Dialect.DCP):
        self.bucket = bucket
        self.pool = pool
        self.content = StreamContent(values=values)
        self.dialect = dialect

    def stream(self, ends: dict[int, int]) -> ChangeStream:
        targets = {vbucket: StreamTarget(end_seqno=end) for vbucket, end in ends.items()}
        window = self.bucket.address.options.flow_control_bytes
        feed = Feed(
            VBUCKETS, targets, window=window, dialect=self.dialect, end_rule=EndRule.EXACT, content=self.content
        )
        return ChangeStream(self.bucket.address, feed, pool=self.pool)

    async def read(self, most: int = 1 << 60) -> int:
        """Read each vbucket up to its end or up to seqno `most`; return the number of changes."""
        ends = {vbucket: min(high, most) for vbucket, high in (await self.bucket.high_seqnos()).items()}
        async with self.stream(ends) as stream:
            return sum([batch.num_rows async for batch in stream])

    async def count_open(self) -> int:
        """Return the number of the node's open connections."""
        return int((await self.bucket.stats())["curr_connections"])

    async def wait_for_fewer(self, count: int) -> None:
        """Wait until the node has fewer than `count` connections."""
        while await self.count_open() >= count:
            continue

    async def count_accepted(self) -> int:
        """Return the number of connections that the node has accepted so far."""
        return int((await self.bucket.stats())["total_connections"])


async def fill(bucket: Bucket, count: int = 100) -> None:
    await bucket.upsert_many((f"key-{number}", b"x" * 1000) for number in range(count))


def make_pool(seconds: float = FOR_EVER, most: int = 4) -> SessionPool:
    return SessionPool(most, seconds)


@in_loop
async def test_next_stream_opens_no_connection(running):
    pool = make_pool()
    async with Bucket(parse_address(running.url())) as bucket:
        reader = Reader(bucket, pool)
        await fill(bucket)
        assert await reader.read() == 100
        before = await reader.count_accepted()
        for _ in range(3):
            assert await reader.read() == 100
        assert await reader.count_accepted() == before
    pool.close()


@pytest.mark.parametrize("dialect", [Dialect.UPR, Dialect.UPR_DRAFT])
@in_loop
async def test_connection_with_a_stream_that_cannot_be_closed_is_not_kept(running, dialect):
    """In these dialects a stream cannot be closed, and no message announces the end of a snapshot."""
    pool = make_pool()
    async with Bucket(parse_address(running.url())) as bucket:
        reader = Reader(bucket, pool, dialect=dialect)
        await fill(bucket)
        before = await reader.count_accepted()
        for _ in range(3):
            assert await reader.read() == 100
        assert await reader.count_accepted() == before + 3
    pool.close()


@in_loop
async def test_flow_control_continues_from_the_previous_stream(running):
    """If each stream left some bytes unacknowledged, the window would be used up and the last stream would stop."""
    pool = make_pool()
    async with Bucket(parse_address(running.url(flowControlBytes=65536))) as bucket:
        reader = Reader(bucket, pool)
        await fill(bucket, 40)
        for _ in range(20):
            assert await reader.read() == 40
    pool.close()


@in_loop
async def test_stream_with_other_options_has_its_own_connection(running):
    pool = make_pool()
    async with Bucket(parse_address(running.url())) as bucket:
        with_values, without = Reader(bucket, pool), Reader(bucket, pool, values=False)
        await fill(bucket)
        assert await with_values.read() == await without.read() == 100
        before = await with_values.count_accepted()
        assert await with_values.read() == await without.read() == 100
        assert await with_values.count_accepted() == before
    pool.close()


@in_loop
async def test_concurrent_streams_share_no_connection(running):
    pool = make_pool()
    async with Bucket(parse_address(running.url())) as bucket:
        reader = Reader(bucket, pool)
        await fill(bucket)
        for _ in range(3):
            assert await asyncio.gather(*(reader.read() for _ in range(3))) == [100] * 3
    pool.close()


@in_loop
async def test_connection_of_an_unfinished_stream_is_closed(running):
    pool = make_pool()
    async with Bucket(parse_address(running.url())) as bucket:
        reader = Reader(bucket, pool)
        await fill(bucket)
        async with reader.stream(await bucket.high_seqnos()) as stream:
            assert await stream.next_delivery() is not None
        before = await reader.count_accepted()
        assert await reader.read() == 100
        assert await reader.count_accepted() == before + 1
    pool.close()


@in_loop
async def test_connection_that_the_node_closed_is_replaced(running):
    pool = make_pool()
    async with Bucket(parse_address(running.url())) as bucket:
        reader = Reader(bucket, pool)
        await fill(bucket)
        assert await reader.read() == 100
        await running.restart()
        await fill(bucket, 30)
        assert await reader.read() == 30
    pool.close()


@in_loop
async def test_idle_connection_is_closed_after_a_while(running):
    pool = make_pool(seconds=0.01)
    async with Bucket(parse_address(running.url())) as bucket:
        reader = Reader(bucket, pool)
        await fill(bucket)
        before = await reader.count_open()
        assert await reader.read() == 100
        await reader.wait_for_fewer(before + 1)


@in_loop
async def test_pool_keeps_no_more_connections_than_allowed(running):
    pool = make_pool(most=2)
    async with Bucket(parse_address(running.url())) as bucket:
        reader = Reader(bucket, pool)
        await fill(bucket)
        before = await reader.count_open()
        assert await asyncio.gather(*(reader.read() for _ in range(4))) == [100] * 4
        await reader.wait_for_fewer(before + 3)
    pool.close()


@in_loop
async def test_idle_connection_answers_a_noop():
    answered = asyncio.Event()

    def answer(peer, frame):
        if frame.magic == Magic.RESPONSE and (frame.opcode, frame.opaque) == (Opcode.DCP_NOOP, 7):
            answered.set()

    async with Script(answer) as script:
        address, pool = parse_address(script.url()), make_pool()
        assert await pool.count_vbuckets(address, Purpose(stream_name="one")) == 2
        (peer,) = script.peers
        peer.transport.write(DcpNoop(opaque=7).encode())
        await answered.wait()
        pool.close()
        await peer.lost.wait()


@in_loop
async def test_counting_vbuckets_opens_no_connection_of_its_own(running):
    pool = make_pool()
    async with Bucket(parse_address(running.url())) as bucket:
        reader = Reader(bucket, pool)
        await fill(bucket)
        before = await reader.count_accepted()
        purpose = Purpose(stream_name="one")
        assert await pool.count_vbuckets(bucket.address, purpose) == VBUCKETS
        assert await reader.read() == 100
        assert await pool.count_vbuckets(bucket.address, purpose) == VBUCKETS
        assert await reader.count_accepted() == before + 1
    pool.close()


@in_loop
async def test_streams_on_pooled_connections_have_unused_opaques():
    """Otherwise late messages of a closed stream would be taken for messages of the next stream."""
    one, two = make_two_scripts()

    def answer(peer, frame):
        if frame.opcode != Opcode.DCP_STREAM_REQ:
            return None
        request = decode_frame(frame)
        # The snapshot ends after the requested end, so that the reader closes the stream.
        return accept(request) + marker(request, 1, 9) + mutations(request, 5)

    one.answer = two.answer = answer
    async with one, two:
        assign_vbuckets((one, two), [0, 1])
        pool = make_pool()
        for script, vbuckets in ((one, (0, 1)), (two, (1,))):
            feed = Feed(
                2, {vbucket: StreamTarget(end_seqno=5) for vbucket in vbuckets}, window=1 << 20, end_rule=EndRule.EXACT
            )
            async with ChangeStream(parse_address(script.url()), feed, pool=pool) as stream:
                assert sum([batch.num_rows async for batch in stream]) == len(vbuckets)
        (peer,) = two.peers
        first, second = [frame.opaque for frame in peer.requests if frame.opcode == Opcode.DCP_STREAM_REQ]
        assert second > first
        pool.close()
