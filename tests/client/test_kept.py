"""Connections that outlive a stream."""

import asyncio

import pytest

from penstock.client.bucket import Bucket
from penstock.client.connect.address import parse_address
from penstock.client.connect.handshake import Purpose
from penstock.client.feeds.collection_selection import StreamContent
from penstock.client.feeds.feed import EndRule, Feed, StreamTarget
from penstock.client.streams.change_stream import ChangeStream
from penstock.client.streams.session_pool import SessionPool
from penstock.wire.codec.constants import Dialect
from penstock.wire.codec.layout import decode_frame
from penstock.wire.codec.opcodes import Magic, Opcode
from penstock.wire.messages.dcp import DcpNoop
from tests.client.peer import Script, in_loop
from tests.client.producer import accept, marker, mutations
from tests.client.test_nodes import let_have, moving

VBUCKETS = 4
FOR_EVER = 3600.0


class Reader:
    """Reads a bucket to where it ends, over connections that are kept."""

    def __init__(self, bucket: Bucket, kept: SessionPool, *, values: bool = True, dialect: Dialect = Dialect.DCP):
        self.bucket = bucket
        self.kept = kept
        self.content = StreamContent(values=values)
        self.dialect = dialect

    def stream(self, ends: dict[int, int]) -> ChangeStream:
        wanted = {vbucket: StreamTarget(end_seqno=end) for vbucket, end in ends.items()}
        window = self.bucket.address.options.flow_control_bytes
        feed = Feed(VBUCKETS, wanted, window=window, dialect=self.dialect, end_rule=EndRule.EXACT, content=self.content)
        return ChangeStream(self.bucket.address, feed, pool=self.kept)

    async def read(self, most: int = 1 << 60) -> int:
        """Return how many changes there are up to this seqno of each vbucket."""
        ends = {vbucket: min(high, most) for vbucket, high in (await self.bucket.high_seqnos()).items()}
        async with self.stream(ends) as stream:
            return sum([batch.num_rows async for batch in stream])

    async def present(self) -> int:
        """Return how many connections the node has."""
        return int((await self.bucket.stats())["curr_connections"])

    async def fewer_than(self, count: int) -> None:
        """Wait until the node has fewer connections."""
        while await self.present() >= count:
            continue

    async def total(self) -> int:
        """Return how many connections the node has taken so far."""
        return int((await self.bucket.stats())["total_connections"])


async def fill(bucket: Bucket, count: int = 100) -> None:
    await bucket.upsert_many((f"key-{number}", b"x" * 1000) for number in range(count))


def kept_for(seconds: float = FOR_EVER, most: int = 4) -> SessionPool:
    return SessionPool(most, seconds)


@in_loop
async def test_the_next_stream_makes_no_connection(running):
    kept = kept_for()
    async with Bucket(parse_address(running.url())) as bucket:
        reader = Reader(bucket, kept)
        await fill(bucket)
        assert await reader.read() == 100
        before = await reader.total()
        for _ in range(3):
            assert await reader.read() == 100
        assert await reader.total() == before
    kept.close()


@pytest.mark.parametrize("dialect", [Dialect.UPR, Dialect.UPR_DRAFT])
@in_loop
async def test_none_is_kept_by_which_an_unwanted_stream_may_go_on(running, dialect):
    """In these dialects a stream cannot be closed, and where a snapshot ends is not told before."""
    kept = kept_for()
    async with Bucket(parse_address(running.url())) as bucket:
        reader = Reader(bucket, kept, dialect=dialect)
        await fill(bucket)
        before = await reader.total()
        for _ in range(3):
            assert await reader.read() == 100
        assert await reader.total() == before + 3
    kept.close()


@in_loop
async def test_flow_control_goes_on_where_the_stream_before_left_it(running):
    """A window that lost what was left unacknowledged each time would be used up, and the last stream stand still."""
    kept = kept_for()
    async with Bucket(parse_address(running.url(flowControlBytes=65536))) as bucket:
        reader = Reader(bucket, kept)
        await fill(bucket, 40)
        for _ in range(20):
            assert await reader.read() == 40
    kept.close()


@in_loop
async def test_a_stream_that_wants_something_else_has_its_own(running):
    kept = kept_for()
    async with Bucket(parse_address(running.url())) as bucket:
        with_values, without = Reader(bucket, kept), Reader(bucket, kept, values=False)
        await fill(bucket)
        assert await with_values.read() == await without.read() == 100
        before = await with_values.total()
        assert await with_values.read() == await without.read() == 100
        assert await with_values.total() == before
    kept.close()


@in_loop
async def test_streams_at_the_same_time_share_nothing(running):
    kept = kept_for()
    async with Bucket(parse_address(running.url())) as bucket:
        reader = Reader(bucket, kept)
        await fill(bucket)
        for _ in range(3):
            assert await asyncio.gather(*(reader.read() for _ in range(3))) == [100] * 3
    kept.close()


@in_loop
async def test_one_that_was_left_before_its_end_is_closed(running):
    kept = kept_for()
    async with Bucket(parse_address(running.url())) as bucket:
        reader = Reader(bucket, kept)
        await fill(bucket)
        async with reader.stream(await bucket.high_seqnos()) as stream:
            assert await stream.next_delivery() is not None
        before = await reader.total()
        assert await reader.read() == 100
        assert await reader.total() == before + 1
    kept.close()


@in_loop
async def test_one_that_the_node_has_closed_is_replaced(running):
    kept = kept_for()
    async with Bucket(parse_address(running.url())) as bucket:
        reader = Reader(bucket, kept)
        await fill(bucket)
        assert await reader.read() == 100
        await running.restart()
        await fill(bucket, 30)
        assert await reader.read() == 30
    kept.close()


@in_loop
async def test_one_is_closed_after_a_while(running):
    kept = kept_for(seconds=0.01)
    async with Bucket(parse_address(running.url())) as bucket:
        reader = Reader(bucket, kept)
        await fill(bucket)
        before = await reader.present()
        assert await reader.read() == 100
        await reader.fewer_than(before + 1)


@in_loop
async def test_no_more_are_kept_than_were_allowed(running):
    kept = kept_for(most=2)
    async with Bucket(parse_address(running.url())) as bucket:
        reader = Reader(bucket, kept)
        await fill(bucket)
        before = await reader.present()
        assert await asyncio.gather(*(reader.read() for _ in range(4))) == [100] * 4
        await reader.fewer_than(before + 3)
    kept.close()


@in_loop
async def test_one_that_waits_answers_for_itself():
    answered = asyncio.Event()

    def answer(peer, frame):
        if frame.magic == Magic.RESPONSE and (frame.opcode, frame.opaque) == (Opcode.DCP_NOOP, 7):
            answered.set()

    async with Script(answer) as script:
        address, kept = parse_address(script.url()), kept_for()
        assert await kept.count_vbuckets(address, Purpose(stream_name="one")) == 2
        (peer,) = script.peers
        peer.transport.write(DcpNoop(opaque=7).encode())
        await answered.wait()
        kept.close()
        await peer.lost.wait()


@in_loop
async def test_the_number_of_vbuckets_costs_no_connection_of_its_own(running):
    kept = kept_for()
    async with Bucket(parse_address(running.url())) as bucket:
        reader = Reader(bucket, kept)
        await fill(bucket)
        before = await reader.total()
        purpose = Purpose(stream_name="one")
        assert await kept.count_vbuckets(bucket.address, purpose) == VBUCKETS
        assert await reader.read() == 100
        assert await kept.count_vbuckets(bucket.address, purpose) == VBUCKETS
        assert await reader.total() == before + 1
    kept.close()


@in_loop
async def test_streams_over_any_of_them_have_opaques_that_were_not_used_there():
    """What is still on its way of a stream that was closed would else be taken for the next one's."""
    one, two = moving()

    def answer(peer, frame):
        if frame.opcode != Opcode.DCP_STREAM_REQ:
            return None
        request = decode_frame(frame)
        # The snapshot reaches behind the end that is asked for, so that the reader closes the stream.
        return accept(request) + marker(request, 1, 9) + mutations(request, 5)

    one.answer = two.answer = answer
    async with one, two:
        let_have((one, two), [0, 1])
        kept = kept_for()
        for script, vbuckets in ((one, (0, 1)), (two, (1,))):
            feed = Feed(
                2, {vbucket: StreamTarget(end_seqno=5) for vbucket in vbuckets}, window=1 << 20, end_rule=EndRule.EXACT
            )
            async with ChangeStream(parse_address(script.url()), feed, pool=kept) as stream:
                assert sum([batch.num_rows async for batch in stream]) == len(vbuckets)
        (peer,) = two.peers
        first, second = [frame.opaque for frame in peer.requests if frame.opcode == Opcode.DCP_STREAM_REQ]
        assert second > first
        kept.close()
